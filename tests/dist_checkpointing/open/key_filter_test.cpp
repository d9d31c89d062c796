#include "dist_checkpointing/open/key_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/digest.h"
#include "operations/inspect/inspect.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/code_of.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::key_filter_test {
namespace {

using testing::counting;
using testing::FakeReader;
using ::testing::HasSubstr;

FakeReader model() {
  FakeReader reader;
  reader.tensor("decoder.layers.0.weight", DType::kFloat32, {2}, counting<float>(2))
      .tensor("decoder.layers.1.weight", DType::kFloat32, {2}, counting<float>(2))
      .tensor("embedding.weight", DType::kFloat32, {2}, counting<float>(2))
      .object("rng_state/shard_0_2", 1)
      .object("rng_state/shard_1_2", 1)
      .write();
  return reader;
}

std::string refusal(const KeyFilter& filter) {
  const FakeReader reader = model();
  try {
    filter.check({&reader.metadata()});
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "";
}

TEST(KeyFilter, AnObjectIsMatchedByItsKeyAndByItsUniqueKey) {
  EXPECT_TRUE(KeyFilter{.include = {"rng_state"}}.object("rng_state/shard_0_2"));
  EXPECT_TRUE(KeyFilter{.include = {"*/shard_0_2"}}.object("rng_state/shard_0_2"));
  EXPECT_FALSE(KeyFilter{.include = {"*/shard_0_2"}}.object("rng_state/shard_1_2"));
  EXPECT_FALSE(KeyFilter{.exclude = {"rng_state"}}.object("rng_state/shard_0_2"));
  EXPECT_FALSE((KeyFilter{.include = {"rng_*"}, .exclude = {"*_2"}}.object("rng_state/shard_0_2")));
}

TEST(KeyFilter, EachPatternMustMatchSomething) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.include = {"decoder.*", "rng_state"}, .exclude = {"*.1.*"}}), "");
  EXPECT_THAT(
      refusal({.include = {"decoder.*", "nothing*"}}),
      HasSubstr("no key matches the pattern 'nothing*'; there are 'decoder.layers.0.weight', "));
  EXPECT_THAT(refusal({.exclude = {"optimizer.*"}}), HasSubstr("'optimizer.*'"));
}

TEST(KeyFilter, NearKeysAreNamed) {
  EXPECT_THAT(refusal({.include = {"embeding.weight"}}),
              HasSubstr("(did you mean 'embedding.weight'?)"));
  EXPECT_THAT(
      refusal({.include = {"layers"}}),
      HasSubstr(
          "(did you mean '*layers*'? It matches 2 keys, for example 'decoder.layers.0.weight')"));
  EXPECT_THAT(refusal({.include = {"decoder.layer.*.self_attention.*"}}),
              HasSubstr("; nearest are 'decoder.layers.0.weight', 'decoder.layers.1.weight'"));
}

TEST(KeyFilter, PatternsThatLeaveNothingAreRefused) {
  EXPECT_THAT(refusal({.include = {"decoder.*"}, .exclude = {"*"}}),
              HasSubstr("leave no key: what 'decoder.*' matches is left out by '*'"));
}

TEST(KeyFilter, NoCommandWorksOnAnEmptySelection) {
  const FakeReader reader = model();
  const FakeReader other = model();
  const KeyFilter nothing{.include = {"nothing*"}};
  EXPECT_EQ(code_of([&] { (void)inspect(reader, {.keys = nothing}); }), "invalid-argument");
  EXPECT_EQ(code_of([&] { (void)digest(reader, {.keys = nothing}); }), "invalid-argument");
  EXPECT_EQ(code_of([&] { (void)diff(reader, other, {.keys = nothing, .common = false}); }),
            "invalid-argument");
  const TempDir scratch;
  EXPECT_EQ(code_of([&] {
              convert(testing::golden("mcore-0.14-synthetic"), scratch / "x",
                      {.source = {.keys = {.exclude = {"nothing*"}}}});
            }),
            "invalid-argument");
}

TEST(KeyFilter, ADiffAcceptsPatternsThatOneSideHas) {
  const FakeReader reader = model();
  FakeReader empty;
  empty.write();
  EXPECT_EQ(diff(reader, empty, {.keys = {.include = {"embedding.*"}}}).differences.size(), 1u);
  EXPECT_TRUE(diff(empty, empty).equal());
}

}  // namespace
}  // namespace dckpt::key_filter_test
