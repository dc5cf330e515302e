// Broken, foreign and hostile model files: a status that says what is wrong, never an abort.
#include <gguf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "runners.h"
#include "synthetic_model.h"

namespace cofferdam::oracle {
namespace {

using Bytes = std::vector<char>;

class Refusal : public testing::Test {
 protected:
  void SetUp() override {
    SyntheticSpec spec{.architecture = "llama",
                       .layers = 1,
                       .embedding = 64,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_size = 16,
                       .feed_forward = 64,
                       .vocabulary = 300,
                       .type = GGML_TYPE_Q8_0};
    spec.vocabulary_file = VocabularyPath("llama-spm");
    good_ = TemporaryPath("refusal-good");
    bad_ = TemporaryPath("refusal-bad");
    const auto status = WriteSyntheticModel(spec, good_);
    ASSERT_TRUE(status.ok()) << status;
    std::ifstream in(good_, std::ios::binary);
    bytes_ = Bytes(std::istreambuf_iterator<char>(in), {});
    const gguf_init_params params{.no_alloc = true, .ctx = nullptr};
    gguf_context* header = gguf_init_from_file(good_.c_str(), params);
    header_size_ = gguf_get_data_offset(header);
    gguf_free(header);
    ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  }
  void TearDown() override {
    std::filesystem::remove(good_);
    std::filesystem::remove(bad_);
  }

  absl::Status Load(const Bytes& bytes) {
    std::ofstream(bad_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return model::Model::Load({.path = bad_, .model_hash = "00"}).status();
  }

  // The good file with its settings changed, data and all.
  absl::Status LoadChanged(const std::function<void(gguf_context*)>& change) {
    ggml_context* tensors = nullptr;
    gguf_context* file = gguf_init_from_file(good_.c_str(), {.no_alloc = false, .ctx = &tensors});
    gguf_context* changed = gguf_init_empty();
    gguf_set_kv(changed, file);
    for (int64_t i = 0; i < gguf_get_n_tensors(file); ++i)
      gguf_add_tensor(changed, ggml_get_tensor(tensors, gguf_get_tensor_name(file, i)));
    change(changed);
    gguf_write_to_file(changed, bad_.c_str(), false);
    gguf_free(changed);
    gguf_free(file);
    ggml_free(tensors);
    return model::Model::Load({.path = bad_, .model_hash = "00"}).status();
  }

  void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }

  std::string good_, bad_;
  Bytes bytes_;
  size_t header_size_ = 0;
};

TEST_F(Refusal, TheGoodFileLoads) {
  const auto status = Load(bytes_);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(Refusal, MissingFilesAndFolders) {
  ExpectRefused(model::Model::Load({.path = "/nonexistent/model.gguf", .model_hash = "00"}).status(), absl::StatusCode::kNotFound,
                "/nonexistent");
  ExpectRefused(model::Model::Load({.path = "/tmp", .model_hash = "00"}).status(), absl::StatusCode::kInvalidArgument,
                "regular file");
}

TEST_F(Refusal, ForeignFiles) {
  ExpectRefused(Load({}), absl::StatusCode::kInvalidArgument, "too short");
  ExpectRefused(Load(Bytes(4096, 'x')), absl::StatusCode::kInvalidArgument, "not a GGUF file");
}

TEST_F(Refusal, FilesCutOffAnywhere) {
  for (size_t size = 1; size < bytes_.size(); size += 1 + size / 40) {
    EXPECT_FALSE(Load(Bytes(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(size))).ok()) << size;
  }
  ExpectRefused(Load(Bytes(bytes_.begin(), bytes_.end() - 4096)), absl::StatusCode::kInvalidArgument, "cut off");
}

TEST_F(Refusal, UnknownArchitecturesByName) {
  ExpectRefused(LoadChanged([](gguf_context* f) { gguf_set_val_str(f, "general.architecture", "mamba"); }),
                absl::StatusCode::kUnimplemented, "architecture 'mamba' is not supported; supported: llama, qwen2, qwen3");
}

TEST_F(Refusal, SettingsThatAreNotUnderstoodByName) {
  ExpectRefused(LoadChanged([](gguf_context* f) { gguf_set_val_u32(f, "llama.expert_count", 8); }),
                absl::StatusCode::kUnimplemented, "llama.expert_count");
  ExpectRefused(LoadChanged([](gguf_context* f) { gguf_set_val_f32(f, "llama.logit_scale", 2.0f); }),
                absl::StatusCode::kUnimplemented, "llama.logit_scale");
  ExpectRefused(LoadChanged([](gguf_context* f) { gguf_set_val_str(f, "llama.rope.scaling.type", "spiral"); }),
                absl::StatusCode::kUnimplemented, "spiral");
  const auto zero = LoadChanged([](gguf_context* f) { gguf_set_val_u32(f, "llama.expert_count", 0); });
  EXPECT_TRUE(zero.ok()) << zero;
}

TEST_F(Refusal, AbsurdSettings) {
  for (const char* key :
       {"llama.block_count", "llama.embedding_length", "llama.attention.head_count", "llama.attention.head_count_kv",
        "llama.feed_forward_length", "llama.context_length", "llama.attention.key_length", "llama.rope.dimension_count"}) {
    for (const uint32_t value : {0u, 3u, 0x7fffffffu, 0xffffffffu}) {
      if (std::string(key) == "llama.context_length" && value == 3) continue;
      EXPECT_FALSE(LoadChanged([&](gguf_context* f) { gguf_set_val_u32(f, key, value); }).ok()) << key << " " << value;
    }
    EXPECT_FALSE(LoadChanged([&](gguf_context* f) { gguf_set_val_str(f, key, "many"); }).ok()) << key;
    EXPECT_FALSE(LoadChanged([&](gguf_context* f) { gguf_set_val_i32(f, key, -1); }).ok()) << key;
  }
  for (const float value : {0.0f, -1.0f, INFINITY, NAN}) {
    EXPECT_FALSE(LoadChanged([&](gguf_context* f) { gguf_set_val_f32(f, "llama.rope.freq_base", value); }).ok()) << value;
    EXPECT_FALSE(LoadChanged([&](gguf_context* f) { gguf_set_val_f32(f, "llama.attention.layer_norm_rms_epsilon", value); }).ok())
        << value;
  }
}

TEST_F(Refusal, MissingTensorsAndWrongTypes) {
  ExpectRefused(LoadChanged([](gguf_context* f) { gguf_set_val_u32(f, "llama.block_count", 2); }),
                absl::StatusCode::kInvalidArgument, "blk.1.attn_norm.weight");
  ExpectRefused(LoadChanged([](gguf_context* f) { gguf_set_val_u32(f, "llama.feed_forward_length", 128); }),
                absl::StatusCode::kInvalidArgument, "ffn_gate");
  ExpectRefused(LoadChanged([](gguf_context* f) { gguf_set_val_str(f, "general.architecture", "qwen3"); }),
                absl::StatusCode::kInvalidArgument, "qwen3.");
}

TEST_F(Refusal, SplitSetsWithoutTheirRest) {
  ExpectRefused(LoadChanged([](gguf_context* f) { gguf_set_val_u16(f, "split.count", 3); }), absl::StatusCode::kInvalidArgument,
                "is one of 3 files");
  EXPECT_FALSE(LoadChanged([](gguf_context* f) { gguf_set_val_u16(f, "split.count", 65535); }).ok());
}

// Random bytes in the header: it loads or it is refused, and what loads also runs.
TEST_F(Refusal, MutatedHeadersNeverCrash) {
  std::mt19937 random(20240607);
  size_t loaded = 0;
  for (int i = 0; i < 3000; ++i) {
    Bytes mutated = bytes_;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int c = 0; c < changes; ++c) {
      // Half of the changes hit the tensor table at the header's end, where the counts and offsets are.
      const size_t at =
          random() % 2 == 0 ? random() % header_size_ : header_size_ - 1 - random() % std::min<size_t>(header_size_ - 1, 800);
      const char values[] = {0, 1, -1, 127, static_cast<char>(random())};
      mutated[at] = values[random() % std::size(values)];
    }
    std::ofstream(bad_, std::ios::binary).write(mutated.data(), static_cast<std::streamsize>(mutated.size()));
    auto model = model::Model::Load({.path = bad_, .model_hash = "00"});
    if (!model.ok()) continue;
    ++loaded;
    auto executor = model::Executor::Create(*model, {});
    ASSERT_TRUE(executor.ok());
    model::ScratchPages pages((*model)->layout(), 64);
    const std::span<std::byte* const> table = pages.table();
    const std::vector<model::BatchRow> rows = {{.token = 1, .wants_logits = true},
                                               {.token = 2, .position = 1, .wants_logits = true}};
    const auto logits = (*executor)->Run({.rows = rows, .tables = std::span(&table, 1)});
    EXPECT_TRUE(logits.ok()) << logits.status();
  }
  std::printf("%zu of 3000 mutated files still load\n", loaded);
}

}  // namespace
}  // namespace cofferdam::oracle
