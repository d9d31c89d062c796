#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/formats/pickle/pickle_files.h"

namespace dckpt::pickle::value_from_graph_test {
namespace {

using namespace std::string_literals;
using Kind = Value::Kind;
using ::testing::HasSubstr;

std::string text(std::string_view content) {
  return "X"s + static_cast<char>(content.size()) + "\0\0\0"s + std::string(content);
}

std::string repeated(std::string_view piece, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += piece;
  return result;
}

CheckpointError load_error(std::string_view pickle) {
  return error_of([&] { load(pickle); });
}

TEST(ValueFromGraph, CallsAreNeverMadeButDescribed) {
  const Value value = load("cos\nsystem\n(" + text("rm -rf /") + "tR.");
  EXPECT_EQ(value.as_opaque().class_path(), "os.system");
  EXPECT_EQ(value.as_opaque().args, Value::tuple({"rm -rf /"}));
}

TEST(ValueFromGraph, CallableMayBeACallItself) {
  const Value value = load("cbuiltins\ngetattr\n(cos\nx\n" + text("system") + "tR)R.");
  EXPECT_EQ(value.as_opaque().callable.as_opaque().class_path(), "builtins.getattr");
  EXPECT_EQ(value.as_opaque().class_path(), "");
}

TEST(ValueFromGraph, PlainValuesAreNotCalled) {
  EXPECT_THAT(load_error("c_codecs\nencode\n(" + text("a") + text("latin1") + "tR)R.").what(),
              HasSubstr("calls a value of kind bytes"));
  EXPECT_TRUE(load("ccopyreg\n__newobj__\n(K\1tR.").as_opaque().class_path() ==
              "copyreg.__newobj__");
}

TEST(ValueFromGraph, OnlyExactSpellingsBecomePlainValues) {
  EXPECT_EQ(load("c_codecs\nencode\n(" + text("a\xC3\xBF") + text("latin1") + "tR."),
            Value::bytes(to_bytes("a\xFF")));
  EXPECT_TRUE(load("c_codecs\nencode\n(" + text("€") + text("latin1") + "tR.").is(Kind::kOpaque));
  EXPECT_TRUE(load("c_codecs\nencode\n(" + text("a") + text("rot13") + "tR.").is(Kind::kOpaque));
  EXPECT_TRUE(load("cbuiltins\nset\n(K\1tR.").is(Kind::kOpaque));
  EXPECT_TRUE(load("cbuiltins\ncomplex\n(K\1K\2tR.").is(Kind::kOpaque));
  EXPECT_TRUE(load("cbuiltins\nbytes\n(K\1tR.").is(Kind::kOpaque));
  EXPECT_TRUE(load("cbuiltins\nbytearray\n)R}b.").is(Kind::kOpaque));
}

TEST(ValueFromGraph, CopyregFunctionsMakeNewObjects) {
  const Value value = load("ccopy_reg\n__newobj_ex__\n(cm\nC\n(K\1t}" + text("k") + "K\2stR}b.");
  const Opaque& object = value.as_opaque();
  EXPECT_EQ(object.form, Opaque::Form::kNew);
  EXPECT_EQ(object.class_path(), "m.C");
  EXPECT_EQ(object.args, Value::tuple({1}));
  EXPECT_EQ(object.kwargs, Value::dict({{"k", 2}}));
  EXPECT_EQ(object.states.size(), 1U);
}

TEST(ValueFromGraph, KnownObjectsAreReplacedAfterTheirArguments) {
  ValueHooks hooks;
  hooks.known = [](const Opaque& object) -> std::optional<Value> {
    if (object.class_path() != "m.double") return std::nullopt;
    return Value(2 * object.args.items()[0].as_int());
  };
  const std::string pickle = "](cm\ndouble\n(cm\ndouble\n(K\3tRtRcm\nother\n)Re.";
  const Value value = load(as_bytes(pickle), hooks);
  EXPECT_EQ(value.items()[0], Value(12));
  EXPECT_TRUE(value.items()[1].is(Kind::kOpaque));
}

TEST(ValueFromGraph, PersistentIdsNeedSomebodyWhoKnowsThem) {
  EXPECT_EQ(load_error(text("name") + "Q.").code(), ErrorCode::kCorrupt);
  EXPECT_THAT(load_error("K\7Q.").what(), HasSubstr("persistent id"));
}

TEST(ValueFromGraph, WhatPythonCannotHashIsNoKeyAndNoMember) {
  for (const std::string& key : {"]"s, "}"s, "\x8F"s, "(]t"s, "((]tt"s, "\x96\0\0\0\0\0\0\0\0"s}) {
    EXPECT_THAT(load_error("}" + key + "K\1s.").what(), HasSubstr("cannot hash"));
    EXPECT_THAT(load_error("\x8F(" + key + "\x90.").what(), HasSubstr("cannot hash"));
  }
  EXPECT_TRUE(load("}cm\nC\n)RK\1s.").is_dict());
}

TEST(ValueFromGraph, RepeatedKeysAndMembersAreRefused) {
  EXPECT_THAT(load_error("}(" + text("iteration") + "K\1" + text("iteration") + "K\2u.").what(),
              HasSubstr("the key 'iteration' twice"));
  EXPECT_THAT(load_error("}(K\1K\1G\x3F\xF0\0\0\0\0\0\0K\2u."s).what(), HasSubstr("twice"));
  EXPECT_THAT(load_error("\x8F(K\1K\1\x90.").what(), HasSubstr("same member twice"));
  EXPECT_THAT(load_error("(K\1K\1\x91.").what(), HasSubstr("same member twice"));
}

TEST(ValueFromGraph, ManyKeysWithTheSameHashAreRefused) {
  // The tuples differ after the part that is hashed.
  std::string items = "}(";
  for (int i = 0; i < 300; ++i)
    items += "(" + repeated("K\1", 400) + "M" + static_cast<char>(i & 0xFF) +
             static_cast<char>(i >> 8) + "tN";
  EXPECT_THAT(load_error(items + "u.").what(), HasSubstr("keys with the same hash"));
}

TEST(ValueFromGraph, DepthHoldsAtTheLimitAndBreaksPastIt) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, ']') + "N" + std::string(depth, 'a') + ".";
  };
  EXPECT_TRUE(load(nested(1000)).is_list());
  EXPECT_EQ(load_error(nested(1001)).code(), ErrorCode::kUnsupported);
}

TEST(ValueFromGraph, DeepNestingOfAnyKindIsRefusedWithoutRecursion) {
  for (const std::string& pickle :
       {std::string(1000000, ']') + "N" + std::string(1000000, 'a') + ".",
        "N" + std::string(1000000, '\x85') + ".",
        repeated("}K\1", 200000) + "N" + std::string(200000, 's') + ".",
        repeated("cm\nf\n", 100000) + "N" + repeated("\x85R", 100000) + ".",
        repeated("cm\nC\n)\x81", 100000) + "N" + std::string(100000, 'b') + "."}) {
    EXPECT_THAT(load_error(pickle).what(), HasSubstr("deep"));
  }
}

TEST(ValueFromGraph, DepthCountsThroughSharedParts) {
  // [None, (None,), ((None,),), …], each the only member of the next: no step of the walk goes
  // deeper than two.
  const std::string pickle = "](N" + repeated("q\1h\1\x85", 1100);
  EXPECT_THAT(load_error(pickle + "e.").what(), HasSubstr("deep"));
}

TEST(ValueFromGraph, ValuesThatGrowBySharingAreRefusedInLinearTime) {
  for (const std::string first : {"]", ")"}) {
    std::string pickle = first + "q\0"s;
    for (int i = 0; i < 64; ++i) {
      const std::string get = "h"s + static_cast<char>(i);
      pickle += "0" + (first == "]" ? "](" + get + get + "e" : get + get + "\x86") + "q" +
                static_cast<char>(i + 1);
    }
    const CheckpointError error = load_error(pickle + ".");
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("as a tree"));
  }
}

TEST(ValueFromGraph, SharingWithinReasonIsFree) {
  const Value value = load("](]q\1" + repeated("h\1", 20000) + "e.");
  ASSERT_EQ(value.size(), 20001U);
  EXPECT_EQ(value.items()[0].identity(), value.items()[20000].identity());
}

TEST(ValueFromGraph, LongPlainListsAreNotMistakenForSharing) {
  const std::string pickle = "](" + repeated("K\1N)", 100000) + "e.";
  const Value value = load(as_bytes(pickle), {}, {.max_expanded = 0});
  EXPECT_EQ(value.size(), 300000U);
}

TEST(ValueFromGraph, ReferencesAreEqualIfTheyLeadToEqualPlaces) {
  const std::string two = "](]q\1h\1a]q\2h\2ae.";      // [[itself], [itself]]
  const std::string crossed = "](]q\1h\1a]q\2h\1ae.";  // [x := [x], [x]]
  EXPECT_EQ(load(two), load(two));
  EXPECT_FALSE(load(two) == load(crossed));
  EXPECT_NE(load(two).items()[0].label(), load(two).items()[1].label());
}

TEST(GraphValues, PartsOfAGraphShareTheirValuesAndErrorsDoNotStick) {
  const std::string pickle = "](]q\1K\1a]}]K\1sah\1e.";  // a list as a key
  const Graph graph = read_graph(as_bytes(pickle), "f");
  GraphValues values(graph);
  const auto parts = graph.children(graph.root());
  EXPECT_THROW(values.value(parts[1]), CheckpointError);
  EXPECT_THROW(values.value(parts[1]), CheckpointError);
  EXPECT_EQ(values.value(parts[0]), Value::list({1}));
  EXPECT_EQ(values.value(parts[0]).identity(), values.value(parts[2]).identity());
}

}  // namespace
}  // namespace dckpt::pickle::value_from_graph_test
