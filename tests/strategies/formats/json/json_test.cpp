#include "strategies/formats/json/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "mapping/base/error.h"

namespace dckpt::json_test {
namespace {

using ::testing::HasSubstr;

Value parse(std::string_view text, const JsonLimits& limits = {}) {
  return parse_json(as_bytes(text), "x.json", limits);
}

/// Returns the message of the refusal. Fails the test if the text is read.
std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse(text, limits);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_EQ(error.context().file, "x.json");
    return error.what();
  }
  ADD_FAILURE() << "was read: " << text.substr(0, 100);
  return {};
}

TEST(ParseJson, ReadsEveryKindOfValue) {
  const Value value = parse(
      R"( {"n": null, "t": true, "f": false, "i": -7, "x": 1.5e2, "s": "a\n\u00e9\ud83d\ude00", "l": [1, [], {}], "": 0} )");
  EXPECT_EQ(value, Value::dict({{"n", Value()},
                                {"t", true},
                                {"f", false},
                                {"i", -7},
                                {"x", 150.0},
                                {"s", "a\n\xC3\xA9\xF0\x9F\x98\x80"},
                                {"l", Value::list({1, Value::list(), Value::dict()})},
                                {"", 0}}));
  EXPECT_EQ(value.at("x").kind(), Value::Kind::kFloat);
  EXPECT_EQ(value.at("i").kind(), Value::Kind::kInt);
}

TEST(ParseJson, KeepsTheOrderOfKeys) {
  std::vector<std::string> keys;
  const Value value = parse(R"({"z": 1, "a": 2, "m": 3})");
  for (const auto& [key, ignored] : value.as_dict()) keys.push_back(key.as_str());
  EXPECT_THAT(keys, ::testing::ElementsAre("z", "a", "m"));
}

TEST(ParseJson, ReadsIntegersOf64BitsAndRefusesLongerOnes) {
  EXPECT_EQ(parse("9223372036854775807").as_int(), INT64_MAX);
  EXPECT_EQ(parse("-9223372036854775808").as_int(), INT64_MIN);
  EXPECT_EQ(parse("18446744073709551615"), Value(UINT64_MAX));
  EXPECT_THAT(refusal("18446744073709551616"), HasSubstr("does not fit 64 bits"));
  EXPECT_THAT(refusal("-9223372036854775809"), HasSubstr("does not fit 64 bits"));
  EXPECT_THAT(refusal("1e999"), HasSubstr("1e999"));
}

TEST(ParseJson, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_THAT(refusal(R"({"a": 1, "b": 2, "a": 1})"), HasSubstr("the key 'a' occurs twice"));
  EXPECT_THAT(refusal(R"([{"x": {"a": 1, "\u0061": 2}}])"), HasSubstr("the key 'a' occurs twice"));
  EXPECT_EQ(parse(R"([{"a": 1}, {"a": 2}])").size(), 2u);
}

TEST(ParseJson, MembersOfALargeObjectComeOneByOne) {
  const auto visited = [](std::string_view text) {
    std::string seen;
    visit_json_members(as_bytes(text), "test", [&](const std::string& key, const Value& value) {
      seen += key + "=" + to_json(value) + ";";
    });
    return seen;
  };
  EXPECT_EQ(visited(R"({"a": [1, {"b": 2}], "c": {}, "a": null})"),
            R"(a=[1, {"b": 2}];c={};a=null;)");
  EXPECT_EQ(visited("{}"), "");
  for (const char* const text : {"[]", "3", "{\"a\": 1", "{} {}"})
    EXPECT_THROW(visited(text), CheckpointError) << text;
}

TEST(ParseJson, RefusesWhatOtherParsersLetPass) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1,]",
                           "[1 2]",
                           "{\"a\" 1}",
                           "{a: 1}",
                           "{'a': 1}",
                           "nul",
                           "NaN",
                           "Infinity",
                           "-",
                           "01",
                           "+1",
                           ".5",
                           "1.",
                           "0x10",
                           "// c\n1",
                           "[1] 2",
                           "1 {}",
                           "\"a",
                           "\"\t\"",
                           "\"\\x41\"",
                           "\"\\ud800\"",
                           "\"\\udc00\\ud800\"",
                           "\xEF\xBB\xBF{}",
                           "\"\xFF\"",
                           "\"\xC0\x80\"",
                           "\"\xED\xA0\x80\""}) {
    refusal(text);
  }
  refusal(std::string_view("1\0", 2));
  refusal(std::string_view("{}\0{}", 5));
}

TEST(ParseJson, NamesTheOffsetAndKeepsControlBytesOutOfTheMessage) {
  try {
    parse("{\"a\": \x1b[2J}");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.context().offset, 7u);
    EXPECT_EQ(std::string(error.what()).find('\x1b'), std::string::npos);
  }
}

TEST(ParseJson, LimitsDepthAndSize) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  parse(nested(500));
  EXPECT_THAT(refusal(nested(501)), HasSubstr("more than 500"));
  EXPECT_THAT(refusal(std::string(300'000, '[')), HasSubstr("more than 500"));
  EXPECT_THAT(refusal("{\"a\":{\"a\":{}}}", {.max_depth = 2}), HasSubstr("more than 2"));
  parse("[1]", {.max_bytes = 3});
  EXPECT_THAT(refusal("[10]", {.max_bytes = 3}), HasSubstr("more than the limit of 3 B"));
}

// The expected texts are what Python 3.11 prints for json.dumps(value) and json.dumps(value,
// indent=2).
TEST(ToJson, WritesWhatPythonWrites) {
  const Value value = Value::dict({{"a", Value::list({1, 2.0, Value(), true})},
                                   {"b", Value::dict()},
                                   {"c", Value::list()},
                                   {"d", Value::tuple({"x"})}});
  EXPECT_EQ(to_json(value), R"({"a": [1, 2.0, null, true], "b": {}, "c": [], "d": ["x"]})");
  EXPECT_EQ(to_json(value, 2),
            "{\n  \"a\": [\n    1,\n    2.0,\n    null,\n    true\n  ],\n  \"b\": {},\n  \"c\": "
            "[],\n  \"d\": [\n    \"x\"\n  ]\n}");
}

TEST(ToJson, WritesFloatsAsPythonDoes) {
  EXPECT_EQ(to_json(Value::list({0.0, -0.0, 0.1, 1e15, 1e16, 123456.789, 1e-4, 1e-5,
                                 1.7976931348623157e308, 5e-324})),
            "[0.0, -0.0, 0.1, 1000000000000000.0, 1e+16, 123456.789, 0.0001, 1e-05, "
            "1.7976931348623157e+308, 5e-324]");
}

TEST(ToJson, WritesIntegersOfAnySize) {
  EXPECT_EQ(to_json(Value::list({INT64_MIN, UINT64_MAX})),
            "[-9223372036854775808, 18446744073709551615]");
}

TEST(ToJson, WritesOnlyAscii) {
  EXPECT_EQ(to_json(Value("\"\\/\b\f\n\r\t\x01\x7f\xC3\xA9\xE2\x80\xAE\xF0\x9F\x98\x80")),
            R"("\"\\/\b\f\n\r\t\u0001\u007f\u00e9\u202e\ud83d\ude00")");
}

TEST(ToJson, EscapesBytesThatAreNotUtf8AsSurrogates) {
  EXPECT_EQ(to_json(Value("a\xFFz")), R"("a\udcffz")");
  EXPECT_EQ(to_json(Value("\xED\xA0\x80")),
            R"("\ud800")");  // a lone surrogate from a pickle
  EXPECT_EQ(to_json(Value("\xC3")), R"("\udcc3")");
  EXPECT_EQ(to_json(Value("\xE2\x80")), R"("\udce2\udc80")");
  EXPECT_EQ(to_json(Value("\xC0\x80")), R"("\udcc0\udc80")");
  EXPECT_EQ(to_json(Value("\xF4\x90\x80\x80")), R"("\udcf4\udc90\udc80\udc80")");
}

TEST(ToJson, RefusesWhatJsonLacks) {
  EXPECT_THROW(to_json(Value(std::numeric_limits<double>::quiet_NaN())), CheckpointError);
  EXPECT_THROW(to_json(Value(std::numeric_limits<double>::infinity())), CheckpointError);
  EXPECT_THROW(to_json(Value::bytes({})), CheckpointError);
  EXPECT_THROW(to_json(Value::set()), CheckpointError);
  EXPECT_THROW(to_json(Value::dict({{1, 2}})), CheckpointError);
}

TEST(ToJson, RefusesNestingBeyondTheLimit) {
  Value value = Value::list();
  for (std::uint32_t depth = 0; depth < kMaxJsonOutputDepth; ++depth) value = Value::list({value});
  EXPECT_NO_THROW(to_json(value));
  EXPECT_THROW(to_json(Value::list({value})), CheckpointError);
}

TEST(ToJson, IsReadBackAsItWas) {
  const Value value =
      Value::dict({{"k\xC3\xA9y", Value::list({1, -2.5, "\xF0\x9F\x98\x80\\\"", Value(), false,
                                               Value::dict({{"", 1e300}})})}});
  EXPECT_EQ(parse(to_json(value)), value);
  EXPECT_EQ(parse(to_json(value, 4)), value);
}

}  // namespace
}  // namespace dckpt::json_test
