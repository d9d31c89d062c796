#include "operations/convert/removal/write_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/strategies/formats/pickle/pickle_files.h"
#include "tests/support/temp_dir.h"

namespace dckpt::pickle::write_graph_test {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;

/// Returns the goldens that have a pickle of their own: no persistent ids.
std::vector<std::string> goldens() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(DCKPT_TEST_DATA) + "/pickles")) {
    if (entry.path().extension() != ".pkl") continue;
    const std::string name = entry.path().stem().string();
    const Bytes pickle = golden(name);
    if (read_graph(pickle, name).persistent().empty()) names.push_back(name);
  }
  return names;
}

Bytes rewritten(ByteView pickle, const Omissions& omitted = {}) {
  return write_graph(read_graph(pickle, "test.pkl"), omitted);
}

TEST(WriteGraph, OurReaderSeesTheSameValue) {
  ASSERT_GT(goldens().size(), 10u);
  for (const std::string& name : goldens()) {
    const Bytes pickle = golden(name);
    EXPECT_EQ(load(rewritten(pickle)), load(pickle)) << name;
  }
}

#ifdef DCKPT_TEST_PYTHON
TEST(WriteGraph, PythonLoadsTheSameObjects) {
  const TempDir folder;
  for (const std::string& name : goldens())
    std::ofstream(folder / (name + ".w4.pkl"), std::ios::binary)
        << as_text(rewritten(golden(name)));
  const std::string command = "'" DCKPT_TEST_PYTHON "' '" DCKPT_TEST_SCRIPTS
                              "/same_pickles.py' '" DCKPT_TEST_DATA "/pickles' '" +
                              folder.path().string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}
#endif

TEST(WriteGraph, SharedReferencesStayShared) {
  const Value text = std::string(1000, 'x');
  const Value shared = Value::list({text});
  const Value twins = load(rewritten(write_pickle(Value::list({shared, shared, text}))));
  EXPECT_EQ(twins.items()[0].identity(), twins.items()[1].identity());
  EXPECT_LT(rewritten(write_pickle(Value::list({shared, shared, text}))).size(), 1100u);
}

TEST(WriteGraph, AListMayContainItself) {
  const Bytes again = rewritten(as_bytes("\x80\x04]\x94h\0a."s));  // l = []; l.append(l)
  const Graph graph = read_graph(again, "test.pkl");
  ASSERT_EQ(graph.children(graph.root()).size(), 1u);
  EXPECT_EQ(graph.children(graph.root())[0], graph.root());
}

TEST(WriteGraph, TuplesAndArgumentsMayLeadBackToThemselves) {
  // t = ([],); t[0].append(t), and an object whose only argument is a list that holds it
  for (const std::string& pickle :
       {"]q\0h\0\x85q\1a0h\1."s, "cm\nA\nq\0]q\1h\0h\1\x85q\2Rq\3a\x85q\4R0h\3."s})
    EXPECT_EQ(load(rewritten(as_bytes(pickle))), load(pickle));
}

TEST(WriteGraph, DeepValuesAreRefused) {
  Value deep;
  for (int i = 0; i < 1000; ++i) deep = Value::list({deep});
  EXPECT_NO_THROW(rewritten(write_pickle(deep)));
  EXPECT_EQ(error_of([&] { rewritten(write_pickle(Value::list({deep}))); }).code(),
            ErrorCode::kUnsupported);
}

TEST(WriteGraph, PersistentIdsAreRefused) {
  EXPECT_THAT(error_of([] { rewritten(as_bytes("\x80\x04\x8c\x01xQ."s)); }).message(),
              HasSubstr("persistent id"));
}

TEST(WriteGraph, MembersAndPairsCanBeLeftOut) {
  const Bytes pickle = write_pickle(
      Value::list({Value::dict({{"a", 1}, {"b", 2}, {"c", 3}}), Value::tuple({1, 2}), 7}));
  const Graph graph = read_graph(pickle, "test.pkl");
  const auto members = graph.children(graph.root());
  const Bytes less = write_graph(graph, {{graph.root(), {false, false, true}},
                                         {members[0], {false, true}},
                                         {members[1], {true, true}}});
  EXPECT_EQ(load(less), Value::list({Value::dict({{"a", 1}, {"c", 3}}), Value::tuple({})}));
}

}  // namespace
}  // namespace dckpt::pickle::write_graph_test
