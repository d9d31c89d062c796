#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/formats/pickle/pickle_files.h"

namespace dckpt::pickle::read_rows_test {
namespace {

using namespace std::string_literals;
using Kind = Graph::Kind;
using ::testing::ElementsAre;

constexpr RowType kClasses[] = {{"m", "Row", {"a", "b"}}};
constexpr RowTypes kTypes{kClasses, "m", "Size"};

// A list of protocol 4 whose first members are referred to by rows. In the memo, the list is 0, the
// class 1, "a" 2, "b" 3 and Size 4.
const std::string kHead =
    "\x80\4]\x94(cm\nRow\n\x94\x8c\1a\x94\x8c\1b\x94"
    "cm\nSize\n\x94"s;
const std::string kTail = "e.";

/// Reads the list with more members.
Graph read(const std::string& items, std::string& pickle) {
  pickle = kHead + items + kTail;
  return read_rows(as_bytes(pickle), "f", kTypes);
}

std::span<const Graph::Id> members(const Graph& graph) {
  return graph.children(graph.root()).subspan(4);
}

struct Spelling {
  const char* name;
  std::string item;
};

class RowSpelling : public ::testing::TestWithParam<Spelling> {};
class NodeSpelling : public ::testing::TestWithParam<Spelling> {};
class Unreadable : public ::testing::TestWithParam<Spelling> {};

TEST_P(RowSpelling, IsARow) {
  std::string pickle;
  const Graph graph = read(GetParam().item, pickle);
  ASSERT_EQ(members(graph).size(), 1u);
  const Graph::Id row = members(graph)[0];
  ASSERT_EQ(graph.kind(row), Kind::kRow);
  EXPECT_EQ(graph.row_type(row), 0u);
  EXPECT_EQ(graph.cells(row).size(), 2u);
}

const Spelling kRows[] = {
    {"AsPicklersWrite", "h\1)\x81\x94}\x94(h\2K\1h\3K\2ub"s},
    {"WithoutMemo", "h\1)\x81}(h\2K\1h\3K\2ub"s},
    {"FarInTheMemo", "j\1\0\0\0)\x81}(j\2\0\0\0K\1h\3K\2ub"s},
    {"InAnotherOrder", "h\1)\x81}(h\3K\2h\2K\1ub"s},
    {"OneField", "h\1)\x81}(h\3K\2ub"s},
    {"None", "h\1)\x81}(h\2Nh\3Nub"s},
    {"NewText", "h\1)\x81}(h\2\x8c\4text\x94h\3K\2ub"s},
    {"LongerText", "h\1)\x81}(h\2X\4\0\0\0texth\3K\2ub"s},
    {"KnownText", "h\1)\x81}(h\2h\3h\3K\2ub"s},
    {"NoCounts", "h\1)\x81}(h\2h\4)\x85Rh\3K\2ub"s},
    {"OneCount", "h\1)\x81}(h\2h\4K\7\x85\x85Rh\3K\2ub"s},
    {"ThreeCounts", "h\1)\x81}(h\2h\4K\7M\0\1J\0\0\1\0\x87\x85Rh\3K\2ub"s},
    {"ManyCounts", "h\1)\x81}(h\2h\4(K\1K\2K\3K\4t\x94\x85\x94R\x94h\3K\2ub"s},
    {"Greatest", "h\1)\x81}(h\2\x8a\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7Fh\3K\2ub"s},
};
INSTANTIATE_TEST_SUITE_P(Each, RowSpelling, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(NodeSpelling, StaysNodes) {
  std::string pickle;
  const Graph graph = read(GetParam().item, pickle);
  ASSERT_EQ(members(graph).size(), 1u);
  EXPECT_EQ(graph.kind(members(graph)[0]), Kind::kNew);
}

const Spelling kNodes[] = {
    {"Negative", "h\1)\x81}(h\2J\xFF\xFF\xFF\xFFh\3K\2ub"s},
    {"NegativeLong", "h\1)\x81}(h\2\x8a\1\xFFh\3K\2ub"s},
    {"LongOfNoBytes", "h\1)\x81}(h\2\x8a\0h\3K\2ub"s},
    {"LongOfNineBytes", "h\1)\x81}(h\2\x8a\x09\1\0\0\0\0\0\0\0\0h\3K\2ub"s},
    {"NegativeCount", "h\1)\x81}(h\2h\4K\7\x8a\1\xFF\x86\x85Rh\3K\2ub"s},
    {"EmptyLongInCounts", "h\1)\x81}(h\2h\4K\7\x8a\0\x86\x85Rh\3K\2ub"s},
    {"FourCountsOfWhichOneIsBelow", "h\1)\x81}(h\2h\4K\1\x8c\1a\x86\x85Rh\3K\2ub"s},
    {"FieldTwice", "h\1)\x81}(h\2K\1h\2K\2ub"s},
    {"FieldUnknown", "h\1)\x81}(h\2K\1\x8c\1cK\2ub"s},
    {"FieldThatIsNoText", "h\1)\x81}(h\2K\1h\4K\2ub"s},
    {"NameAnew", "h\1)\x81}(\x8c\1aK\1h\3K\2ub"s},
    {"Float", "h\1)\x81}(h\2G\0\0\0\0\0\0\0\0h\3K\2ub"s},
    {"OneByOne", "h\1)\x81}h\2K\1sb"s},
    {"WithArguments", "h\1K\1\x85\x81}(h\2K\1h\3K\2ub"s},
    {"StateOfTwo",
     "h\1)\x81N}(h\2K\1h\3K\2u\x86"
     "b"s},
    {"WithoutState", "h\1)\x81"s},
    {"OtherClass", "h\4)\x81}(h\2K\1h\3K\2ub"s},
};
INSTANTIATE_TEST_SUITE_P(Each, NodeSpelling, ::testing::ValuesIn(kNodes),
                         [](const auto& row) { return std::string(row.param.name); });

/// A row with its parts in the memo: the object at 5, its dict at 6, a tuple of counts at 7, the
/// tuple around it at 8, and the Size at 9.
const std::string kRemembered = "h\1)\x81\x94}\x94(h\2h\4K\7K\x08\x86\x94\x85\x94R\x94h\3K\2ub"s;

TEST(Rows, HaveTheirValuesInThePickle) {
  std::string pickle;
  const Graph graph = read(kRemembered + "h\1)\x81\x94}\x94(h\2h\3h\3M\0\1ub"s, pickle);
  const auto first = graph.cells(members(graph)[0]);
  ASSERT_TRUE(Graph::is_in_pickle(first[0]));
  ASSERT_TRUE(graph.has_counts(first[0]));
  std::array<std::int64_t, 3> counts{};
  EXPECT_EQ(graph.counts(first[0], counts), 2u);
  EXPECT_THAT(counts, ElementsAre(7, 8, 0));
  EXPECT_FALSE(graph.has_counts(first[1]));
  EXPECT_EQ(graph.count(first[1]), 2);
  const auto second = graph.cells(members(graph)[1]);
  EXPECT_EQ(graph.text(second[0]), "b");
  EXPECT_EQ(graph.count(second[1]), 256);
}

TEST(Rows, ReferToCountsOfEachOther) {
  std::string pickle;
  const Graph graph = read(kRemembered + "h\1)\x81}(h\2h\x09ub" + "h\x09h\5"s, pickle);
  const auto items = members(graph);
  ASSERT_EQ(items.size(), 4u);
  const Graph::Id counts = graph.cells(items[0])[0];
  EXPECT_THAT(graph.cells(items[1]), ElementsAre(counts, Graph::kNil));
  ASSERT_EQ(graph.kind(items[2]), Kind::kRow);
  EXPECT_EQ(graph.row_type(items[2]), Graph::kCountsRow);
  EXPECT_THAT(graph.cells(items[2]), ElementsAre(counts));
  EXPECT_EQ(items[3], items[0]);
}

TEST_P(Unreadable, IsLeftToReadGraph) {
  const std::string pickle = kHead + kRemembered + GetParam().item + kTail;
  EXPECT_NO_THROW(read_graph(as_bytes(pickle), "f"));
  EXPECT_THROW(read_rows(as_bytes(pickle), "f", kTypes), CheckpointError);
}

const Spelling kUnreadable[] = {
    {"DictIsReferredTo", "h\6"s},
    {"TupleIsReferredTo", "h\7"s},
    {"TupleAroundItIsReferredTo", "h\x08"s},
    {"DictInARow", "h\1)\x81}(h\2h\6ub"s},
    {"OneMoreState", "h\5}b"s},
    {"ItemSet", "h\5K\1K\2s"s},
    {"MemoOverwritten", "K\1q\5"s},
    {"MemoSkipped", "K\1q\x77"s},
};
INSTANTIATE_TEST_SUITE_P(Each, Unreadable, ::testing::ValuesIn(kUnreadable),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Rows, AreNotTakenFromAMemoThatIsNotCountedUp) {
  std::string pickle;
  const Graph graph = read("K\1q\x77" + kRemembered, pickle);
  EXPECT_EQ(graph.kind(members(graph)[1]), Kind::kNew);
}

TEST(Rows, DoNotNestDeeperThanOtherValues) {
  const std::string marks(995, '(');
  for (const std::size_t more : {std::size_t{0}, std::size_t{3}}) {
    std::string pickle;
    const Graph graph =
        read(marks + std::string(more, '(') + kRemembered + std::string(995 + more, 't'), pickle);
    Graph::Id inner = members(graph)[0];
    while (graph.kind(inner) == Kind::kTuple) inner = graph.children(inner)[0];
    EXPECT_EQ(graph.kind(inner), more == 0 ? Kind::kRow : Kind::kNew);
  }
}

TEST(Rows, CutShortAreRefused) {
  const std::string pickle = kHead + kRemembered + kRemembered + kTail;
  for (std::size_t size = 0; size < pickle.size(); ++size) {
    const Bytes cut = to_bytes(pickle.substr(0, size));  // a separate copy, for AddressSanitizer
    EXPECT_THROW(read_rows(cut, "f", kTypes), CheckpointError) << size;
  }
}

}  // namespace
}  // namespace dckpt::pickle::read_rows_test
