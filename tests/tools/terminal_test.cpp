#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "dist_checkpointing/save/save.h"
#include "tests/tools/goldens.h"
#include "tests/tools/run_on_terminal.h"
#include "tests/tools/run_tool.h"
#include "tools/dckpt/render/text_layout.h"

// The output that users see: the tool on terminals of several widths.

namespace dckpt::terminal_test {
namespace {

using testing::Copy;
using ::testing::HasSubstr;
using testing::kModel;
using ::testing::Not;
using testing::path_of;
using testing::run_on_terminal;
using testing::run_tool;
using ::testing::StartsWith;

constexpr const char* kLayerKey = "decoder.layers.mlp.linear_fc1.weight";

/// Expects that no breakable line is wider than the terminal.
void expect_fits(const std::string& text, std::size_t columns) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    bool has_long_word = false;  // such as a path, which stays whole behind an indent or a name
    for (std::string word; words >> word;)
      has_long_word = has_long_word || tool::columns_of(word) + 8 > columns;
    if (has_long_word) continue;
    EXPECT_LE(tool::columns_of(line), columns) << line;
  }
}

TEST(ToolOnATerminal, EverythingFits) {
  const std::string model = path_of(kModel);
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--help"},
                                                {"convert", "--help"},
                                                {"inspect", "--help"},
                                                {"verify", model, "--deep"},
                                                {"inspect", model},
                                                {"inspect", model, "--chunks"},
                                                {"explain", model, kLayerKey},
                                                {"inspect", "/no/such/checkpoint"},
                                                {"inspekt"}}) {
    expect_fits(run_on_terminal(words, 40), 40);
    expect_fits(run_on_terminal(words, 80), 80);
    expect_fits(run_on_terminal(words, 120, true), 120);
  }
}

/// No row is wrapped, as that would begin a line with what belongs into another column.
TEST(ToolOnATerminal, TablesThatAreTooWideContinueBelowEachRow) {
  const std::string model = path_of(kModel);
  const auto lines_of = [](const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  };
  const std::vector<std::string> digests = lines_of(run_on_terminal({"digest", model}, 80));
  ASSERT_GT(digests.size(), 20u);
  EXPECT_EQ(digests.size() % 2, 0u);
  EXPECT_THAT(digests[0], StartsWith("DTYPE"));
  for (std::size_t i = 2; i < digests.size(); i += 2) {
    EXPECT_THAT(digests[i], Not(StartsWith(" ")));
    EXPECT_EQ(digests[i + 1].size(), 2u + 64);
  }
  const std::vector<std::string> stats = lines_of(run_on_terminal({"stats", model}, 80));
  ASSERT_GT(stats.size(), 20u);
  EXPECT_THAT(stats[0], StartsWith("KEY"));
  EXPECT_THAT(stats[1], StartsWith("  ELEMENTS "));
  for (std::size_t i = 2; i + 1 < stats.size() && !stats[i].starts_with("all weights"); i += 2) {
    EXPECT_THAT(stats[i], Not(StartsWith(" ")));
    EXPECT_EQ(stats[i + 1].size(), stats[1].size());
  }
  const std::vector<std::string> layers = {"stats", path_of("dcp-fsdp2-tp"), "--layers"};
  const std::vector<std::string> shown = lines_of(run_on_terminal(layers, 80));
  EXPECT_EQ(shown.size(), lines_of(run_tool(layers).out).size());
  for (const std::string& line : shown) EXPECT_LE(tool::columns_of(line), 80u);
  EXPECT_THAT(shown[0], Not(HasSubstr("NAN"))) << "a column without numbers";
  EXPECT_THAT(run_on_terminal(layers, 200), HasSubstr("NAN"));
}

TEST(ToolOnATerminal, ColumnsTellsTheWidthOfATerminalThatDoesNot) {
  const std::vector<std::string> words = {"verify", path_of(kModel)};
  ::setenv("COLUMNS", "50", 1);
  const std::string narrow = run_on_terminal(words, 0);
  ::setenv("COLUMNS", "many", 1);
  const std::string wide = run_on_terminal(words, 0);
  ::unsetenv("COLUMNS");
  EXPECT_EQ(narrow, run_on_terminal(words, 50));
  EXPECT_EQ(wide, run_on_terminal(words, 80));
}

TEST(ToolOnATerminal, WarningsFit) {
  const Copy copy("mcore-0.16-nvrx-local");
  std::filesystem::copy(copy.path() / "0/iter_0000010_0_local.pt",
                        copy.path() / "0/iter_0000020_0_local.pt");
  const std::string shown = run_on_terminal({"verify", copy.text()}, 60);
  EXPECT_THAT(shown, HasSubstr("dckpt: warning: iteration 20 has files of 1 of 4 ranks"));
  expect_fits(shown, 60);
}

TEST(ToolOnATerminal, AProblemThatIsListedIsNotRepeated) {
  const Copy copy(kModel);
  std::filesystem::remove(copy.path() / "__0_0.distcp");
  const TempDir folder;
  std::ofstream(folder / "run.yaml") << "version: 1\nsave: {strategi: dcp}\n";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"verify", copy.text()},
        {"config", "check", (folder / "run.yaml").string()}}) {
    const std::string shown = run_on_terminal(words, 10'000);
    EXPECT_THAT(shown, HasSubstr("error: 1 problem in '"));
    EXPECT_THAT(shown, Not(HasSubstr("the first")));
    EXPECT_THAT(run_tool(words).err, HasSubstr("the first: "));
  }
}

TEST(ToolOnATerminal, KeysAreShortenedThereAndWholeInPipes) {
  const std::vector<std::string> words = {"inspect", path_of(kModel)};
  const std::string key = "decoder.layers.self_attention.linear_qkv.layer_norm_weight";
  EXPECT_THAT(run_on_terminal(words, 72), HasSubstr("…layer_norm_weight\n"));
  EXPECT_THAT(run_on_terminal(words, 72), Not(HasSubstr(key)));
  EXPECT_THAT(run_on_terminal(words, 120), HasSubstr(key));
  EXPECT_THAT(run_tool(words).out, HasSubstr(key));
}

TEST(ToolOnATerminal, ExplainDrawsTheGridOfATensor) {
  const std::string picture = R"(
    0   32  64  96  128
    ┌───┬───┬───┬───┐
  0 │ 0 │ 3 │ 0 │ 1 │
    ├───┼───┼───┼───┤
  1 │ 2 │ 3 │ 0 │ 1 │
    ├───┼───┼───┼───┤
  2 │ 6 │ 5 │ 6 │ 5 │
    ├───┼───┼───┼───┤
  3 │ 4 │ 7 │ 6 │ 5 │
    └───┴───┴───┴───┘
)";
  const std::vector<std::string> words = {"explain", path_of(kModel), kLayerKey};
  EXPECT_THAT(run_on_terminal(words, 80), HasSubstr(picture));
  EXPECT_THAT(run_on_terminal(words, 80, true), HasSubstr("\x1b[32m0\x1b[0m"));
  EXPECT_THAT(run_tool({"explain", path_of(kModel), kLayerKey, "--json"}).out,
              Not(HasSubstr("───")));
}

TEST(ToolOnATerminal, InspectDrawsGroupsAndLayers) {
  const std::string shown = run_on_terminal({"inspect", path_of(kModel)}, 80);
  EXPECT_THAT(shown, HasSubstr("588.8 KiB  ███████████"));
  EXPECT_THAT(shown, HasSubstr("  decoder 0…3  ███████████"));
}

TEST(ToolOnATerminal, ConversionsShowWhatRanksHoldBeforeAndAfter) {
  const TempDir directory;
  const std::string target = (directory / "b").string();
  const std::vector<std::string> words = {"convert", path_of(kModel), target, "--ranks",
                                          "3",       "--dry-run"};
  const std::string shown = run_on_terminal(words, 80);
  EXPECT_THAT(shown, HasSubstr(R"(
before
  rank 0  █████████████████▌                        114.4 KiB
)"));
  EXPECT_THAT(shown, HasSubstr("\nafter\n  rank 0  ███████"));
  expect_fits(shown, 80);
  const Value held =
      run_tool({"convert", path_of(kModel), target, "--ranks", "3", "--dry-run", "--json"})
          .json()
          .at("held");
  EXPECT_EQ(held.at("after").size(), 3u);
  EXPECT_EQ(held.at("before").items()[0].at("file").as_str(), "__0_0.distcp");
}

/// Saves layers of four elements, of which one is in the last layer of `value`.
void save_layers(const Location& location, float value) {
  StateDict state;
  for (int layer = 0; layer < 4; ++layer) {
    const std::string key = "decoder.layers." + std::to_string(layer) + ".weight";
    Tensor tensor = Tensor::zeros(DType::kFloat32, {4});
    if (layer == 3) std::memcpy(tensor.data(), &value, sizeof value);
    state[key] = ShardedTensor::whole(key, tensor);
  }
  save(state, location, {});
}

TEST(ToolOnATerminal, DiffShowsTheLayersThatDiffer) {
  const TempDir directory;
  save_layers(directory / "a", 1);
  save_layers(directory / "b", 2);
  const std::vector<std::string> words = {"diff", (directory / "a").string(),
                                          (directory / "b").string()};
  EXPECT_THAT(run_on_terminal(words, 80),
              HasSubstr("\n  LAYERS     DIFFERENT\n  decoder 3      25.0%\n"));
}

TEST(ToolOnATerminal, VerifyDrawsHolesAndOverlaps) {
  const Copy broken(kModel);
  const std::filesystem::path file = broken.path() / ".metadata";
  std::string bytes = testing::slurp(file);
  // The chunk at (0, 96, 0) of the tensor is at (0, 80, 0) now.
  const std::string before("K\x00K\x60K\x00\x87", 7);
  for (std::size_t at = 0; (at = bytes.find(before, at)) != std::string::npos; ++at)
    bytes[at + 3] = 80;
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_THAT(run_on_terminal({"verify", broken.text()}, 80), HasSubstr(R"(
    0    32   64   80   96   112  128
    ┌────┬────┬────┬────┬────┬────┐
  0 │ 0  │ 3  │ 0  │0+1 │ 1  │hole│
    ├────┼────┼────┼────┼────┼────┤
)"));
}

TEST(ToolOnATerminal, TimingFits) {
  const TempDir directory;
  StateDict state;
  state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {1000}));
  save(state, directory / "a", {.report = true});
  const std::string shown =
      run_on_terminal({"inspect", (directory / "a").string(), "--timing"}, 80);
  EXPECT_THAT(shown, HasSubstr("  write   "));
  expect_fits(shown, 80);
}

}  // namespace
}  // namespace dckpt::terminal_test
