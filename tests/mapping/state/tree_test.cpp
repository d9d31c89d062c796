#include "mapping/state/tree.h"

#include <gmock/gmock.h>

#include "mapping/state/flatten.h"
#include "tests/mapping/state/recorded.h"
#include "tests/support/expect_error.h"

namespace dckpt::tree_test {
namespace {

using testing::decode;
using ::testing::ElementsAre;
using testing::encode;
using ::testing::HasSubstr;
using testing::Json;

bool is_sharded(const Value& leaf) {
  return leaf.is_sharded();
}

Value nested(std::size_t levels, Value inside = 1) {
  for (; levels > 0; --levels) inside = Value::list({std::move(inside)});
  return inside;
}

/// Returns 2^levels leaves in `levels` lists.
Value shared_pairs(int levels) {
  Value value = 1;
  for (; levels > 0; --levels) value = Value::list({value, value});
  return value;
}

TEST(VisitLeaves, ComesByInOrderWithPaths) {
  std::vector<std::string> seen;
  visit_leaves(
      decode(Json::parse(
          R"({"dict": [["b", [1, {"tuple": [2]}]], [7, {"dict": [["x", 3], ["empty", []]]}], [true, 4]]})")),
      [&](const KeyPath& path, const Value& leaf) {
        seen.push_back(dotted_name(path) + " " + encode(leaf).dump());
      });
  EXPECT_THAT(seen, ElementsAre("b.0 1", R"(b.1 {"tuple":[2]})", "7.x 3", "True 4"));
}

TEST(VisitLeaves, RefusesTreesBeyondTheLimits) {
  int leaves = 0;
  const auto count = [&](const KeyPath&, const Value&) { ++leaves; };
  visit_leaves(nested(kMaxTreeDepth), count);
  EXPECT_EQ(leaves, 1);
  EXPECT_EQ(testing::error_of([&] { visit_leaves(nested(kMaxTreeDepth + 1), count); }).code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(testing::error_of([&] { visit_leaves(shared_pairs(60), count); }).code(),
            ErrorCode::kUnsupported);
}

TEST(AnyLeaf, AsksNoFurtherOnceOneIsFound) {
  int asked = 0;
  const auto is_two = [&](const Value& leaf) { return ++asked, leaf == Value(2); };
  EXPECT_TRUE(any_leaf(Value::list({1, Value::dict({{"a", 2}}), 3}), is_two));
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(any_leaf(Value::list({1, Value::dict()}), is_two));
  EXPECT_EQ(testing::error_of([&] { any_leaf(nested(kMaxTreeDepth + 1), is_two); }).code(),
            ErrorCode::kUnsupported);
}

TEST(MapLeaves, LeavesOtherCopiesAlone) {
  const Value tree =
      decode(Json::parse(R"({"dict": [["a", [1, 2]], ["b", {"dict": [["c", 3]]}]]})"));
  const Value mapped =
      map_leaves(tree, [](const Value& leaf) { return Value(leaf.as_int() * 10); });
  EXPECT_EQ(encode(mapped),
            Json::parse(R"({"dict": [["a", [10, 20]], ["b", {"dict": [["c", 30]]}]]})"));
  EXPECT_EQ(tree.at("a").items()[0], Value(1));
}

TEST(MapLeaves, DoesNotEnterWhatItReturned) {
  int calls = 0;
  map_leaves(Value::list({1}), [&](const Value&) {
    ++calls;
    return Value::list({2, 3});
  });
  EXPECT_EQ(calls, 1);
}

TEST(ExtractMatching, AgreesWithMegatron) {
  for (const Json& expected : testing::recorded("megatron_trees.json", "extract")) {
    SCOPED_TRACE(expected["tree"].dump());
    const Value tree = decode(expected["tree"]);
    const ExtractedLeaves lists = extract_matching(tree, is_sharded);
    EXPECT_EQ(Json::array({encode(lists.matching), encode(lists.rest)}), expected["list"]);
    const ExtractedLeaves dicts = extract_matching(tree, is_sharded, ListForm::kDict);
    EXPECT_EQ(Json::array({encode(dicts.matching), encode(dicts.rest)}), expected["dict"]);
    EXPECT_EQ(encode(tree), expected["tree"]) << "the tree itself has changed";
  }
}

TEST(ExtractMatching, SharesContainersWhoseLeavesAreAllOnOneSide) {
  const Value tree = decode(Json::parse(
      R"({"dict": [["a", {"dict": [["x", 1], ["y", [2, 3]]]}], ["b", [4, {"dict": []}]]]})"));
  const auto below = [](int limit) {
    return [=](const Value& leaf) { return leaf.is_int() && leaf.as_int() < limit; };
  };
  EXPECT_EQ(extract_matching(tree, below(0)).rest.identity(), tree.identity());
  const ExtractedLeaves some = extract_matching(tree, below(4));
  EXPECT_EQ(some.matching.at("a").identity(), tree.at("a").identity());
  EXPECT_EQ(some.rest.at("b").identity(), tree.at("b").identity());
  const ExtractedLeaves late = extract_matching(tree.at("a"), below(3));
  EXPECT_EQ(encode(late.matching), Json::parse(R"({"dict": [["x", 1], ["y", [2]]]})"));
  EXPECT_EQ(encode(late.rest), Json::parse(R"({"dict": [["y", [3]]]})"));
}

TEST(ExtractMatching, RefusesALeaf) {
  EXPECT_EQ(testing::error_of([] { extract_matching(Value(1), is_sharded); }).message(),
            "Unexpected top-level object type: int");
}

/// Returns the kind of an error. Megatron says "level" and "key" and prints whole values, so only
/// the kind has to agree.
std::string gist(const std::string& message) {
  for (const char* const kind :
       {"Duplicate non-dict and non-list values", "Cannot merge two lists with different lengths",
        "out of bound for list of length", "Different dict keys encountered",
        "non-integer type encountered in a list-dict merge"}) {
    if (message.find(kind) != std::string::npos) return kind;
  }
  return message;
}

TEST(Merge, AgreesWithMegatron) {
  int errors = 0;
  for (const Json& expected : testing::recorded("megatron_trees.json", "merge")) {
    SCOPED_TRACE(expected.dump());
    const auto merged = [&] { return merge(decode(expected["into"]), decode(expected["from"])); };
    if (expected.contains("result")) {
      EXPECT_EQ(encode(merged()), expected["result"]);
      continue;
    }
    const CheckpointError error = testing::error_of(merged);
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(gist(error.message()), gist(expected["message"]));
    ++errors;
  }
  EXPECT_GT(errors, 10);
}

TEST(Merge, NamesThePlaceOfADuplicate) {
  const Value left = decode(Json::parse(R"({"dict": [["a", [1, {"dict": [["b", "old"]]}]]]})"));
  const Value right =
      decode(Json::parse(R"({"dict": [["a", {"dict": [[1, {"dict": [["b", 5]]}]]}]]})"));
  EXPECT_EQ(testing::error_of([&] { merge(left, right, {.positions = true}); }).message(),
            "Duplicate non-dict and non-list values encountered: `'old'` and `5` (at "
            "'a.1.b')");
}

TEST(Merge, KeepsBothInputs) {
  const Value left = Value::dict({{"a", Value::dict({{"x", 1}})}});
  const Value right = Value::dict({{"a", Value::dict({{"y", 2}})}});
  EXPECT_EQ(merge(left, right).at("a").size(), 2u);
  EXPECT_EQ(left.at("a").size(), 1u);
  EXPECT_EQ(right.at("a").size(), 1u);
}

TEST(SetElement, AgreesWithTorch) {
  for (const Json& expected : testing::recorded("dcp_trees.json", "set_element")) {
    SCOPED_TRACE(expected.dump());
    Value root = Value::dict();
    for (const Json& step : expected["set"]) {
      KeyPath path;
      for (const Json& element : step[0])
        path.push_back(element.is_string() ? PathElement(element.get<std::string>())
                                           : PathElement(element.get<std::int64_t>()));
      const Value value = decode(step[1]);
      set_element(root, path, value);
      ASSERT_NE(find_element(root, path), nullptr);
      EXPECT_EQ(encode(*find_element(root, path)), step[1]);
    }
    EXPECT_EQ(encode(root), expected["result"]);
  }
}

TEST(SetElement, RefusesPathsThatContradictTheTree) {
  Value root = Value::dict({{"a", 1}, {"d", Value::dict({{"x", 1}})}, {"l", Value::list({1})}});
  for (const KeyPath& path : {KeyPath{"a", "b"}, KeyPath{"a", 0}, KeyPath{"d", 0},
                              KeyPath{"l", "x"}, KeyPath{"l", -1}, KeyPath{0}}) {
    EXPECT_EQ(testing::error_of([&] { set_element(root, path, 2); }).code(), ErrorCode::kCorrupt)
        << dotted_name(path);
  }
}

TEST(SetElement, FillsNoMoreThanAllowed) {
  Value root;
  EXPECT_EQ(set_element(root, {"l", 3, 2}, 1, 5), 5u);
  EXPECT_EQ(encode(root), Json::parse(R"({"dict": [["l", [null, null, null, [null, null, 1]]]]})"));
  Value other;
  EXPECT_THAT(testing::error_of([&] {
                set_element(other, {"l", 3, 3}, 1, 5);
              }).message(),
              HasSubstr("too far beyond"));
  EXPECT_THAT(testing::error_of([&] {
                set_element(other, {"m", INT64_MAX}, 1);
              }).message(),
              HasSubstr("too far beyond"));
}

TEST(SetElement, RefusesPathsBeyondTheDepthLimit) {
  Value root;
  const KeyPath path(kMaxTreeDepth + 1, PathElement("x"));
  EXPECT_EQ(testing::error_of([&] { set_element(root, path, 1); }).code(), ErrorCode::kUnsupported);
}

TEST(FindElement, GivesNullWhereNothingIs) {
  const Value root = Value::dict({{"l", Value::list({1})}});
  for (const KeyPath& path : {KeyPath{"x"}, KeyPath{"l", 1}, KeyPath{"l", -1}, KeyPath{"l", "0"},
                              KeyPath{"l", 0, 0}, KeyPath{0}}) {
    EXPECT_EQ(find_element(root, path), nullptr) << dotted_name(path);
  }
  EXPECT_EQ(*find_element(root, {"l", 0}), Value(1));
}

}  // namespace
}  // namespace dckpt::tree_test
