// The one check of what a read may touch, the same for every fabric.
#ifndef COFFERDAM_FABRIC_BOUNDS_H_
#define COFFERDAM_FABRIC_BOUNDS_H_

#include "absl/status/status.h"
#include "fabric/fabric.h"

namespace cofferdam::fabric {

// `bytes` is what is really mapped. InvalidArgument for another region, or bytes outside of this one; no sum overflows.
inline absl::Status CheckBounds(const ReadRequest& request, uint64_t region, uint64_t bytes) {
  if (request.region != region) return absl::InvalidArgumentError("the pages lie in a region of another boot of the source");
  if (request.source_offset > bytes || request.destination.size() > bytes - request.source_offset) {
    return absl::InvalidArgumentError("the read reaches outside of the source's region");
  }
  return absl::OkStatus();
}

}  // namespace cofferdam::fabric

#endif  // COFFERDAM_FABRIC_BOUNDS_H_
