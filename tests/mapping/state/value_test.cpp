#include "mapping/state/value.h"

#include <gmock/gmock.h>

#include <thread>

#include "mapping/state/sharded_object.h"
#include "tests/support/expect_error.h"

namespace dckpt::value_test {
namespace {

using testing::error_of;
using Kind = Value::Kind;

TEST(Value, KnowsWhatItHolds) {
  EXPECT_TRUE(Value().is_none());
  EXPECT_TRUE(Value(nullptr).is_none());
  EXPECT_EQ(Value(true).kind(), Kind::kBool);
  EXPECT_EQ(Value(1).kind(), Kind::kInt);
  EXPECT_EQ(Value(1.0f).kind(), Kind::kFloat);
  EXPECT_EQ(Value("text").as_str(), "text");
  EXPECT_EQ(Value(std::complex<double>(1, 2)).as_complex().imag(), 2);
  EXPECT_EQ(Value::frozen_set().kind(), Kind::kFrozenSet);
  EXPECT_EQ(Value::byte_array({std::byte{1}}).as_bytes().size(), 1u);
  EXPECT_TRUE(Value(ShardedTensorFactory{}).is_sharded());
  EXPECT_FALSE(Value(LocalNonpersistentObject{}).is_sharded());
}

TEST(Value, ATemporaryGivesAwayWhatItHolds) {
  const auto tree = [] {
    Value made;
    made["list"] = Value::list({std::string(100, 'x')});
    return made;
  };
  for (const auto& [key, leaf] : tree().as_dict()) EXPECT_EQ(leaf.items().size(), 1u);
  for (const Value& item : tree().at("list").items())
    EXPECT_EQ(item.as_str(), std::string(100, 'x'));
  const Value& leaf = tree().at("list");
  EXPECT_EQ(leaf.size(), 1u);

  const Value kept = tree();
  EXPECT_EQ(Value(kept).as_dict().size(), 1u);
  EXPECT_EQ(kept.size(), 1u) << "other holders keep it";
  EXPECT_EQ(error_of([&] { Value(1).as_dict(); }).code(), ErrorCode::kInvalidArgument);
}

TEST(Value, IntegersBeyond64BitsAreKept) {
  EXPECT_EQ(Value(std::uint64_t{INT64_MAX}).as_int(), INT64_MAX);
  const Value big(UINT64_MAX);
  EXPECT_EQ(big.kind(), Kind::kBigInt);
  EXPECT_EQ(big.as_big_int().to_decimal(), "18446744073709551615");
  EXPECT_EQ(error_of([&] { big.as_int(); }).code(), ErrorCode::kInvalidArgument);
}

TEST(Value, RedundantBytesOfIntegersGo) {
  const Bytes minus_two = {std::byte{0xFE}, std::byte{0xFF}, std::byte{0xFF}};
  EXPECT_EQ(Value(BigInt{minus_two}).as_int(), -2);
  EXPECT_EQ(Value(BigInt{{}}).as_int(), 0);
  Bytes wide(20, std::byte{0});
  wide[9] = std::byte{0x80};
  EXPECT_EQ(Value(BigInt{wide}).as_big_int().bytes.size(), 11u);
}

TEST(Value, WrongKindsNameBoth) {
  EXPECT_EQ(error_of([] { Value("x").as_int(); }).message(), "expected int, found str");
  EXPECT_EQ(error_of([] { Value(1).items(); }).message(), "expected list, tuple or set, found int");
  EXPECT_EQ(error_of([] { Value(true).as_float(); }).message(), "expected float, found bool");
  EXPECT_EQ(Value(3).as_float(), 3.0);
}

TEST(Value, CopiesAreIndependent) {
  Value original = Value::dict({{"list", Value::list({1, 2})}});
  Value copy = original;
  EXPECT_EQ(copy.identity(), original.identity());
  copy["list"].mutable_items().push_back(3);
  EXPECT_EQ(original.at("list").size(), 2u);
  EXPECT_EQ(copy.at("list").size(), 3u);
}

TEST(Value, WritingToTheOnlyHolderCopiesNothing) {
  Value list = Value::list({1});
  const void* const before = list.identity();
  list.mutable_items()[0] = 2;
  EXPECT_EQ(list.identity(), before);
}

TEST(Value, CopiesMayBeWrittenByOtherThreads) {
  const Value original = Value::list(ValueList(1000, Value(1)));
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([copy = original, number]() mutable {
      for (Value& item : copy.mutable_items()) item = number;
      EXPECT_EQ(copy.items()[999], Value(number));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(original, Value::list(ValueList(1000, Value(1))));
}

TEST(Value, NoneBecomesADictWhenAKeyIsSet) {
  Value state;
  state["model"]["w"] = 1;
  EXPECT_EQ(state.at("model").at("w"), Value(1));
  EXPECT_TRUE(state["new"].is_none());
  EXPECT_EQ(state.size(), 2u);
  EXPECT_EQ(error_of([&] { state["model"]["w"]["deeper"]; }).message(), "expected dict, found int");
}

TEST(Value, MissingKeysAreNamedWithThoseThatExist) {
  const Value state = Value::dict({{"model", 1}, {"optimizer", 2}});
  EXPECT_EQ(error_of([&] { state.at("modle"); }).message(),
            "the dict has no key 'modle'; it has 'model', 'optimizer'");
  EXPECT_EQ(error_of([&] { state.at(3); }).message(),
            "the dict has no key 3; it has 'model', 'optimizer'");
  EXPECT_FALSE(state.contains("modle"));
  EXPECT_FALSE(Value(1).contains("x"));
}

TEST(Value, SetsKeepEqualMembersOnce) {
  EXPECT_EQ(Value::set({1, "a", 1.0, true, "a"}).size(), 2u);
}

TEST(Value, OnlyContainersHaveASize) {
  EXPECT_EQ(Value::tuple({1, 2}).size(), 2u);
  EXPECT_EQ(error_of([] { Value("text").size(); }).code(), ErrorCode::kInvalidArgument);
}

TEST(MappingItems, SeeOrderedDictsFromPickles) {
  Opaque ordered{.callable = Global{"collections", "OrderedDict"}};
  ordered.dict_items = {{"b", 1}, {"a", 2}};
  const Value value = ordered;
  ASSERT_NE(mapping_items(value), nullptr);
  EXPECT_EQ(mapping_items(value)->at(0).first, Value("b"));
  EXPECT_EQ(mapping_items(Value(Opaque{.callable = Global{"argparse", "Namespace"}})), nullptr);
  EXPECT_EQ(mapping_items(Value::list()), nullptr);
  EXPECT_EQ(mapping_items(Value::dict({{1, 2}}))->size(), 1u);
}

}  // namespace
}  // namespace dckpt::value_test
