// Pickles of Python's own pickler, in every protocol that is read, must yield the values that it
// was given.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/strategies/formats/pickle/pickle_files.h"

namespace dckpt::pickle::golden_test {
namespace {

using Kind = Value::Kind;

std::string with_protocol(const std::string& name, int protocol) {
  return name + ".p" + std::to_string(protocol);
}

Value big(std::initializer_list<int> little_endian) {
  BigInt number;
  for (const int byte : little_endian) number.bytes.push_back(static_cast<std::byte>(byte));
  return number;
}

Bytes all_bytes() {
  Bytes bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<std::byte>(i));
  return bytes;
}

class EveryProtocol : public ::testing::TestWithParam<int> {
 protected:
  Value golden_value(const std::string& name) {
    return load(golden(with_protocol(name, GetParam())));
  }
};

INSTANTIATE_TEST_SUITE_P(Protocol, EveryProtocol, ::testing::Range(2, 6));

TEST_P(EveryProtocol, NumbersAreExact) {
  const Value plain = golden_value("plain");
  EXPECT_TRUE(plain.at("none").is_none());
  EXPECT_EQ(plain.at("bools").items(), (ValueList{true, false}));
  EXPECT_EQ(plain.at("bools").items()[0].kind(), Kind::kBool);
  EXPECT_EQ(plain.at("ints").items(),
            (ValueList{0, 1, -1, 255, 256, 65535, 65536, 2147483647, 2147483648, -2147483648,
                       -2147483649, std::numeric_limits<std::int64_t>::max(),
                       std::numeric_limits<std::int64_t>::min()}));
  const ValueList& bigs = plain.at("big ints").items();
  EXPECT_EQ(bigs[0], big({0, 0, 0, 0, 0, 0, 0, 0x80, 0}));
  EXPECT_EQ(bigs[1], big({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F, 0xFF}));
  EXPECT_EQ(bigs[2].as_big_int().to_decimal(), "1000000000000000000000000000000");
  EXPECT_EQ(bigs[3].as_big_int().to_decimal(), "-1000000000000000000000000000000");
  EXPECT_EQ(bigs[4].as_big_int().bytes.size(), 257U);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(plain.at("floats").items(),
            (ValueList{0.0, -0.0, 1.5, -2.5e-300, 1e308, kInfinity, -kInfinity}));
  EXPECT_TRUE(std::signbit(plain.at("floats").items()[1].as_float()));
  EXPECT_EQ(plain.at("complex").as_complex(), std::complex<double>(1.5, -2));
}

TEST_P(EveryProtocol, TextsAndBytesAreExact) {
  const Value plain = golden_value("plain");
  EXPECT_EQ(plain.at("texts").items(),
            (ValueList{"", "plain", "é", "日本", "𝄞", "back\\slash", "line\nbreak",
                       std::string("nul\0", 4), "\xED\xA0\x80 lone"}));
  EXPECT_EQ(plain.at("long text").as_str(), std::string(300, 'x'));
  EXPECT_EQ(plain.at("bytes").items(), (ValueList{Value::bytes({}), Value::bytes(to_bytes("abc")),
                                                  Value::bytes(all_bytes())}));
  EXPECT_EQ(plain.at("bytes").items()[0].kind(), Kind::kBytes);
  EXPECT_EQ(plain.at("bytearrays").items(),
            (ValueList{Value::byte_array({}), Value::byte_array(to_bytes("ab\x80\xFF"))}));
  EXPECT_EQ(plain.at("bytearrays").items()[1].kind(), Kind::kByteArray);
}

TEST_P(EveryProtocol, ContainersKeepKindAndOrder) {
  const Value plain = golden_value("plain");
  const auto tuple = [](ValueList items) { return Value::tuple(std::move(items)); };
  EXPECT_EQ(plain.at("tuples").items(),
            (ValueList{tuple({}), tuple({1}), tuple({1, 2}), tuple({1, 2, 3}), tuple({1, 2, 3, 4}),
                       tuple({tuple({})})}));
  EXPECT_EQ(plain.at("sets").items(),
            (ValueList{Value::set(), Value::set({1}), Value::set({"a", 1, tuple({2, 3})})}));
  EXPECT_EQ(plain.at("frozensets").items(),
            (ValueList{Value::frozen_set(), Value::frozen_set({1, "b"})}));
  EXPECT_EQ(plain.at("frozensets").items()[1].kind(), Kind::kFrozenSet);
  const Value& mixed = plain.at("dicts").items()[1];
  EXPECT_EQ(mixed, Value::dict({{1, "int"},
                                {"1", "str"},
                                {tuple({1, 2}), "tuple"},
                                {nullptr, "none"},
                                {Value::bytes(to_bytes("b")), "bytes"}}));
  EXPECT_EQ(mixed.as_dict().items().back().second, Value("bytes"));
}

TEST_P(EveryProtocol, SharedObjectsStayShared) {
  const Value sharing = golden_value("sharing");
  const Value& shared = sharing.at("first");
  EXPECT_EQ(shared, Value::list({1, 2}));
  EXPECT_EQ(sharing.at("second").identity(), shared.identity());
  EXPECT_EQ(sharing.at("nested").items()[0].identity(), shared.identity());
  EXPECT_EQ(sharing.at("nested").items()[1].at("again").identity(), shared.identity());
}

TEST_P(EveryProtocol, ObjectsStayDescriptions) {
  const Value objects = golden_value("objects");
  const Opaque& ordered = objects.at("ordered").as_opaque();
  EXPECT_EQ(ordered.class_path(), "collections.OrderedDict");
  EXPECT_EQ(objects.at("class").as_global(), (Global{"collections", "OrderedDict"}));
  const Opaque& date = objects.at("date").as_opaque();
  EXPECT_EQ(date.class_path(), "datetime.date");
  EXPECT_EQ(date.args, Value::tuple({Value::bytes(to_bytes(std::string("\x07\xE8\x02\x1D")))}));
  const Opaque& error = objects.at("exception").as_opaque();
  EXPECT_EQ(error.class_path(), "builtins.ValueError");
  EXPECT_EQ(error.args, Value::tuple({"wrong"}));
  EXPECT_EQ(objects.at("enum").as_opaque().args, Value::tuple({1}));
  EXPECT_EQ(objects.at("point").as_opaque().states,
            (std::vector<Value>{Value::dict({{"x", 1}, {"y", Value::list({2})}})}));
}

TEST_P(EveryProtocol, PersistentIdsAreResolvedByTheCaller) {
  std::vector<Value> ids;
  ValueHooks hooks;
  hooks.persistent = [&](const Value& id) {
    ids.push_back(id);
    return Value("resolved");
  };
  const Value value = load(golden(with_protocol("persistent", GetParam())), hooks);
  EXPECT_EQ(value, Value::list({"resolved", Value::dict({{"again", "resolved"}})}));
  EXPECT_THAT(ids, ::testing::Each(Value::tuple({"storage", 7, "key"})));
}

TEST_P(EveryProtocol, SubclassesOfContainersHoldItemsAndState) {
  const Value objects = golden_value("objects");
  const Opaque& items = objects.at("items").as_opaque();
  EXPECT_EQ(items.form, Opaque::Form::kNew);
  EXPECT_EQ(items.list_items, (ValueList{1, 2}));
  EXPECT_EQ(items.states, (std::vector<Value>{Value::dict({{"note", "state and items"}})}));
  const Opaque& table = objects.at("table").as_opaque();
  ASSERT_EQ(table.dict_items.size(), 1U);
  EXPECT_EQ(table.dict_items[0].second, Value("v"));
  EXPECT_EQ(table.states.size(), 1U);
}

TEST(Golden, ContainersFilledInSeveralStepsComeTogether) {
  for (const int protocol : {2, 4}) {
    const Value batches = load(golden(with_protocol("batches", protocol)));
    const ValueList& list = batches.at("list").items();
    ASSERT_EQ(list.size(), 2500U);
    for (int i = 0; i < 2500; ++i)
      ASSERT_EQ(list[static_cast<std::size_t>(i)], i % 3 == 0 ? Value::list({i}) : Value(i));
    ASSERT_EQ(batches.at("dict").size(), 1500U);
    EXPECT_EQ(batches.at("dict").as_dict().items()[1499].second, Value::dict({{"i", 1499}}));
    const auto* ordered = mapping_items(batches.at("ordered"));
    ASSERT_NE(ordered, nullptr);
    ASSERT_EQ(ordered->size(), 1200U);
    EXPECT_EQ(ordered->back().second, Value::tuple({1199}));
    EXPECT_EQ(batches.at("set").size(), 1100U);
  }
}

TEST(Golden, NewObjectsWithKeywordArguments) {
  const Value value = load(golden("stateful.p4"));
  const Opaque& object = value.at("keyword").as_opaque();
  EXPECT_EQ(object.form, Opaque::Form::kNew);
  EXPECT_EQ(object.class_path(), "make_pickles.Keyword");
  EXPECT_EQ(object.args, Value::tuple({1, "two"}));
  ASSERT_TRUE(object.kwargs);
  EXPECT_EQ(*object.kwargs, Value::dict({{"three", 3}}));
  EXPECT_EQ(value.at("nested class").as_global(), (Global{"make_pickles", "Point.Inner"}));
}

TEST(Golden, NumpyArraysStayDescriptions) {
  for (const int protocol : {2, 4, 5}) {
    const Value array = load(golden(with_protocol("numpy", protocol))).at("array");
    EXPECT_TRUE(array.is(Kind::kOpaque)) << protocol;
  }
}

TEST(Golden, ValuesThatContainThemselvesHoldReferences) {
  for (const int protocol : {2, 4}) {
    const Value list = load(golden(with_protocol("cycle_list", protocol)));
    const Value dict = load(golden(with_protocol("cycle_dict", protocol)));
    const Value object = load(golden(with_protocol("cycle_object", protocol)));
    EXPECT_EQ(list.items().back(), Value::reference(list.label()));
    EXPECT_EQ(dict.at("me"), Value::reference(dict.label()));
    EXPECT_EQ(object.as_opaque().states.front().at("me"), Value::reference(object.label()));
  }
}

}  // namespace
}  // namespace dckpt::pickle::golden_test
