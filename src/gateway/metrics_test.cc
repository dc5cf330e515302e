#include "gateway/metrics.h"

#include <gtest/gtest.h>

namespace cofferdam::gateway {
namespace {

TEST(Metrics, AFamilyStandsTogether) {
  Metrics metrics;
  WorkerMetrics one, two;
  one.role = two.role = "decode";
  one.address = "a";
  two.address = "b";
  for (WorkerMetrics* worker : {&one, &two}) {
    v1::Metric* metric = worker->info.add_metrics();
    metric->set_name("pages_total");
    metric->set_kind(v1::Metric::COUNTER);
    metric->set_value(0.5);
    metric->set_help("Pages\nof a pool");
  }
  const std::string text = metrics.Render({one, two});
  EXPECT_NE(text.find("# HELP cofferdam:pages_total Pages\\nof a pool\n# TYPE cofferdam:pages_total counter\n"
                      "cofferdam:pages_total{role=\"decode\",worker=\"a\"} 0.5\n"
                      "cofferdam:pages_total{role=\"decode\",worker=\"b\"} 0.5\n"),
            std::string::npos)
      << text;
}

TEST(Metrics, AWorkersMetricOfOurNameIsAnother) {
  WorkerMetrics worker;
  worker.info.add_metrics()->set_name("prompt_tokens_total");
  const std::string text = Metrics().Render({worker});
  EXPECT_NE(text.find("# TYPE cofferdam:worker_prompt_tokens_total counter\n"), std::string::npos);
  EXPECT_EQ(text.find("# TYPE cofferdam:prompt_tokens_total"), text.rfind("# TYPE cofferdam:prompt_tokens_total"));
}

TEST(Metrics, HistogramsAreCumulative) {
  Histogram histogram;
  histogram.Observe(0.01);
  histogram.Observe(0.02);
  histogram.Observe(1000);
  std::string text;
  histogram.Render("t", "help", text);
  EXPECT_NE(text.find("cofferdam:t_bucket{le=\"0.01\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("cofferdam:t_bucket{le=\"0.025\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("cofferdam:t_bucket{le=\"300\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("cofferdam:t_bucket{le=\"+Inf\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("cofferdam:t_count 3\n"), std::string::npos);
}

TEST(Metrics, CodesAreBounded) {
  Metrics metrics;
  for (int i = 0; i < 10000; ++i) metrics.CountRejection("code" + std::to_string(i));
  EXPECT_LT(metrics.Render({}).size(), 20000u);
}

}  // namespace
}  // namespace cofferdam::gateway
