#include "strategies/safetensors/safetensors_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "mapping/base/error.h"
#include "strategies/formats/safetensors/header.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::safetensors_reader_test {
namespace {

using dckpt::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A folder in memory that tests modify. Elements are zeros.
class Folder {
 public:
  Folder& file(const std::string& name, const std::vector<SafetensorsTensor>& tensors,
               const std::string& sharding = {}) {
    SafetensorsHeader header{.tensors = tensors, .metadata = {}};
    if (!sharding.empty()) header.metadata.emplace_back("DCP_SHARDING_INFO", sharding);
    Bytes bytes = write_safetensors_header(header);
    for (const SafetensorsTensor& tensor : tensors) bytes.resize(bytes.size() + tensor.nbytes());
    return write(name, bytes);
  }

  /// Writes an index with the weight map {"w": FILE, …}.
  Folder& index(const std::string& weight_map) {
    return write("model.safetensors.index.json",
                 to_bytes(R"({"metadata": {}, "weight_map": )" + weight_map + "}"));
  }

  Folder& write(const std::string& name, const Bytes& content) {
    const auto file = storage->create(name);
    file->append(ByteView(content));
    file->close();
    return *this;
  }

  std::string refusal(ErrorCode code, const std::optional<std::string>& file = {}) const {
    const CheckpointError error = error_of([&] { open_safetensors(storage, file); });
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }

  std::shared_ptr<Storage> storage = memory_storage();
};

SafetensorsTensor tensor(const std::string& key, const Shape& shape = {2}) {
  return {key, DType::kFloat32, shape};
}

TEST(SafetensorsReader, AnAdapterBesideAModelIsNotPartOfIt) {
  Folder folder;
  folder.file("model.safetensors", {tensor("w")})
      .file("adapter_model.safetensors", {tensor("base_model.model.w.lora_A.weight")})
      .write("adapter_config.json", to_bytes("{}"));
  const auto model = open_safetensors(folder.storage);
  ASSERT_EQ(model->metadata().tensors.size(), 1U);
  EXPECT_EQ(model->metadata().tensors[0].key, "w");
  EXPECT_THAT(model->info().producer, HasSubstr("with an adapter beside the model"));
  EXPECT_EQ(
      open_safetensors(folder.storage, "adapter_model.safetensors")->metadata().tensors[0].key,
      "base_model.model.w.lora_A.weight");
}

TEST(SafetensorsReader, AnAdapterAloneIsReadAsSuch) {
  Folder folder;
  folder.file("adapter_model.safetensors", {tensor("base_model.model.w.lora_A.weight")})
      .write("adapter_config.json", to_bytes("{}"));
  const auto adapter = open_safetensors(folder.storage);
  EXPECT_EQ(adapter->metadata().tensors.size(), 1U);
  EXPECT_EQ(adapter->info().producer, "PEFT");
}

class SafetensorsGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(SafetensorsGolden, EveryTensorHasItsDigest) {
  const auto reader = open_safetensors(posix_storage(dckpt::testing::golden(GetParam())));
  const Value expected = dckpt::testing::golden_expected(GetParam()).at("tensors");
  ASSERT_EQ(reader->metadata().tensors.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string& key = reader->metadata().tensors[i].key;
    const Value found = dckpt::testing::describe_content(*reader, i);
    EXPECT_EQ(found.at("sha256"), expected.at(key).at("sha256")) << key;
    EXPECT_EQ(found.at("dtype"), expected.at(key).at("dtype")) << key;
    EXPECT_EQ(found.at("shape"), expected.at(key).at("global_shape")) << key;
  }
  EXPECT_TRUE(reader->common_state().is_none());
}

INSTANTIATE_TEST_SUITE_P(All, SafetensorsGolden,
                         ::testing::Values("dcp-hf-safetensors", "dcp-hf-safetensors-sharded",
                                           "dcp-hf-safetensors-consolidated-torch2.15",
                                           "dcp-hf-safetensors-sharded-torch2.15",
                                           "tc-0.1-hf-consolidated"));

TEST(SafetensorsReader, PartsOfDcpAreChunksOfOneTensor) {
  const auto reader =
      open_safetensors(posix_storage(dckpt::testing::golden("dcp-hf-safetensors-sharded")));
  const TensorStorageMetadata* const found = reader->metadata().find_tensor("a.weight");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->size, (Shape{14, 10}));
  EXPECT_EQ(found->chunks[1], (Box{{7, 0}, {7, 10}}));
  EXPECT_EQ(reader->info().producer, "PyTorch DCP");
}

TEST(SafetensorsReader, AnIndexNamesWhatIsRead) {
  Folder folder;
  folder.file("model-00001-of-00002.safetensors", {tensor("a")})
      .file("model-00002-of-00002.safetensors", {tensor("b", {})})
      .file("consolidated.safetensors", {tensor("a"), tensor("b", {})})
      .write("config.json", to_bytes("{}"))
      .index(
          R"({"b": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors"})");
  for (const std::optional<std::string>& file :
       {std::optional<std::string>(), std::optional<std::string>("model.safetensors.index.json")}) {
    const auto reader = open_safetensors(folder.storage, file);
    EXPECT_EQ(reader->metadata().files.size(), 2U);
    EXPECT_EQ(reader->metadata().tensors.size(), 2U);
    EXPECT_THAT(reader->info().index_files, ElementsAre("model.safetensors.index.json"));
    EXPECT_EQ(reader->info().producer, "Hugging Face");
    EXPECT_TRUE(reader->info().conventions.model_folder);
  }
  const auto alone = open_safetensors(folder.storage, "consolidated.safetensors");
  EXPECT_THAT(alone->metadata().files, ElementsAre("consolidated.safetensors"));
  EXPECT_FALSE(alone->info().conventions.model_folder);
}

TEST(SafetensorsReader, MissingFilesAreNamedWithTheirKeys) {
  Folder folder;
  folder.file("1.safetensors", {tensor("a")})
      .index(R"({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"})");
  EXPECT_THAT(folder.refusal(ErrorCode::kIncomplete),
              ::testing::AllOf(HasSubstr("'2.safetensors'"), HasSubstr("2 of its 3 tensors"),
                               HasSubstr("'b', 'c'")));
  Folder counted;
  counted.file("model-00001-of-00003.safetensors", {tensor("a")})
      .file("model-00003-of-00003.safetensors", {tensor("c")});
  EXPECT_THAT(counted.refusal(ErrorCode::kIncomplete), HasSubstr("number 2 is missing"));
}

TEST(SafetensorsReader, AnIndexOfAnotherModelIsRefused) {
  Folder more;
  more.file("1.safetensors", {tensor("a"), tensor("b")}).index(R"({"a": "1.safetensors"})");
  EXPECT_THAT(more.refusal(ErrorCode::kCorrupt), HasSubstr("not in the index"));
  Folder less;
  less.file("1.safetensors", {tensor("a")})
      .index(R"({"a": "1.safetensors", "b": "1.safetensors"})");
  EXPECT_THAT(less.refusal(ErrorCode::kCorrupt), HasSubstr("that the tensor is here"));
  Folder moved;
  moved.file("1.safetensors", {tensor("a")})
      .file("2.safetensors", {tensor("b"), tensor("c")})
      .index(R"({"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"})");
  EXPECT_THAT(moved.refusal(ErrorCode::kCorrupt), HasSubstr("according to the index in"));
  Folder outside;
  outside.index(R"({"a": "../1.safetensors"})");
  outside.refusal(ErrorCode::kCorrupt);
}

TEST(SafetensorsReader, FilesWithoutAnIndexBelongTogether) {
  Folder folder;
  folder.file("a.safetensors", {tensor("a")}).file("b.safetensors", {tensor("b")});
  EXPECT_EQ(open_safetensors(folder.storage)->metadata().tensors.size(), 2U);
  folder.file("c.safetensors", {tensor("a")});
  EXPECT_THAT(folder.refusal(ErrorCode::kCorrupt), HasSubstr("name the file of one"));
  Folder indexes;
  indexes.write("a.safetensors.index.json", to_bytes(R"({"weight_map": {}})"))
      .write("b.safetensors.index.json", to_bytes(R"({"weight_map": {}})"));
  EXPECT_THAT(indexes.refusal(ErrorCode::kMismatch), HasSubstr("several models"));
}

TEST(SafetensorsReader, PartsMustMakeUpTheirTensor) {
  const auto at = [](const std::string& offset) {
    return R"({"w": {"saved_offsets": [)" + offset + "]}}";
  };
  Folder hole;
  hole.file("1.safetensors", {tensor("w")}, at("0")).file("2.safetensors", {tensor("w")}, at("3"));
  EXPECT_THAT(hole.refusal(ErrorCode::kIncomplete), HasSubstr("do not make it up"));
  EXPECT_THAT(hole.refusal(ErrorCode::kIncomplete, "2.safetensors"), HasSubstr("folder"));
  Folder twice;
  twice.file("1.safetensors", {tensor("w")}, at("0")).file("2.safetensors", {tensor("w")}, at("1"));
  twice.refusal(ErrorCode::kCorrupt);
  Folder far;
  far.file("1.safetensors", {tensor("w")}, at("9223372036854775807"));
  far.refusal(ErrorCode::kCorrupt);
  Folder types;
  types.file("1.safetensors", {tensor("w")}, at("0"))
      .file("2.safetensors", {{"w", DType::kInt32, {2}}}, at("2"));
  EXPECT_THAT(types.refusal(ErrorCode::kCorrupt), HasSubstr("int32"));
  Folder axes;
  axes.file("1.safetensors", {tensor("w", {1, 1})}, at("0"));
  axes.refusal(ErrorCode::kCorrupt);
  Folder unknown;
  unknown.file("1.safetensors", {tensor("v")}, at("0"));
  EXPECT_THAT(unknown.refusal(ErrorCode::kCorrupt), HasSubstr("where the tensor belongs"));
}

/// Two ranks have halves of w; only the second one has v.
TEST(SafetensorsReader, FilesOfARankThatAreMissingAreAnErrorOrADoubt) {
  struct Case {
    std::string name;
    bool first, second;  ///< which ranks' files are there
    bool states_shapes;
    enum class Outcome { kSound, kDoubtful, kIncomplete } outcome;
  };
  using enum Case::Outcome;
  for (const Case& one :
       {Case{"all, with shapes", true, true, true, kSound},
        Case{"the last part is missing, with shapes", true, false, true, kIncomplete},
        Case{"the first part is missing, with shapes", false, true, true, kIncomplete},
        Case{"all, without shapes", true, true, false, kDoubtful},
        Case{"the last part is missing, without shapes", true, false, false, kDoubtful},
        Case{"the first part is missing, without shapes", false, true, false, kIncomplete}}) {
    SCOPED_TRACE(one.name);
    const auto part = [&](const std::string& offset, const std::string& shape) {
      return R"({"saved_offsets": [)" + offset + "]" +
             (one.states_shapes ? R"(, "global_shape": [)" + shape + "]}" : "}");
    };
    Folder folder;
    if (one.first)
      folder.file("shard-00001-model-00001-of-00001.safetensors", {tensor("w")},
                  R"({"w": )" + part("0", "4") + "}");
    if (one.second)
      folder.file("shard-00002-model-00001-of-00001.safetensors", {tensor("v"), tensor("w")},
                  R"({"w": )" + part("2", "4") + R"(, "v": )" + part("0", "2") + "}");
    if (one.outcome == kIncomplete) {
      EXPECT_THAT(folder.refusal(ErrorCode::kIncomplete), HasSubstr("do not make it up"));
      continue;
    }
    const Findings findings = open_safetensors(folder.storage)->info().findings;
    ASSERT_EQ(findings.size(), one.outcome == kDoubtful ? 1U : 0U);
    if (!findings.empty()) {
      EXPECT_EQ(findings[0].code, FindingCode::kFilesMayBeMissing);
      EXPECT_EQ(findings[0].severity, Severity::kWarning);
    }
  }
  Folder contradicting;
  contradicting
      .file("1.safetensors", {tensor("w")}, R"({"w": {"saved_offsets": [0], "global_shape": [4]}})")
      .file("2.safetensors", {tensor("w")},
            R"({"w": {"saved_offsets": [2], "global_shape": [5]}})");
  EXPECT_THAT(contradicting.refusal(ErrorCode::kCorrupt), HasSubstr("(5,)"));
  Folder outside;
  outside.file("1.safetensors", {tensor("w")},
               R"({"w": {"saved_offsets": [2], "global_shape": [3]}})");
  EXPECT_THAT(outside.refusal(ErrorCode::kCorrupt), HasSubstr("the offsets"));
}

TEST(SafetensorsReader, FilesOfTheHubsCacheAreLinksToBlobs) {
  namespace fs = std::filesystem;
  TempDir cache;
  const fs::path snapshot = cache.path() / "snapshots/main";
  fs::create_directories(snapshot);
  fs::create_directories(cache.path() / "blobs");
  const fs::path golden = dckpt::testing::golden("dcp-hf-safetensors");
  for (const char* const name :
       {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json"}) {
    fs::copy_file(golden / name, cache.path() / "blobs" / (std::string("blob-") + name));
    fs::create_symlink(fs::path("../../blobs") / (std::string("blob-") + name), snapshot / name);
  }
  const auto reader = open_safetensors(posix_storage(snapshot));
  EXPECT_EQ(reader->metadata().tensors.size(), 4U);
  EXPECT_NO_THROW(dckpt::testing::describe_content(*reader, 3));
  fs::remove(snapshot / "model-00002-of-00002.safetensors");
  fs::create_symlink(golden / "model-00002-of-00002.safetensors",
                     snapshot / "model-00002-of-00002.safetensors");
  EXPECT_EQ(error_of([&] { open_safetensors(posix_storage(snapshot)); }).code(),
            ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace dckpt::safetensors_reader_test
