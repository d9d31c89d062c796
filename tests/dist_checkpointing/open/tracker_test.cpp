#include "dist_checkpointing/open/tracker.h"

#include <gmock/gmock.h>

#include <fstream>

#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/posix.h"
#include "tests/support/code_of.h"
#include "tests/support/temp_dir.h"

namespace dckpt::tracker_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(TrainingRoot, NamesOfIterationsHaveSevenDigitsOrMore) {
  EXPECT_EQ(iteration_directory(0), "iter_0000000");
  EXPECT_EQ(iteration_directory(1000), "iter_0001000");
  EXPECT_EQ(iteration_directory(123456789), "iter_123456789");
  EXPECT_EQ(iteration_directory(kMaxIteration), "iter_1000000000000");
  EXPECT_EQ(code_of([] { iteration_directory(kMaxIteration + 1); }), "invalid-argument");
}

TEST(TrainingRoot, OnlyTheirExactSpellingIsAnIteration) {
  for (const std::uint64_t iteration :
       {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{12345678}, kMaxIteration}) {
    EXPECT_EQ(parse_iteration_directory(iteration_directory(iteration)), iteration);
  }
  for (const char* name : {"", "iter_", "iter_100", "iter_00000100", "iter_0000100 ",
                           "iter_+000100", "iter_0000100.bak", ".iter_0000100", "Iter_0000100",
                           "iter_1000000000001", "iter_99999999999999999999999"}) {
    EXPECT_EQ(parse_iteration_directory(name), std::nullopt) << name;
  }
}

TEST(TrainingRoot, AnIterationIsNamedInDecimalDigitsAsADirectoryOrAsRelease) {
  for (const char* text : {"100", "0000100", "iter_0000100", "iter_100"})
    EXPECT_EQ(parse_iteration_name(text), IterationName(100)) << text;
  EXPECT_EQ(parse_iteration_name("release"), IterationName::release());
  EXPECT_EQ(IterationName(100).directory(), "iter_0000100");
  EXPECT_EQ(IterationName::release().directory(), "release");
  for (const char* text :
       {"", "iter_", "0x10", "-1", "+1", " 1", "1e3", "latest", "iter_release", "1000000000001"})
    EXPECT_EQ(parse_iteration_name(text), std::nullopt) << text;
}

class TrackerFile : public ::testing::Test {
 protected:
  std::optional<std::string> read(const std::string& content) {
    std::ofstream(root_ / kTrackerFile, std::ios::trunc) << content;
    return read_tracker(*posix_storage(root_.path()));
  }
  TempDir root_;
};

TEST_F(TrackerFile, NamesADirectory) {
  EXPECT_EQ(read_tracker(*posix_storage(root_.path())), std::nullopt);
  EXPECT_EQ(read("1000"), "iter_0001000");
  EXPECT_EQ(read(" 1000\n"), "iter_0001000");
  EXPECT_EQ(read("release\n"), "release");
}

TEST_F(TrackerFile, IsReadAsPeopleAndScriptsWriteIt) {
  for (const char* content :
       {"iter_0000200\n", "iter_200", "iter_0000200/\n", "200.0", "200.000\r\n", "0000200",
        "\xEF\xBB\xBF"
        "200\r\n",
        "\n\t200 \r\n\r\n", "\xEF\xBB\xBF iter_0000200 "}) {
    EXPECT_EQ(read(content), "iter_0000200") << content;
  }
  EXPECT_EQ(read("\xEF\xBB\xBFrelease\r\n"), "release");
}

TEST_F(TrackerFile, RubbishIsCorrupt) {
  const std::vector<std::string> rubbish = {"",
                                            "latest",
                                            "-5",
                                            "../iter_0000100",
                                            "1e3",
                                            "200.5",
                                            "200.",
                                            ".0",
                                            "200 300",
                                            "200\n300\n",
                                            "run/iter_0000100",
                                            "iter_",
                                            "release.0",
                                            std::string("\xFF\xFE"
                                                        "2\0000\0",
                                                        6),
                                            "1000000000001",
                                            std::string(5000, '1'),
                                            std::string("10\0", 3)};
  for (const std::string& content : rubbish) {
    EXPECT_EQ(code_of([&] { read(content); }), "corrupt") << content;
  }
  fs::remove(root_ / kTrackerFile);
  fs::create_directory(root_ / kTrackerFile);
  EXPECT_EQ(code_of([&] { (void)read_tracker(*posix_storage(root_.path())); }), "corrupt");
}

TEST_F(TrackerFile, OfMegatronBridgeCountsWhereMegatronsIsMissing) {
  const auto storage = posix_storage(root_.path());
  fs::copy_file(fs::path(DCKPT_TEST_DATA) / "bridge" / kBridgeTrackerFile,
                root_ / kBridgeTrackerFile);
  EXPECT_EQ(read_tracker(*storage), "iter_0000010");
  EXPECT_EQ(read("7"), "iter_0000007");
  fs::remove(root_ / kTrackerFile);
  for (const Value& state : {Value::dict({}), Value::dict({{"step", -1}}), Value("ten")}) {
    const Bytes content = save_torch_file(state);
    std::ofstream(root_ / kBridgeTrackerFile, std::ios::binary) << as_text(content);
    EXPECT_EQ(code_of([&] { (void)read_tracker(*storage); }), "corrupt");
  }
}

TEST_F(TrackerFile, IsWrittenAsMegatronWritesIt) {
  const auto storage = posix_storage(root_.path());
  write_tracker(*storage, 99);
  write_tracker(*storage, 1000);
  std::ifstream file(root_ / kTrackerFile);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "1000");
  EXPECT_EQ(storage->list("").size(), 1U) << "no temporary file stays";
}

TEST(TrainingRoot, ListsDirectoriesOfIterationsAndNothingElse) {
  const TempDir root;
  EXPECT_THAT(list_iterations(root / "nowhere"), IsEmpty());
  for (const char* name : {"iter_0000300", "iter_0000020", "iter_12345678", "iter_20",
                           ".iter_0000400.saving-x", "release", "elsewhere"}) {
    fs::create_directory(root / name);
  }
  std::ofstream(root / "iter_0000500") << "a file";
  fs::create_directory_symlink("elsewhere", root / "iter_0000600");
  fs::create_directory_symlink("nowhere", root / "iter_0000700");
  EXPECT_THAT(list_iterations(root.path()), ElementsAre(20, 300, 600, 12345678));
}

TEST(TrainingRoot, DescribesTheNewestIterations) {
  EXPECT_EQ(describe_iterations({}), "no iterations");
  EXPECT_EQ(describe_iterations({7}), "iteration 7");
  EXPECT_EQ(describe_iterations({7, 8}), "iterations 7 and 8");
  EXPECT_EQ(describe_iterations({7, 8, 9, 10}, 3), "iterations … 8, 9 and 10");
}

}  // namespace
}  // namespace dckpt::tracker_test
