#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/error.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/verify.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::open_torch_model_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

/// A transformers model in two files of torch.save, beside an unrelated file.
class TorchModel : public ::testing::Test {
 protected:
  void SetUp() override {
    write("pytorch_model-00001-of-00002.bin", {{"a.weight", arange({2, 3})}});
    write("pytorch_model-00002-of-00002.bin", {{"b.weight", arange({4})}, {"c", arange({1})}});
    write("training_args.bin", {{"x", arange({1})}});
    put("config.json", "{}");
    list("1", "2", "2");
  }
  void write(const std::string& name, std::initializer_list<Dict::Item> state) const {
    const Bytes bytes = save_torch_file(Value::dict(state));
    put(name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  void put(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  /// Writes the index, which says in which file each tensor is.
  void list(const std::string& a, const std::string& b, const std::string& c) const {
    const auto file = [](const std::string& n) {
      return "\"pytorch_model-0000" + n + "-of-00002.bin\"";
    };
    put("pytorch_model.bin.index.json", R"({"weight_map": {"a.weight": )" + file(a) +
                                            R"(, "b.weight": )" + file(b) + R"(, "c": )" + file(c) +
                                            "}}");
  }
  std::vector<std::string> keys(const std::filesystem::path& path) const {
    const auto reader = open_checkpoint(path);
    std::vector<std::string> keys;
    for (const auto& tensor : reader->metadata().tensors) keys.push_back(tensor.key);
    return keys;
  }

  TempDir folder_;
};

TEST_F(TorchModel, FilesOfItsIndexAreOneCheckpoint) {
  EXPECT_THAT(keys(folder_.path()), ElementsAre("a.weight", "b.weight", "c"));
  EXPECT_THAT(keys(folder_ / "pytorch_model.bin.index.json"),
              ElementsAre("a.weight", "b.weight", "c"));
  EXPECT_THAT(keys(folder_ / "pytorch_model-00001-of-00002.bin"), ElementsAre("a.weight"));
  const VerifyReport report = verify(*open_checkpoint(folder_.path()), {.deep = true});
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.chunks_without_checksum, 0u);
}

TEST_F(TorchModel, ItBecomesSafetensorsWithItsConfigAndDcp) {
  const TempDir results;
  convert(folder_.path(), results / "hf", {.target = {.strategy = "hf"}});
  EXPECT_TRUE(std::filesystem::exists(results / "hf" / "config.json"));
  convert(folder_.path(), results / "dcp", {.target = {.strategy = "dcp"}});
  for (const char* const name : {"hf", "dcp"}) {
    const DiffReport found =
        diff(*open_checkpoint(folder_.path()), *open_checkpoint(results / name));
    EXPECT_TRUE(found.differences.empty()) << name;
  }
}

TEST_F(TorchModel, WhatIsMissingOrElsewhereIsAnError) {
  const auto refusal = [&] { return error_of([&] { (void)open_checkpoint(folder_.path()); }); };
  list("1", "2", "1");
  EXPECT_THAT(refusal().what(), HasSubstr("the index says that the tensor is in 'pytorch_model-"
                                          "00001-of-00002.bin', but it is in"));
  list("1", "2", "2");
  write("pytorch_model-00001-of-00002.bin", {{"a.weight", arange({2, 3})}, {"d", arange({1})}});
  EXPECT_THAT(refusal().what(), HasSubstr("but not in the index"));
  std::filesystem::remove(folder_ / "pytorch_model-00001-of-00002.bin");
  EXPECT_EQ(refusal().code(), ErrorCode::kIncomplete);
  std::filesystem::remove(folder_ / "pytorch_model.bin.index.json");
  EXPECT_THAT(refusal().what(), HasSubstr("numbered up to 2, but number 1 is missing"));
}

TEST_F(TorchModel, SafetensorsAndOtherCheckpointsComeFirst) {
  const TempDir results;
  convert(folder_.path(), results / "hf", {.target = {.strategy = "hf"}});
  std::filesystem::copy(results / "hf" / "model.safetensors", folder_ / "model.safetensors");
  EXPECT_EQ(open_checkpoint(folder_.path())->info().format, "safetensors");
  convert(folder_.path(), results / "dcp", {.target = {.strategy = "dcp"}});
  std::filesystem::copy(folder_ / "pytorch_model-00001-of-00002.bin",
                        results / "dcp" / "pytorch_model.bin");
  EXPECT_EQ(open_checkpoint(results / "dcp")->info().format, "dcp");
}

}  // namespace
}  // namespace dckpt::open_torch_model_test
