// Times of the tenure log as people write and read them, always in UTC.
#ifndef COFFERDAM_TENURE_TIME_H_
#define COFFERDAM_TENURE_TIME_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tenure/record.h"

namespace cofferdam::tenure {

// The system's clock.
Micros WallClock();

// "2026-11-30T12:00:00.000000Z".
std::string FormatTime(Micros time);

// RFC 3339 ("2026-11-30T12:00:00Z"), a date ("2026-11-30", its first moment in UTC), or how long before `now` ("90s", "90m",
// "24h", "7d"). Errors: InvalidArgument that says what is understood.
absl::StatusOr<Micros> ParseTime(std::string_view text, Micros now);

}  // namespace cofferdam::tenure

#endif  // COFFERDAM_TENURE_TIME_H_
