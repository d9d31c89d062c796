// DCP directories whose items are zstd frames.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "mapping/base/parallel_for.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/dcp/metadata_writer.h"
#include "strategies/storage/buffered_file.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/torch_dist/reader.h"
#include "strategies/torch_dist/writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace dckpt::compressed_items_test {
namespace {

using ::testing::Each;
using testing::error_of;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr const char* kGolden = "dcp-zstd-torch2.15";

/// Delivers 0, 1, 2, … as int32.
class Numbers final : public ItemSource {
 public:
  Bytes object(const WriteItem&) override { return {}; }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    std::vector<std::int32_t> numbers(item.nbytes / 4);
    std::iota(numbers.begin(), numbers.end(), 0);
    sink(std::as_bytes(std::span(numbers)));
  }
};

/// A checkpoint of one compressed tensor, "w".
struct Compressed {
  explicit Compressed(std::int64_t elements) {
    WriteItem item;
    item.key = "w";
    item.properties.dtype = DType::kInt32;
    item.size = {elements};
    item.chunk = whole(item.size);
    item.nbytes = static_cast<std::uint64_t>(elements) * 4;
    Numbers numbers;
    const WrittenItems written =
        write_data_files(*storage, "", 0, {item}, numbers, {.codec = StorageCodec::kZstd});
    place = written.places.front();
    metadata.files = written.files;
    metadata.tensors.push_back(
        {.key = "w", .properties = item.properties, .size = item.size, .chunks = BoxList(1)});
    metadata.tensors[0].chunks.push_back(item.chunk);
    metadata.tensors[0].places.push_back(place);
  }

  std::unique_ptr<CheckpointReader> open() const {
    const MarkerFile marker = marker_of({metadata, nullptr, Compat::kDcp});
    write_small_file(*storage, marker.name, marker.content, false);
    return open_torch_dist(storage);
  }

  std::shared_ptr<Storage> storage = memory_storage();
  StorageInfo place;
  Metadata metadata;
};

TEST(CompressedItems, OfTorchHaveTheirValues) {
  const auto reader = open_torch_dist(posix_storage(testing::golden(kGolden)));
  const Value expected = testing::golden_expected(kGolden);
  const Dict& tensors = expected.at("tensors").as_dict();
  ASSERT_EQ(reader->metadata().tensors.size(), tensors.size());
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const TensorStorageMetadata& entry = reader->metadata().tensors[tensor];
    EXPECT_THAT(entry.places, Each(Field(&StorageInfo::codec, StorageCodec::kZstd)));
    const Value content = testing::describe_content(*reader, tensor);
    const Value& wanted = *tensors.find(entry.key);
    EXPECT_EQ(content.at("shape"), wanted.at("global_shape")) << entry.key;
    EXPECT_EQ(content.at("sha256"), wanted.at("sha256")) << entry.key;
    const auto file = reader->storage().open(reader->metadata().files[entry.places[0].file]);
    EXPECT_TRUE(reader->check_chunk(tensor, 0, *file));
  }
}

TEST(CompressedItems, MetadataKeepTheirCodec) {
  const auto reader = open_torch_dist(posix_storage(testing::golden(kGolden)));
  const Metadata again = read_dcp_metadata(write_dcp_metadata(reader->metadata()));
  for (std::size_t i = 0; i < again.tensors.size(); ++i)
    EXPECT_EQ(again.tensors[i].places, reader->metadata().tensors[i].places);
  EXPECT_EQ(again.objects.front().place.codec, StorageCodec::kZstd);
}

TEST(CompressedItems, AreDecodedOnceForAllPiecesOfAChunk) {
  const Compressed checkpoint(20'000'000);  // is read in five pieces
  ASSERT_LT(checkpoint.place.length, 70'000'000U);
  const auto reader = checkpoint.open();
  const WantedShard wanted{0, 0, whole(Shape{20'000'000}), std::nullopt};
  const auto items = plan_reads(reader->metadata(), {&wanted, 1});
  const Tensor result = Tensor::empty(DType::kInt32, {20'000'000});
  const ReadStats stats = read_tensors(*reader, items, {&result, 1}, {.threads = 2});
  EXPECT_EQ(result.data<const std::int32_t>()[19'999'999], 19'999'999);
  EXPECT_EQ(result.data<const std::int32_t>()[9'876'543], 9'876'543);
  EXPECT_EQ(stats.bytes_unchecked, 0U) << "the CRC of the archive was compared";
  EXPECT_EQ(reader->locate(0, 0, *checkpoint.storage->open("__0_0.distcp")).decoded,
            reader->locate(0, 0, *checkpoint.storage->open("__0_0.distcp")).decoded);
}

TEST(CompressedItems, PartsOfALargeOneAreReadInAnyOrder) {
  const Compressed checkpoint(3'000'000);
  const auto reader = checkpoint.open();
  const ChunkPayload payload = reader->locate(0, 0, *checkpoint.storage->open("__0_0.distcp"));
  ASSERT_NE(payload.decoded, nullptr);
  parallel_for(30, 3, [&](std::size_t i) {
    const std::uint64_t first = (29 - i) * 100'000;
    std::vector<std::int32_t> part(100'000);
    payload.decoded->read(payload.offset + first * 4, std::as_writable_bytes(std::span(part)));
    for (std::size_t k = 0; k < part.size(); ++k)
      ASSERT_EQ(part[k], static_cast<std::int32_t>(first + k));
  });
  EXPECT_THAT(error_of([&] {
                Bytes two(2);
                payload.decoded->read(payload.decoded->size() - 1, two);
              }).what(),
              HasSubstr("cannot read 2 bytes"));
}

TEST(CompressedItems, MoreThanTheTensorHasIsRefused) {
  Compressed checkpoint(4'000'000);
  TensorStorageMetadata& tensor = checkpoint.metadata.tensors[0];
  tensor.size = {10};
  tensor.chunks = BoxList(1);
  tensor.chunks.push_back(whole(Shape{10}));
  const auto reader = checkpoint.open();
  const CheckpointError error = error_of([&] { read_box(*reader, 0, whole(Shape{10})); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("decodes to more than 1,048,616"));
  EXPECT_EQ(error.context().key, "w");
}

TEST(CompressedItems, DamageIsReportedWithKeyAndFile) {
  Compressed checkpoint(1000);
  checkpoint.metadata.tensors[0].places[0].length -= 5;
  const auto reader = checkpoint.open();
  const CheckpointError error = error_of([&] { read_box(*reader, 0, whole(Shape{1000})); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("the zstd frame ends too early"));
  EXPECT_EQ(error.context().key, "w");
  EXPECT_THAT(error.context().file.value_or(""), HasSubstr("__0_0.distcp"));
}

}  // namespace
}  // namespace dckpt::compressed_items_test
