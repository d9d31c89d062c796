#include "strategies/torch_checkpointing/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::reader_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::shared_ptr<Storage> files(std::initializer_list<std::pair<std::string, Bytes>> contents) {
  const auto storage = memory_storage();
  for (const auto& [name, content] : contents) {
    if (name.find('/') != std::string::npos)
      storage->make_directory(name.substr(0, name.find('/')));
    const auto file = storage->create(name);
    file->append(content);
    file->close();
  }
  return storage;
}

Bytes pt(const Value& value) {
  return save_torch_file(value);
}

std::vector<std::string> objects_of(const CheckpointReader& reader) {
  std::vector<std::string> keys;
  for (const BytesStorageMetadata& object : reader.metadata().objects) keys.push_back(object.key);
  return keys;
}

/// Returns the golden without some of its files.
std::shared_ptr<Storage> golden_without(const std::string& name,
                                        const std::vector<std::string>& left_out) {
  const auto from = posix_storage(testing::golden(name));
  const auto to = memory_storage();
  for (const FileInfo& entry : from->list("")) {
    if (std::ranges::find(left_out, entry.name) != left_out.end()) continue;
    const auto file = to->create(entry.name);
    file->append(read_file(*from->open(entry.name), UINT64_MAX));
    file->close();
  }
  return to;
}

TEST(TorchCheckpointing, OneRankNeedsNoIndex) {
  const auto reader = open_torch_checkpointing(
      files({{"model_0.pt", pt(Value::dict({{"w", arange({2})}, {"n", Value::tuple({1, 2})}}))},
             {"step_0.pt", pt(7)},
             {"notes.txt", Bytes(3)}}));
  EXPECT_THAT(objects_of(*reader), UnorderedElementsAre("model.w", "model.n", "step"));
  EXPECT_EQ(reader->object(2).as_int(), 7);
  EXPECT_TRUE(reader->check_object(2));
}

TEST(TorchCheckpointing, ItemsOfOtherForms) {
  const auto reader =
      open_torch_checkpointing(files({{"a_0.pt", pt(1)},
                                      {"config_0.json", to_bytes(R"({"lr": 0.5, "names": ["a"]})")},
                                      {"blobs/0.bin", to_bytes("xyz")},
                                      {"rank_0/extra.json", to_bytes("[1]")}}));
  EXPECT_THAT(objects_of(*reader),
              UnorderedElementsAre("a", "blobs", "config.lr", "config.names", "extra"));
  EXPECT_EQ(reader->object(1).as_bytes(), to_bytes("xyz"));
}

TEST(TorchCheckpointing, DTensorsDescribeThemselvesWhereTheIndexIsMissing) {
  for (const char* name : {"tc-0.1-async", "tc-0.1-native-2d"}) {
    const auto reader = open_torch_checkpointing(golden_without(name, {"metadata.pkl"}));
    const Value expected = testing::golden_expected(name);
    std::size_t tensors = 0;
    for (std::size_t i = 0; i < reader->metadata().tensors.size(); ++i) {
      const std::string& key = reader->metadata().tensors[i].key;
      const Value& wanted = expected.at("tensors").at(key);
      EXPECT_EQ(testing::describe_content(*reader, i).at("sha256"), wanted.at("sha256")) << key;
      ++tensors;
    }
    EXPECT_GT(tensors, 20U);
    EXPECT_EQ(tensors + reader->metadata().objects.size(),
              expected.at("tensors").size() + expected.at("objects").size())
        << "plain tensors are objects";
  }
}

TEST(TorchCheckpointing, AMissingFileIsNamed) {
  const CheckpointError error =
      error_of([] { open_torch_checkpointing(golden_without("tc-0.1-async", {"model_1.pt"})); });
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.what(), HasSubstr("model_1.pt"));
  EXPECT_TRUE(error.context().key.value_or("").starts_with("model."));
  const CheckpointError step =
      error_of([] { open_torch_checkpointing(golden_without("tc-0.1-async", {"step_1.pt"})); });
  EXPECT_THAT(step.what(), HasSubstr("none of rank 1"));
}

TEST(TorchCheckpointing, FilesOfOtherRanksAreRefused) {
  const auto storage = golden_without("tc-0.1-async", {"model_1.pt"});
  const auto file = storage->create("model_1.pt");
  file->append(read_file(*storage->open("model_0.pt"), UINT64_MAX));
  file->close();
  const CheckpointError copy = error_of([&] { open_torch_checkpointing(storage); });
  EXPECT_EQ(copy.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(copy.what(),
              HasSubstr("rank 1 should hold a part of dtype float32 and shape (4, 10)"));
  const auto other = golden_without("tc-0.1-async", {"optimizer_1.pt"});
  const auto lies = other->create("optimizer_1.pt");
  lies->append(pt(Value::dict({{"state", Value::dict({})}})));
  lies->close();
  const CheckpointError error = error_of([&] { open_torch_checkpointing(other); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("should hold a part of the tensor, but has nothing there"));
}

TEST(TorchCheckpointing, ATemporaryDirectoryIsAnUnfinishedSave) {
  const TempDir root;
  std::filesystem::create_directory(root.path() / "tmp_step_5");
  const CheckpointError error =
      error_of([&] { open_torch_checkpointing(posix_storage(root.path() / "tmp_step_5")); });
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.what(), HasSubstr("before it renames the directory"));
}

TEST(TorchCheckpointing, TwoValuesWithOneKeyAreRefused) {
  const CheckpointError error = error_of([] {
    open_torch_checkpointing(
        files({{"m_0.pt", pt(Value::dict({{"a.b", 1}, {"a", Value::dict({{"b", 2}})}}))}}));
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.context().key, "m.a.b");
}

}  // namespace
}  // namespace dckpt::reader_test
