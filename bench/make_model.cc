// Writes a GGUF model of random weights, e.g. the shape that the benchmarks use:
//   make_model --out bench.gguf
#include <CLI/CLI.hpp>
#include <cstdio>

#include "runners.h"
#include "synthetic_model.h"

int main(int argc, char** argv) {
  using cofferdam::oracle::SyntheticSpec;
  SyntheticSpec spec;
  spec.layers = 24;
  spec.embedding = 1024;
  spec.heads = 16;
  spec.kv_heads = 4;
  spec.head_size = 64;
  spec.feed_forward = 4864;
  spec.vocabulary = 0;
  spec.context = 8192;
  spec.tied = true;
  std::string out, type = "q4_0", vocabulary = "llama-spm";
  CLI::App app{"Writes a GGUF model of random weights"};
  app.add_option("--out", out, "file to write")->required();
  app.add_option("--architecture", spec.architecture, "llama, qwen2 or qwen3");
  app.add_option("--type", type, "type of all matrices, as ggml names it");
  app.add_option("--layers", spec.layers);
  app.add_option("--embedding", spec.embedding);
  app.add_option("--heads", spec.heads);
  app.add_option("--kv-heads", spec.kv_heads);
  app.add_option("--head-size", spec.head_size);
  app.add_option("--feed-forward", spec.feed_forward);
  app.add_option("--vocabulary", spec.vocabulary, "entries; 0: the whole vocabulary");
  app.add_option("--context", spec.context);
  app.add_option("--seed", spec.seed);
  CLI11_PARSE(app, argc, argv);
  spec.vocabulary_file = cofferdam::oracle::VocabularyPath(vocabulary);
  spec.type = GGML_TYPE_COUNT;
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const char* name = ggml_type_name(static_cast<ggml_type>(i));
    if (name != nullptr && type == name) spec.type = static_cast<ggml_type>(i);
  }
  if (spec.type == GGML_TYPE_COUNT) {
    std::fprintf(stderr, "there is no type %s\n", type.c_str());
    return 2;
  }
  const auto status = cofferdam::oracle::WriteSyntheticModel(spec, out);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
