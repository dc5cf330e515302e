#include "gateway/metrics.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace cofferdam::gateway {
namespace {

constexpr size_t kMaxWorkerMetrics = 4096;  // of one worker
constexpr size_t kMaxCodes = 128;
constexpr int kMaxBuckets = 64;

// One metric of all workers: Prometheus wants its samples together.
struct Family {
  std::string help;
  std::string type;
  std::string samples;
};

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

bool IsName(std::string_view name) {
  if (name.empty() || name.size() > 200 || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; });
}

std::string Value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (value == std::floor(value) && std::fabs(value) < 9e15) return absl::StrCat(static_cast<int64_t>(value));
  std::array<char, 32> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), written.ptr);
}

void Head(std::string_view name, std::string_view type, std::string_view help, std::string& out) {
  absl::StrAppend(&out, "# HELP cofferdam_", std::string(name), " ", Escape(help), "\n# TYPE cofferdam_", std::string(name), " ",
                  std::string(type), "\n");
}

void Single(std::string_view name, std::string_view type, std::string_view help, uint64_t value, std::string& out) {
  Head(name, type, help, out);
  absl::StrAppend(&out, "cofferdam_", std::string(name), " ", value, "\n");
}

std::string WorkerLabels(const WorkerMetrics& worker) {
  return absl::StrCat("role=\"", Escape(worker.role), "\",worker=\"", Escape(worker.address), "\"");
}

Family& FamilyOf(std::map<std::string, Family>& families, const std::string& name, const std::string& help, const char* type) {
  Family& family = families[name];
  if (family.samples.empty()) {
    family.help = help;
    family.type = type;
  }
  return family;
}

// Wrong counts of a worker are dropped: a reader of histograms would stumble over them.
void AddHistogram(std::map<std::string, Family>& families, const std::string& name, const std::string& labels,
                  const v1::Metric& metric) {
  const auto& bounds = metric.bucket_bounds();
  const auto& counts = metric.bucket_counts();
  if (bounds.size() > kMaxBuckets || counts.size() != bounds.size() + 1 || !std::ranges::is_sorted(bounds) ||
      !std::ranges::is_sorted(counts)) {
    return;
  }
  std::string& samples = FamilyOf(families, name, metric.help(), "histogram").samples;
  for (int i = 0; i < counts.size(); ++i) {
    absl::StrAppend(&samples, "cofferdam_", name, "_bucket{", labels, ",le=\"", i < bounds.size() ? Value(bounds[i]) : "+Inf",
                    "\"} ", counts[i], "\n");
  }
  absl::StrAppend(&samples, "cofferdam_", name, "_sum{", labels, "} ", Value(metric.value()), "\ncofferdam_", name, "_count{",
                  labels, "} ", *counts.rbegin(), "\n");
}

void AddSample(std::map<std::string, Family>& families, const std::string& name, const std::string& help, bool counter,
               const std::string& labels, double value) {
  Family& family = FamilyOf(families, name, help, counter ? "counter" : "gauge");
  absl::StrAppend(&family.samples, "cofferdam_", name, "{", labels, "} ", Value(value), "\n");
}

// `own` is the text of the gateway's own metrics: a worker's metric of the same name is another family.
void AddWorker(std::map<std::string, Family>& families, const WorkerMetrics& worker, const std::string& own) {
  const std::string labels = WorkerLabels(worker);
  const auto gauge = [&](const std::string& name, const std::string& help, double value) {
    AddSample(families, name, help, false, labels, value);
  };
  gauge("worker_up", "1 when the worker answers", worker.up ? 1 : 0);
  gauge("worker_routable", "1 when requests are sent to the worker", worker.routable ? 1 : 0);
  gauge("worker_gateway_running", "Requests of this gateway at the worker", static_cast<double>(worker.gateway_running));
  gauge("worker_kv_tokens", "Tokens that the worker's pool can hold", static_cast<double>(worker.info.kv_tokens()));
  gauge("worker_context_tokens", "Longest sequence that the worker serves", static_cast<double>(worker.info.context_tokens()));
  gauge("worker_running", "Requests that the worker computes", worker.info.running());
  gauge("worker_waiting", "Requests in the worker's queue", worker.info.waiting());
  AddSample(families, "worker_steps_total", "Engine steps of the worker", true, labels, static_cast<double>(worker.info.steps()));
  size_t count = 0;
  for (const v1::Metric& metric : worker.info.metrics()) {
    if (++count > kMaxWorkerMetrics) break;
    if (!IsName(metric.name()) || metric.label_names_size() != metric.label_values_size()) continue;
    std::string all = labels;
    bool good = true;
    for (int i = 0; i < metric.label_names_size(); ++i) {
      good = good && IsName(metric.label_names(i)) && metric.label_names(i) != "role" && metric.label_names(i) != "worker";
      absl::StrAppend(&all, ",", metric.label_names(i), "=\"", Escape(metric.label_values(i)), "\"");
    }
    const bool taken = own.find(absl::StrCat("# TYPE cofferdam_", metric.name(), " ")) != std::string::npos;
    if (!good) continue;
    const std::string name = absl::StrCat(taken ? "worker_" : "", metric.name());
    if (metric.kind() == v1::Metric::HISTOGRAM) {
      AddHistogram(families, name, all, metric);
    } else {
      AddSample(families, name, metric.help(), metric.kind() == v1::Metric::COUNTER, all, metric.value());
    }
  }
}

}  // namespace

void Histogram::Observe(double seconds) {
  const size_t bucket = static_cast<size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin());
  const MutexLock lock(mutex_);
  ++counts_[bucket];
  sum_ += seconds;
}

void Histogram::Render(const std::string& name, const std::string& help, std::string& out) const {
  Head(name, "histogram", help, out);
  const MutexLock lock(mutex_);
  uint64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < kBounds.size() ? absl::StrCat(kBounds[i]) : "+Inf";
    absl::StrAppend(&out, "cofferdam_", name, "_bucket{le=\"", bound, "\"} ", total, "\n");
  }
  absl::StrAppend(&out, "cofferdam_", name, "_sum ", Value(sum_), "\ncofferdam_", name, "_count ", total, "\n");
}

void Metrics::CountRequest(const std::string& route, int status) {
  const MutexLock lock(mutex_);
  ++requests_[{route, status}];
}

void Metrics::CountRejection(const std::string& code) {
  const MutexLock lock(mutex_);
  // Codes come from workers too; a broken one must not grow this without bound.
  const bool known = rejections_.contains(code) || rejections_.size() < kMaxCodes;
  ++rejections_[known ? code : "other"];
}

void Metrics::RenderOwn(std::string& out) const {
  {
    const MutexLock lock(mutex_);
    Head("requests_total", "counter", "Finished HTTP requests", out);
    for (const auto& [key, count] : requests_) {
      absl::StrAppend(&out, "cofferdam_requests_total{route=\"", Escape(key.first), "\",status=\"", key.second, "\"} ", count,
                      "\n");
    }
    Head("rejections_total", "counter", "Requests refused or failed, by error code", out);
    for (const auto& [code, count] : rejections_) {
      absl::StrAppend(&out, "cofferdam_rejections_total{code=\"", Escape(code), "\"} ", count, "\n");
    }
  }
  Single("connections", "gauge", "Open client connections", connections, out);
  Single("connections_total", "counter", "Client connections accepted", connections_total, out);
  Single("connections_refused_total", "counter", "Client connections over the limit", connections_refused_total, out);
  Single("num_requests_running", "gauge", "Completions in flight", running, out);
  Single("num_requests_waiting", "gauge", "Of these, not accepted by a worker yet", waiting, out);
  Single("prompt_tokens_total", "counter", "Prompt tokens of accepted requests", prompt_tokens_total, out);
  Single("generation_tokens_total", "counter", "Tokens generated", generated_tokens_total, out);
  Single("client_disconnects_total", "counter", "Requests whose client went away", disconnects_total, out);
  Single("stale_messages_total", "counter", "Worker messages of another attempt or index, dropped", stale_messages_total, out);
  Single("retries_total", "counter", "Requests sent to a worker again", retries_total, out);
  Single("resumed_total", "counter", "Retries that went on after tokens were sent", resumed_total, out);
  Single("retries_refused_total", "counter", "Retries that the shared budget did not allow", retries_refused_total, out);
  Single("timeouts_total", "counter", "Clients that were too slow", timeouts_total, out);
  Single("handoff_pages_verified_total", "counter", "Pages that accepted requests took over from prefill", pages_verified_total,
         out);
  time_to_first_token.Render("time_to_first_token_seconds", "From the whole request to its first token", out);
  end_to_end.Render("e2e_request_latency_seconds", "From the whole request to its last token", out);
}

std::string Metrics::Render(const std::vector<WorkerMetrics>& workers) const {
  std::string out;
  RenderOwn(out);
  std::map<std::string, Family> families;
  for (const WorkerMetrics& worker : workers) AddWorker(families, worker, out);
  for (const auto& [name, family] : families) {
    Head(name, family.type, family.help, out);
    out += family.samples;
  }
  return out;
}

}  // namespace cofferdam::gateway
