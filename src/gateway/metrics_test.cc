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
  EXPECT_NE(text.find("# HELP cofferdam_pages_total Pages\\nof a pool\n# TYPE cofferdam_pages_total counter\n"
                      "cofferdam_pages_total{role=\"decode\",worker=\"a\"} 0.5\n"
                      "cofferdam_pages_total{role=\"decode\",worker=\"b\"} 0.5\n"),
            std::string::npos)
      << text;
}

TEST(Metrics, AWorkersMetricOfOurNameIsAnother) {
  WorkerMetrics worker;
  worker.info.add_metrics()->set_name("prompt_tokens_total");
  const std::string text = Metrics().Render({worker});
  EXPECT_NE(text.find("# TYPE cofferdam_worker_prompt_tokens_total counter\n"), std::string::npos);
  EXPECT_EQ(text.find("# TYPE cofferdam_prompt_tokens_total"), text.rfind("# TYPE cofferdam_prompt_tokens_total"));
}

TEST(Metrics, HistogramsAreCumulative) {
  Histogram histogram;
  histogram.Observe(0.01);
  histogram.Observe(0.02);
  histogram.Observe(1000);
  std::string text;
  histogram.Render("t", "help", text);
  EXPECT_NE(text.find("cofferdam_t_bucket{le=\"0.01\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("cofferdam_t_bucket{le=\"0.025\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("cofferdam_t_bucket{le=\"300\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("cofferdam_t_bucket{le=\"+Inf\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("cofferdam_t_count 3\n"), std::string::npos);
}

TEST(Metrics, AWorkersHistogramIsRenderedAndAWrongOneIsDropped) {
  WorkerMetrics worker;
  worker.role = "decode";
  worker.address = "a";
  v1::Metric* metric = worker.info.add_metrics();
  metric->set_name("deferred_release_seconds");
  metric->set_kind(v1::Metric::HISTOGRAM);
  metric->set_help("h");
  metric->set_value(1.5);
  for (const double bound : {0.001, 1.0}) metric->add_bucket_bounds(bound);
  for (const uint64_t count : {2U, 3U, 4U}) metric->add_bucket_counts(count);
  const std::string labels = "{role=\"decode\",worker=\"a\"";
  const std::string name = "cofferdam_deferred_release_seconds";
  const std::string text = Metrics().Render({worker});
  EXPECT_NE(text.find("# TYPE " + name + " histogram\n" + name + "_bucket" + labels + ",le=\"0.001\"} 2\n" + name + "_bucket" +
                      labels + ",le=\"1\"} 3\n" + name + "_bucket" + labels + ",le=\"+Inf\"} 4\n" + name + "_sum" + labels +
                      "} 1.5\n" + name + "_count" + labels + "} 4\n"),
            std::string::npos)
      << text;
  metric->set_bucket_counts(1, 9);
  EXPECT_EQ(Metrics().Render({worker}).find(name), std::string::npos) << "counts that fall";
  metric->clear_bucket_counts();
  EXPECT_EQ(Metrics().Render({worker}).find(name), std::string::npos) << "bounds without counts";
}

TEST(Metrics, CodesAreBounded) {
  Metrics metrics;
  for (int i = 0; i < 10000; ++i) metrics.CountRejection("code" + std::to_string(i));
  EXPECT_LT(metrics.Render({}).size(), 20000u);
}

}  // namespace
}  // namespace cofferdam::gateway
