#include "operations/inspect/digest.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "dist_checkpointing/open/open.h"
#include "operations/convert/convert.h"

#include "mapping/base/hash.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::digest_test {
namespace {

using testing::counting;
using testing::FakeReader;

// hashlib.sha256(numpy.arange(24, dtype="<i4").tobytes()).hexdigest()
constexpr const char* kCounting24 =
    "a26f2589bc817e205aed8ed29161a2538dbe40952ed97c98974e90b4b056d4b4";

TEST(Digest, DoesNotDependOnShardingOrPieces) {
  FakeReader rows;
  rows.tensor("w", DType::kInt32, {4, 6}, counting<std::int32_t>(24),
              {{{0, 0}, {1, 6}}, {{1, 0}, {3, 6}}})
      .write();
  FakeReader columns;
  columns
      .tensor("w", DType::kInt32, {4, 6}, counting<std::int32_t>(24),
              {{{0, 4}, {4, 2}}, {{0, 0}, {4, 4}}})
      .write();
  const Digests whole = digest(rows);
  const Digests pieces = digest(columns, {.threads = 1, .memory = 8});
  EXPECT_EQ(whole.tensors.at(0).sha256, kCounting24);
  EXPECT_EQ(pieces.tensors.at(0).sha256, kCounting24);
  EXPECT_TRUE(equal(whole.tensors[0].shape, Shape{4, 6}));
}

TEST(Digest, KeepsTheOrderOfTheMetadataAndTheChosenKeys) {
  FakeReader reader;
  for (const char* const key : {"b", "a", "optimizer.a", "c"})
    reader.tensor(key, DType::kInt32, {2}, counting<std::int32_t>(2));
  reader.object("rng/shard_0_1", 1).write();
  const Digests digests = digest(reader, {.keys = {.exclude = {"optimizer.*"}}, .threads = 4});
  ASSERT_EQ(digests.tensors.size(), 3u);
  EXPECT_EQ(digests.tensors[0].key, "b");
  EXPECT_EQ(digests.tensors[2].key, "c");
  ASSERT_EQ(digests.objects.size(), 1u);
  EXPECT_EQ(digests.objects[0].sha256, sha256_hex(as_bytes("1")));  // objects are hashed as JSON
}

TEST(Digest, OfObjectsIsTheSameInEveryFormat) {
  const TempDir directory;
  convert(testing::golden("mcore-0.14-zarr-tp2pp1dp2"), directory / "torch_dist",
          {.target = {.strategy = "torch_dist"}});
  const Digests zarr = digest(*open_checkpoint(testing::golden("mcore-0.14-zarr-tp2pp1dp2")));
  const Digests torch_dist = digest(*open_checkpoint(directory / "torch_dist"));
  std::map<std::string, std::string> expected;
  for (const ObjectDigest& object : zarr.objects) expected[object.key] = object.sha256;
  EXPECT_EQ(expected.size(), 10u);
  for (const ObjectDigest& object : torch_dist.objects)
    EXPECT_EQ(object.sha256, expected[object.key]) << object.key;
}

TEST(Digest, CountsEveryByteOnce) {
  FakeReader reader;
  reader.tensor("a", DType::kFloat32, {100}, counting<float>(100))
      .tensor("b", DType::kFloat64, {10}, counting<double>(10))
      .write();
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  const auto follow = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  (void)digest(reader, {.memory = 128, .progress = follow});
  EXPECT_EQ(last, 480u);
  EXPECT_EQ(total, 480u);
}

TEST(Digest, NamesTheTensorThatCannotBeRead) {
  FakeReader reader;
  reader.tensor("fine", DType::kInt32, {2}, counting<std::int32_t>(2))
      .tensor("cut", DType::kInt32, {2}, counting<std::int32_t>(2))
      .write(4);
  EXPECT_EQ(testing::error_of([&] { (void)digest(reader); }).context().key, "cut");
}

}  // namespace
}  // namespace dckpt::digest_test
