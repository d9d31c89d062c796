#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/formats/pickle/pickle_files.h"

namespace dckpt::pickle::read_graph_test {
namespace {

using namespace std::string_literals;
using Kind = Graph::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Malformed {
  const char* name;
  std::string pickle;
  const char* message;
  ErrorCode code = ErrorCode::kCorrupt;
};

class MalformedPickle : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedPickle, IsRefusedByName) {
  const Malformed& param = GetParam();
  const CheckpointError error = error_of([&] { read_graph(as_bytes(param.pickle), "common.pt"); });
  EXPECT_EQ(error.code(), param.code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(param.message));
  EXPECT_EQ(error.context().file, "common.pt");
  EXPECT_TRUE(error.context().offset);
}

const Malformed kMalformed[] = {
    {"Empty", ""s, "end before STOP"},
    {"NoStop", "\x80\x02N"s, "end before STOP"},
    {"OpcodeUnknown", "\xFF"s, "unknown opcode 255"},
    {"ZipFile", "PK\3\4"s, "unknown opcode 80"},
    {"ProtocolSix", "\x80\x06N."s, "protocol 6", ErrorCode::kUnsupported},
    {"BytesAfterStop", "N.N."s, "2 bytes follow STOP"},
    {"StopOnEmptyStack", "."s, "takes 1 value "},
    {"StopOnMark", "N(."s, "takes 1 value "},
    {"StopLeavesValues", "NN."s, "1 more value on"},
    {"TupleWithoutMark", "K\1t."s, "no MARK"},
    {"PopOnEmptyStack", "0N."s, "takes 1 value "},
    {"PopMarkWithoutMark", "N1."s, "no MARK"},
    {"TwoForThree", "NN\x87."s, "takes 3 values"},
    {"ReduceWithOneOperand", "NR."s, "takes 2 values"},
    {"ReduceReachesBelowMark", "cos\nf\n()R."s, "takes 2 values"},
    {"ReduceOfPlainValue", "K\1)R."s, "callee is not callable"},
    {"ReduceWithoutTuple", "cos\nf\nK\1R."s, "must be a tuple"},
    {"NewObjWithoutTuple", "cos\nf\n]\x81."s, "must be a tuple"},
    {"NewObjExWithoutDict", "cos\nf\n))\x92."s, "must be a dict"},
    {"BuildOnDict", "}}b."s, "plain value"},
    {"AppendOnTuple", ")K\1a."s, "neither a list nor an object"},
    {"AppendsOnDict", "}(K\1e."s, "neither a list nor an object"},
    {"AppendsOnNothing", "(K\1e."s, "from the stack"},
    {"SetItemOnList", "]K\1K\2s."s, "neither a dict nor an object"},
    {"SetItemsOnInt", "K\1(K\1K\2u."s, "neither a dict nor an object"},
    {"SetItemsOdd", "}(K\1K\2K\3u."s, "key without a value"},
    {"AddItemsOnList", "](K\1\x90."s, "not a set"},
    {"GetOfNothing", "h\7."s, "memo index 7"},
    {"PutWithoutValue", "q\0."s, "takes 1 value "},
    {"GlobalWithoutNewline", "cos"s, "inside a line"},
    {"GlobalWithoutName", "cos\n\n."s, "without module or name"},
    {"StackGlobalOfInts", "K\1K\2\x93."s, "two strings"},
    {"ExtensionCode", "\x82\1."s, "copyreg extension"},
    {"OutOfBandBuffer", "\x97."s, "out-of-band"},
    {"ReadonlyBuffer", "N\x98."s, "out-of-band"},
    {"TextBeyondTheEnd",
     "X\xFF\xFF\xFF\xFF"
     "abc."s,
     "4294967295 bytes, but 4 are left"},
    {"Text8BeyondTheEnd",
     "\x8D\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
     "abc."s,
     "but 4 are left"},
    {"BytesBeyondTheEnd",
     "\x8E\0\0\0\0\0\1\0\0"
     "."s,
     "1099511627776 bytes"},
    {"ByteArrayBeyondTheEnd",
     "\x96\0\0\0\0\0\1\0\0"
     "."s,
     "1099511627776 bytes"},
    {"Long4Negative", "\x8B\xFF\xFF\xFF\xFF."s, "negative length -1"},
    {"FrameBeyondTheEnd", "\x95\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7FN."s, "a frame of"},
    {"NumberCutShort", "J\1\2."s, "declares 4 bytes"},
    {"TextNotUtf8", "X\2\0\0\0\xFF\xFE."s, "not UTF-8"},
    {"TextOverlong", "\x8C\2\xC0\x80."s, "not UTF-8"},
    {"TextBeyondUnicode", "\x8C\4\xF4\x90\x80\x80."s, "not UTF-8"},
    {"TextCutShort", "\x8C\2\xE6\x97."s, "not UTF-8"},
};

INSTANTIATE_TEST_SUITE_P(Opcode, MalformedPickle, ::testing::ValuesIn(kMalformed),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ReadGraph, OpcodesOfOldPicklesAreRefusedByName) {
  for (const char* const name : {"refused/plain.p0", "refused/plain.p1"}) {
    const CheckpointError error = error_of([&] { read_graph(golden(name), name); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("save it again with protocol 2 or newer"));
  }
  const std::pair<std::string, const char*> old[] = {{"N2\x86."s, "DUP ('2')"},
                                                     {"NSabc\n."s, "STRING ('S')"},
                                                     {"NT\1\0\0\0a."s, "BINSTRING ('T')"},
                                                     {"NU\1a."s, "SHORT_BINSTRING ('U')"},
                                                     {"N(im\nC\n."s, "INST ('i')"},
                                                     {"N(cm\nC\no."s, "OBJ ('o')"},
                                                     {"NPname\n."s, "PERSID ('P')"},
                                                     {"Np0\n."s, "PUT ('p')"}};
  for (const auto& [pickle, name] : old) {
    const CheckpointError error =
        error_of([&, &text = pickle] { read_graph(as_bytes(text), "common.pt"); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr(name));
  }
}

TEST(ReadGraph, ErrorsNameTheOffsetOfTheOpcode) {
  const CheckpointError error = error_of([] { read_graph(as_bytes("\x80\x02NN\xFF"), "f"); });
  EXPECT_EQ(error.context().offset, 4U);
}

TEST(ReadGraph, EveryTruncationOfAGoldenPickleIsRefused) {
  for (const char* name : {"plain.p2", "plain.p5", "objects.p2"}) {
    const Bytes whole = golden(name);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_THROW(read_graph(ByteView(whole).first(size), name), CheckpointError)
          << name << " cut to " << size;
    }
  }
}

TEST(ReadGraph, StreamsOfSeveralPicklesTellWhereTheFirstEnds) {
  std::size_t consumed = 0;
  const Graph graph = read_graph(as_bytes("K\1.K\2."), "stream", {}, &consumed);
  EXPECT_EQ(graph.integer(graph.root()), 1);
  EXPECT_EQ(consumed, 3U);
}

TEST(ReadGraph, CallsAreNodesAndWhatIsPoppedLeavesNoTrace) {
  const std::string pickle = "cos\nsystem\n(X\1\0\0\0xtR0K\5."s;
  const Graph graph = read_graph(as_bytes(pickle), "f");
  EXPECT_EQ(graph.kind(graph.root()), Kind::kInt);
}

TEST(ReadGraph, ObjectsCarryTheirStatesAndItems) {
  const Graph graph = read_graph(as_bytes("cm\nC\n)\x81(K\1K\2eK\3K\4sK\5bK\6bK\7a."), "f");
  const Graph::Id object = graph.root();
  ASSERT_EQ(graph.kind(object), Kind::kNew);
  ASSERT_EQ(graph.child_count(object), 2U);
  EXPECT_EQ(graph.text(graph.children(graph.children(object)[0])[1]), "C");
  const auto integers = [&](std::span<const Graph::Id> ids) {
    std::vector<std::int64_t> values;
    for (const Graph::Id id : ids) values.push_back(graph.integer(id));
    return values;
  };
  const Graph::Extras extras = graph.extras(object);
  EXPECT_THAT(integers(extras.states), ElementsAre(5, 6));
  EXPECT_THAT(integers(extras.list_items), ElementsAre(1, 2, 7));
  EXPECT_THAT(integers(extras.dict_items), ElementsAre(3, 4));
}

TEST(ReadGraph, AStateStaysFirstWhenItemsFollow) {
  const Graph graph = read_graph(as_bytes("cm\nC\n)\x81K\5bK\1aK\6b."), "f");
  const Graph::Extras extras = graph.extras(graph.root());
  ASSERT_EQ(extras.states.size(), 2U);
  EXPECT_EQ(graph.integer(extras.states[0]), 5);
  EXPECT_EQ(graph.integer(extras.states[1]), 6);
  ASSERT_EQ(extras.list_items.size(), 1U);
  EXPECT_EQ(graph.integer(extras.list_items[0]), 1);
  EXPECT_TRUE(extras.dict_items.empty());
}

TEST(ReadGraph, ContainersThatAreFilledInTurnsKeepTheirOrder) {
  // Two lists: a = [1, 2, 300, 4], b = [5, 600], one item after the other.
  const Graph graph = read_graph(as_bytes("]q\0]q\1\x86"
                                          "0h\0K\1aK\2a"
                                          "0h\1K\5a"
                                          "0h\0M\x2C\1aK\4a"
                                          "0h\1M\x58\2a"
                                          "0h\0h\1\x86."s),
                                 "f");
  std::vector<std::vector<std::int64_t>> lists;
  for (const Graph::Id list : graph.children(graph.root())) {
    for (lists.emplace_back(); const Graph::Id item : graph.children(list))
      lists.back().push_back(graph.integer(item));
  }
  EXPECT_THAT(lists, ElementsAre(ElementsAre(1, 2, 300, 4), ElementsAre(5, 600)));
}

TEST(ReadGraph, NumbersAndTextsOfEverySizeKeepTheirValue) {
  const auto integer = [](std::int64_t value) {
    std::string pickle = "\x8A\x08"s;
    for (int shift = 0; shift < 64; shift += 8) pickle += static_cast<char>(value >> shift);
    const Graph graph = read_graph(as_bytes(pickle += '.'), "f");
    return graph.integer(graph.root());
  };
  for (int bits = 0; bits < 63; ++bits) {
    const std::int64_t power = std::int64_t{1} << bits;
    for (const std::int64_t value : {power - 1, power, -power, -power - 1})
      EXPECT_EQ(integer(value), value);
  }
  EXPECT_EQ(integer(INT64_MIN), INT64_MIN);
  for (const std::uint32_t size : {0U, (1U << 24) - 1, 1U << 24}) {
    std::string pickle = "X"s;
    for (int shift = 0; shift < 32; shift += 8) pickle += static_cast<char>(size >> shift);
    pickle += std::string(size, 'x') + '.';
    const Graph graph = read_graph(as_bytes(pickle), "f");
    EXPECT_EQ(graph.text(graph.root()).size(), size);
    EXPECT_EQ(graph.text(graph.root()).data(), pickle.data() + 5);
  }
}

TEST(ReadGraph, TuplesOfManyMembersKeepThemAll) {
  constexpr std::size_t kMembers = (1 << 24) + 1;  // more than fit beside the kind
  const std::string pickle = "(" + std::string(kMembers - 1, 'N') + "K\7t.";
  const Graph graph = read_graph(as_bytes(pickle), "f");
  ASSERT_EQ(graph.child_count(graph.root()), kMembers);
  EXPECT_EQ(graph.integer(graph.children(graph.root()).back()), 7);
}

TEST(ReadGraph, PersistentIdsAreListed) {
  const Graph graph = read_graph(as_bytes("K\1Q0](K\2QK\3e."s), "f");
  ASSERT_EQ(graph.persistent().size(), 2U);
  EXPECT_EQ(graph.integer(graph.children(graph.persistent()[1])[0]), 2);
}

TEST(ReadGraph, ObjectsWithoutExtrasHaveNone) {
  const Graph graph = read_graph(as_bytes("cm\nf\n)R."), "f");
  EXPECT_TRUE(graph.extras(graph.root()).states.empty());
  EXPECT_TRUE(graph.extras(graph.root()).dict_items.empty());
}

TEST(ReadGraph, Python2NamesAreTranslatedInOldProtocolsOnly) {
  const auto path = [](std::string_view pickle) {
    const Graph graph = read_graph(as_bytes(pickle), "f");
    const auto names = graph.children(graph.root());
    return std::string(graph.text(names[0])) + "." + std::string(graph.text(names[1]));
  };
  EXPECT_EQ(path("c__builtin__\nxrange\n."), "builtins.range");
  EXPECT_EQ(path("\x80\x02"
                 "ccopy_reg\n_reconstructor\n."),
            "copyreg._reconstructor");
  EXPECT_EQ(path("\x80\x02"
                 "cexceptions\nOSError\n."),
            "builtins.OSError");
  EXPECT_EQ(path("\x80\x03"
                 "c__builtin__\nset\n."),
            "__builtin__.set");
}

TEST(ReadGraph, NamesOfGlobalsAreNotTrimmed) {
  const Graph graph = read_graph(as_bytes("cos\r\nsystem\r\n."), "f");
  EXPECT_EQ(graph.text(graph.children(graph.root())[0]), "os\r");
}

TEST(ReadGraph, MemoizeCountsTheIndicesInUse) {
  // BINPUT 1 stores "a"; one index is in use, so MEMOIZE stores "b" at 1 as well.
  const std::string pickle =
      "X\1\0\0\0aq\1"
      "0X\1\0\0\0b\x94"
      "0h\1."s;
  const Graph graph = read_graph(as_bytes(pickle), "f");
  EXPECT_EQ(graph.text(graph.root()), "b");
}

TEST(ReadGraph, MemoIndicesMayBeSparse) {
  const Graph graph = read_graph(as_bytes("K\1r\xFF\xFF\xFF\xFF"
                                          "0K\2q\5"
                                          "0j\xFF\xFF\xFF\xFF."),
                                 "f");
  EXPECT_EQ(graph.integer(graph.root()), 1);
}

TEST(ReadGraph, AStrayMemoIndexKeepsItsValueWhenTheArrayReachesIt) {
  std::string pickle = "](K\1r\0\4\0\0"s;  // index 1024 before any other
  for (int i = 0; i < 1100; ++i) {
    if (i != 1024)
      pickle += "K\2r"s + static_cast<char>(i & 0xFF) + static_cast<char>(i >> 8) + "\0\0"s;
  }
  pickle += "j\0\4\0\0e."s;
  const Graph graph = read_graph(as_bytes(pickle), "f");
  EXPECT_EQ(graph.integer(graph.children(graph.root()).back()), 1);
}

TEST(ReadGraph, LongsAreCanonical) {
  const Graph padded = read_graph(as_bytes("\x8A\x0A\x05\0\0\0\0\0\0\0\0\0."s), "f");
  EXPECT_EQ(padded.integer(padded.root()), 5);
  const Graph negative = read_graph(as_bytes("\x8A\x01\xFF."), "f");
  EXPECT_EQ(negative.integer(negative.root()), -1);
  const Graph zero = read_graph(as_bytes("\x8A\0."s), "f");
  EXPECT_EQ(zero.integer(zero.root()), 0);
}

TEST(ReadGraph, LimitsHoldAtTheLimitAndBreakPastIt) {
  const auto marks = [](std::size_t count) {
    return std::string(count, '(') + std::string(count, '1') + "N.";
  };
  EXPECT_NO_THROW(read_graph(as_bytes(marks(1000)), "f"));
  EXPECT_THAT(error_of([&] { read_graph(as_bytes(marks(1001)), "f"); }).what(),
              HasSubstr("1000 nested MARKs"));
  EXPECT_NO_THROW(read_graph(as_bytes("](K\1K\2e."), "f", {.max_nodes = 3}));
  EXPECT_THAT(error_of([] { read_graph(as_bytes("](K\1K\2e."), "f", {.max_nodes = 2}); }).what(),
              HasSubstr("more than 2 values"));
  EXPECT_NO_THROW(read_graph(as_bytes("N."), "f", {.max_bytes = 2}));
  EXPECT_EQ(error_of([] { read_graph(as_bytes("N."), "f", {.max_bytes = 1}); }).code(),
            ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace dckpt::pickle::read_graph_test
