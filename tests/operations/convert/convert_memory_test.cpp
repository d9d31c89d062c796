// The memory that the kernel reports for conversions several times larger than their limit.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "mapping/base/text.h"
#include "operations/convert/convert.h"
#include "strategies/formats/safetensors/header.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "tests/support/child_process.h"
#include "tests/support/process_usage.h"
#include "tests/support/temp_dir.h"

namespace dckpt::convert_memory_test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kLimit = 32 * kMiB;
constexpr std::uint64_t kOthers = 12 * kMiB;  // code, stacks, metadata, open files, the map

/// Returns the largest resident size of this process, in bytes.
std::uint64_t resident_peak() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t value = 0;
    if (word == "VmHWM:" && status >> value) return value << 10;
  }
  return 0;
}

class ConvertMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::memory_in_use() == 0) GTEST_SKIP() << "AddressSanitizer needs more";
  }

  fs::path at(const std::string& name) const { return directory_ / name; }

  /// Makes a GPT-2 of zeros, 200 MiB, of which the file system stores nothing.
  void make_model() const {
    constexpr std::int64_t kHidden = 1024;
    SafetensorsHeader header{.tensors = {}, .metadata = {}};
    const auto add = [&](const std::string& key, Shape shape) {
      header.tensors.push_back({"transformer." + key, DType::kFloat32, std::move(shape)});
    };
    add("wte.weight", {1024, kHidden});
    add("wpe.weight", {64, kHidden});
    for (int layer = 0; layer < 4; ++layer) {
      const std::string prefix = "h." + std::to_string(layer) + ".";
      for (const char* const norm : {"ln_1", "ln_2"}) {
        add(prefix + norm + ".weight", {kHidden});
        add(prefix + norm + ".bias", {kHidden});
      }
      const auto linear = [&](const std::string& key, std::int64_t in, std::int64_t out) {
        add(prefix + key + ".weight", {in, out});
        add(prefix + key + ".bias", {out});
      };
      linear("attn.c_attn", kHidden, 3 * kHidden);
      linear("attn.c_proj", kHidden, kHidden);
      linear("mlp.c_fc", kHidden, 4 * kHidden);
      linear("mlp.c_proj", 4 * kHidden, kHidden);
    }
    add("ln_f.weight", {kHidden});
    add("ln_f.bias", {kHidden});
    std::ranges::sort(header.tensors, precedes_in_safetensors);
    std::uint64_t size = 0;
    for (const SafetensorsTensor& tensor : header.tensors)
      size += static_cast<std::uint64_t>(numel(tensor.shape)) * 4;
    const Bytes bytes = write_safetensors_header(header);
    fs::create_directory(at("hf"));
    const fs::path file = at("hf") / "model.safetensors";
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    fs::resize_file(file, bytes.size() + size);
    std::ofstream(at("hf") / "config.json")
        << R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 1024,
               "n_head": 16, "n_layer": 4, "vocab_size": 1024, "tie_word_embeddings": true})";
  }

  /// Returns the most that a conversion adds to the resident size of a process.
  std::uint64_t peak_of(const std::string& from, const std::string& to,
                        ConvertOptions options) const {
    options.limits.memory = kLimit;
    options.limits.io.threads = 4;
    options.limits.io.fsync = false;
    testing::ChildProcess process([&] {
      std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak to the present size
      const std::uint64_t before = resident_peak();
      convert(at(from), at(to), options);
      std::ofstream(at("peak")) << resident_peak() - before;
    });
    EXPECT_EQ(process.wait(), 0);
    std::uint64_t peak = 0;
    std::ifstream(at("peak")) >> peak;
    return peak;
  }

  TempDir directory_;
};

TEST_F(ConvertMemory, StaysWithinTheLimitWhateverIsConvertedIntoWhat) {
  make_model();
  const OwnOptions zstd{{"compression", "zstd"}};
  const OwnOptions ranks{{"pipeline_model_parallel_size", "2"}, {"transformer_impl", "local"}};
  const KeyMapOptions map{.name = "gpt2", .set = {"num_attention_heads=16", "vocab_size=1024"}};
  const auto expect_within = [&](const std::string& from, const std::string& to,
                                 const ConvertOptions& options) {
    const std::uint64_t peak = peak_of(from, to, options);
    EXPECT_LT(peak, kLimit + kOthers) << from << " to " << to;
    EXPECT_GT(peak, kMiB) << "it is seen";
  };
  expect_within("hf", "torch_dist", {.target = {.strategy = "torch_dist", .ranks = 3}});
  expect_within("torch_dist", "back", {.target = {.strategy = "hf"}});
  expect_within("torch_dist", "other_ranks", {.target = {.ranks = 2}});
  expect_within("hf", "zstd", {.target = {.strategy = "dcp", .options = zstd}});
  expect_within("zstd", "from_zstd", {.target = {.strategy = "torch_dist", .ranks = 2}});
  expect_within("hf", "megatron", {.source = {.map = map}, .target = {.strategy = "torch_dist"}});
  expect_within("megatron", "mapped_back", {.source = {.map = map}, .target = {.strategy = "hf"}});
  expect_within("megatron", "ranks", {.target = {.strategy = "torch", .options = ranks}});
  expect_within("ranks", "joined", {.target = {.strategy = "torch_dist"}});
}

/// The two copies are a value in memory and its pickle; objects have no other copies.
TEST_F(ConvertMemory, ALargeItemIsThereTwice) {
  constexpr std::uint64_t kItem = 64 * kMiB;
  fs::create_directory(at("raw"));
  std::ofstream(at("raw") / "step_0.pt", std::ios::binary) << as_text(save_torch_file(Value(1)));
  std::ofstream(at("raw") / "blob_0.bin");
  fs::resize_file(at("raw") / "blob_0.bin", kItem);
  EXPECT_LT(peak_of("raw", "dcp", {.target = {.strategy = "dcp"}}), 2 * kItem + kOthers);
  EXPECT_LT(peak_of("dcp", "copy", {.target = {.strategy = "dcp"}}), 2 * kItem + kOthers);
  EXPECT_LT(peak_of("dcp", "torch_dist", {.target = {.strategy = "torch_dist"}}),
            3 * kItem + kOthers);
  EXPECT_GT(fs::file_size(at("copy") / "__0_0.distcp"), kItem);
}

}  // namespace
}  // namespace dckpt::convert_memory_test
