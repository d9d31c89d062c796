#include "strategies/zarr/zarr_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "tests/support/golden.h"

namespace dckpt::zarr_reader_test {
namespace {

using ::testing::HasSubstr;

/// A zarr checkpoint in memory that tests modify.
class Checkpoint {
 public:
  Checkpoint() { write("common.pt", save_torch_file(Value::dict({{"iteration", 7}}))); }

  Checkpoint& array(const std::string& key, const std::string& shape, const std::string& chunks,
                    const std::string& dtype) {
    storage->make_directory(key);
    return write(key + "/.zarray",
                 to_bytes("{\"chunks\":" + chunks + ",\"compressor\":null,\"dtype\":\"" + dtype +
                          "\",\"fill_value\":null,\"filters\":null,\"order\":\"C\",\"shape\":" +
                          shape + ",\"zarr_format\":2}"));
  }

  Checkpoint& object(const std::string& key, const std::string& file, const Value& value) {
    storage->make_directory(key);
    return write(key + "/" + file, save_torch_file(value));
  }

  Checkpoint& write(const std::string& name, const Bytes& content) {
    const auto file = storage->create(name);
    file->append(ByteView(content));
    file->close();
    return *this;
  }

  std::string refusal(ErrorCode code) const {
    try {
      open_zarr(storage);
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "accepted";
  }

  std::shared_ptr<Storage> storage = memory_storage();
};

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

class ZarrGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<CheckpointReader> reader =
      open_zarr(posix_storage(dckpt::testing::golden(GetParam())));
  Value expected = dckpt::testing::golden_expected(GetParam());
};

TEST_P(ZarrGolden, EveryTensorHasItsDigest) {
  const Dict& tensors = expected.at("tensors").as_dict();
  ASSERT_EQ(reader->metadata().tensors.size(), tensors.size());
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const std::string& key = reader->metadata().tensors[tensor].key;
    const Value* const wanted = tensors.find(key);
    ASSERT_NE(wanted, nullptr) << key;
    const Value content = dckpt::testing::describe_content(*reader, tensor);
    EXPECT_EQ(content.at("dtype"), wanted->at("dtype")) << key;
    EXPECT_EQ(content.at("shape"), wanted->at("global_shape")) << key;
    EXPECT_EQ(content.at("sha256"), wanted->at("sha256")) << key;
  }
}

TEST_P(ZarrGolden, ObjectsHaveTheirUniqueKeysAndCanBeRead) {
  std::set<std::string> keys;
  for (std::size_t object = 0; object < reader->metadata().objects.size(); ++object) {
    keys.insert(reader->metadata().objects[object].key);
    EXPECT_NO_THROW(reader->object(object));
    EXPECT_TRUE(reader->check_object(object));
  }
  std::set<std::string> wanted;
  for (const auto& [key, value] : expected.at("objects").as_dict()) wanted.insert(key.as_str());
  EXPECT_EQ(keys, wanted);
}

TEST_P(ZarrGolden, CommonStateHasTheExpectedMembers) {
  const Value common = reader->common_state();
  for (const auto& [key, value] : expected.at("common").as_dict())
    EXPECT_TRUE(common.contains(key)) << key.as_str();
  EXPECT_EQ(common.size(), expected.at("common").size());
  EXPECT_EQ(common.at("iteration"), expected.at("common").at("iteration"));
}

INSTANTIATE_TEST_SUITE_P(Goldens, ZarrGolden,
                         ::testing::Values("mcore-0.14-zarr-tp2pp1dp2",
                                           "mcore-0.14-bucket-space-zarr-tp2pp1dp2"));

TEST(ZarrReader, CutsThePaddingOffEdgeChunks) {
  Checkpoint checkpoint;
  checkpoint.array("w", "[3,3]", "[2,2]", "|u1");
  checkpoint.write("w/0.0", bytes_of({0, 1, 3, 4})).write("w/0.1", bytes_of({2, 99, 5, 99}));
  checkpoint.write("w/1.0", bytes_of({6, 7, 99, 99})).write("w/1.1", bytes_of({8, 99, 99, 99}));
  const auto reader = open_zarr(checkpoint.storage);
  const Tensor whole_tensor = read_box(*reader, 0, whole(reader->metadata().tensors[0].size));
  EXPECT_TRUE(equal(whole_tensor, Tensor::from_bytes(DType::kUInt8, {3, 3},
                                                     bytes_of({0, 1, 2, 3, 4, 5, 6, 7, 8}))));
}

TEST(ZarrReader, ReadsArraysWithoutAxesAndWithoutElements) {
  Checkpoint checkpoint;
  checkpoint.array("scalar", "[]", "[]", "<i4").write("scalar/0", bytes_of({7, 0, 0, 0}));
  checkpoint.array("empty", "[0,4]", "[1,4]", "<f4");
  const auto reader = open_zarr(checkpoint.storage);
  const TensorStorageMetadata* const scalar = reader->metadata().find_tensor("scalar");
  ASSERT_NE(scalar, nullptr);
  EXPECT_EQ(scalar->chunks.size(), 1u);
  EXPECT_TRUE(scalar->size.empty());
  EXPECT_TRUE(reader->metadata().find_tensor("empty")->chunks.empty());
}

TEST(ZarrReader, TakesTheTypeThatAnInterruptedSaveLeavesForBFloat16) {
  Checkpoint checkpoint;
  checkpoint.array("w", "[2]", "[2]", "<V2").write("w/0", bytes_of({0x80, 0x3f, 0x00, 0xc0}));
  EXPECT_EQ(open_zarr(checkpoint.storage)->metadata().tensors[0].properties.dtype,
            DType::kBFloat16);
}

TEST(ZarrReader, IgnoresLocksAndLeftoversButNotATensorNamedLikeALock) {
  Checkpoint checkpoint;
  checkpoint.array("w", "[1]", "[1]", "|u1")
      .write("w/0", bytes_of({1}))
      .write("w/0.abc.partial", bytes_of({1, 2, 3}));
  checkpoint.array("w.sync", "[]", "[]", "|u1");
  checkpoint.array("lonely.sync", "[1]", "[1]", "|u1").write("lonely.sync/0", bytes_of({2}));
  const auto reader = open_zarr(checkpoint.storage);
  EXPECT_EQ(reader->metadata().tensors.size(), 2u);
  EXPECT_NE(reader->metadata().find_tensor("lonely.sync"), nullptr);
}

TEST(ZarrReader, CompletesObjectNamesThatEarlyReleasesCutShort) {
  Checkpoint checkpoint;
  for (int rank = 0; rank < 3; ++rank)
    checkpoint.object("rng", "shard_0." + std::to_string(rank) + "_1.pt", rank);
  const auto reader = open_zarr(checkpoint.storage);
  ASSERT_EQ(reader->metadata().objects.size(), 3u);
  EXPECT_EQ(reader->metadata().objects[2].key, "rng/shard_0.2_1.3");
  EXPECT_EQ(reader->object(2), Value(2));
}

TEST(ZarrReader, RefusesAMissingChunkByName) {
  Checkpoint checkpoint;
  checkpoint.array("w", "[2,2]", "[1,1]", "|u1")
      .write("w/0.0", bytes_of({1}))
      .write("w/0.1", bytes_of({1}))
      .write("w/1.1", bytes_of({1}));
  const std::string message = checkpoint.refusal(ErrorCode::kIncomplete);
  EXPECT_THAT(message, HasSubstr("w/1.0"));
  EXPECT_THAT(message, HasSubstr("save was interrupted"));
}

TEST(ZarrReader, RefusesAGridLargerThanTheDirectoryWithoutWalkingIt) {
  Checkpoint checkpoint;
  checkpoint.array("w", "[2097152,2097152]", "[1,1]", "|u1");
  EXPECT_THAT(checkpoint.refusal(ErrorCode::kIncomplete), HasSubstr("w/0.0"));
}

TEST(ZarrReader, RefusesWhatCannotBelongToTheCheckpoint) {
  EXPECT_THAT(Checkpoint()
                  .array("w", "[2]", "[2]", "<f4")
                  .write("w/0", bytes_of({1}))
                  .refusal(ErrorCode::kCorrupt),
              HasSubstr("take 8"));
  EXPECT_THAT(Checkpoint()
                  .array("w", "[1]", "[1]", "|u1")
                  .write("w/0", bytes_of({1}))
                  .write("w/7", bytes_of({1}))
                  .refusal(ErrorCode::kCorrupt),
              HasSubstr("w/7"));
  EXPECT_THAT(Checkpoint().write("__0_0.distcp", bytes_of({1})).refusal(ErrorCode::kCorrupt),
              HasSubstr("metadata.json says zarr"));
  EXPECT_THAT(Checkpoint().object("rng", "shard_x_y.pt", 1).refusal(ErrorCode::kCorrupt),
              HasSubstr("shard_x_y.pt"));
  EXPECT_THAT(Checkpoint().object("rng", "shard_9_1.pt", 1).refusal(ErrorCode::kCorrupt),
              HasSubstr("shard_9_1.pt"));
  EXPECT_THAT(Checkpoint()
                  .object("rng", "shard_0.0_1.pt", 1)
                  .object("rng", "shard_0.0_1.1.pt", 1)
                  .refusal(ErrorCode::kCorrupt),
              HasSubstr("stored twice"));
}

TEST(ZarrReader, RefusesAnInterruptedSave) {
  Checkpoint without_description;
  without_description.storage->make_directory("w");
  EXPECT_THAT(without_description.write("w/0.0", bytes_of({1})).refusal(ErrorCode::kIncomplete),
              HasSubstr("w/.zarray"));
  Checkpoint without_common;
  without_common.storage->remove_all("common.pt");
  EXPECT_THAT(without_common.refusal(ErrorCode::kIncomplete), HasSubstr("common.pt"));
}

}  // namespace
}  // namespace dckpt::zarr_reader_test
