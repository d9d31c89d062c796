#include "strategies/safetensors/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "configs/policy/policy.h"
#include "mapping/base/error.h"
#include "mapping/planning/save/global_plan.h"
#include "strategies/formats/safetensors/header.h"
#include "strategies/registry/registry.h"
#include "strategies/safetensors/safetensors_reader.h"
#include "strategies/storage/buffered_file.h"
#include "strategies/storage/memory.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/support/expect_error.h"

namespace dckpt::writer_test {
namespace {

using dckpt::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

WriteItem item(const std::string& key, DType dtype, const Shape& shape) {
  WriteItem item;
  item.key = key;
  item.nbytes = static_cast<std::uint64_t>(numel(shape)) * item_size(dtype);
  item.size = shape;
  item.chunk = whole(shape);
  item.properties.dtype = dtype;
  return item;
}

/// Delivers items of which every byte is the first letter of the key.
class Letters final : public ItemSource {
 public:
  Bytes object(const WriteItem&) override { return {}; }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    for (std::uint64_t i = 0; i < item.nbytes; ++i) sink(as_bytes(item.key).first(1));
  }
};

/// Writes plans of several ranks as a save does.
std::unique_ptr<CheckpointReader> written(const std::vector<SavePlan>& ranks,
                                          const SafetensorsOptions& options,
                                          const std::shared_ptr<Storage>& storage) {
  const GlobalPlan plan = plan_global_save(ranks);
  std::vector<std::vector<StorageInfo>> places;
  std::vector<std::vector<std::string>> files;
  Letters letters;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    WrittenItems written =
        write_safetensors(*storage, "", static_cast<int>(rank), ranks[rank], letters, options);
    const WrittenItems measured =
        measure_safetensors_files(static_cast<int>(rank), ranks[rank], options);
    EXPECT_EQ(measured.places, written.places);
    EXPECT_EQ(measured.files, written.files);
    places.push_back(std::move(written.places));
    files.push_back(std::move(written.files));
  }
  const Metadata metadata = written_metadata(plan, places, files);
  name_safetensors(*storage, "", metadata, options.names);
  if (const auto marker = safetensors_marker(metadata, true, options.names))
    write_small_file(*storage, marker->name, marker->content, false);
  return open_safetensors(storage);
}

std::vector<std::string> names(const Storage& storage) {
  std::vector<std::string> names;
  for (const FileInfo& entry : storage.list("")) names.push_back(entry.name);
  return names;
}

TEST(SafetensorsWriter, OneFileHasNoIndex) {
  const auto storage = memory_storage();
  const auto reader = written({{item("a", DType::kBFloat16, {3}), item("b", DType::kFloat64, {}),
                                item("c", DType::kInt8, {0, 4})}},
                              {}, storage);
  EXPECT_THAT(names(*storage), ElementsAre("model.safetensors"));
  const std::vector<TensorStorageMetadata>& tensors = reader->metadata().tensors;
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors[0].key, "b");  // larger elements first
  EXPECT_EQ(tensors[0].places.front().offset % 8, 0U);
  EXPECT_EQ(tensors[2].key, "c");
  const Tensor a = read_box(*reader, 1, whole(Shape{3}));
  EXPECT_EQ(as_text(a.bytes()), "aaaaaa");
  const SafetensorsHeader header =
      read_safetensors_header(*storage->open("model.safetensors")).header;
  ASSERT_NE(header.find_metadata("format"), nullptr);
  EXPECT_EQ(*header.find_metadata("format"), "pt");
}

TEST(SafetensorsWriter, FilesOfAllRanksAreCounted) {
  const auto storage = memory_storage();
  const Shape kilobyte{256};
  const auto reader =
      written({{item("a", DType::kFloat32, kilobyte), item("b", DType::kFloat32, kilobyte),
                item("c", DType::kFloat32, {1})},
               {},
               {item("d", DType::kFloat32, {2, 256})}},
              {.max_file_size = 2048}, storage);
  EXPECT_THAT(names(*storage),
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  EXPECT_EQ(reader->metadata().tensors.size(), 4U);
  const auto file = storage->open("model.safetensors.index.json");
  EXPECT_THAT(std::string(as_text(read_file(*file, 4096))),
              ::testing::AllOf(HasSubstr("\"total_size\": 4100\n"),
                               HasSubstr("\"c\": \"model-00002-of-00003.safetensors\"")));
}

TEST(SafetensorsWriter, AdaptersHaveTheirOwnName) {
  const auto storage = memory_storage();
  written({{item("a", DType::kFloat32, {2})}}, {.names = SafetensorsNames::kAdapter}, storage);
  EXPECT_THAT(names(*storage), ElementsAre("adapter_model.safetensors"));
}

TEST(SafetensorsWriter, NothingIsAModelOfNothing) {
  const auto storage = memory_storage();
  EXPECT_TRUE(written({{}, {}}, {}, storage)->metadata().tensors.empty());
  EXPECT_THAT(names(*storage), ElementsAre("model.safetensors"));
}

TEST(SafetensorsWriter, RefusesBeforeItWrites) {
  const auto storage = memory_storage();
  WriteItem part = item("w", DType::kFloat32, {4});
  part.chunk.sizes = {2};
  Letters letters;
  for (const WriteItem& wrong : {part, item("w", DType::kComplex128, {1})}) {
    const CheckpointError error = error_of([&] {
      write_safetensors(*storage, "", 0, {item("a", DType::kInt8, {1}), wrong}, letters, {});
    });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.context().key, "w");
  }
  EXPECT_TRUE(names(*storage).empty());
}

TEST(SafetensorsWriter, OptionsWithoutEffectAreRefused) {
  const auto problem = [](const std::string& save) {
    return std::string(error_of([&] {
                         make_save_strategy(Policy::from_text("version: 1\nsave: " + save).save);
                       }).what());
  };
  EXPECT_THAT(problem("{backend: {name: hf}, io: {page_aligned: true}}"),
              HasSubstr("page_aligned"));
  EXPECT_THAT(problem("{backend: {name: hf}, io: {files_per_rank: 2}}"),
              HasSubstr("max_file_size"));
  EXPECT_THAT(problem("{backend: {name: hf, options: {metadata: {format: tf}}}}"),
              HasSubstr("a name that the format does not use"));
  EXPECT_THAT(problem("{backend: {name: hf, options: {metadata: {a: [b]}}}}"),
              HasSubstr("metadata.a"));
  EXPECT_THAT(problem("{backend: {name: hf, options: {max_file_size: 1}}}"),
              HasSubstr("max_file_size"));
  EXPECT_THAT(problem("{backend: {name: hf, options: {max_file: 1GiB}}}"), HasSubstr("max_file"));
}

}  // namespace
}  // namespace dckpt::writer_test
