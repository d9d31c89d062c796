#include "tools/dckpt/commands/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"
#include "tools/dckpt/commands/program.h"
#include "tools/dckpt/grammar/completion_scripts.h"
#include "tools/dckpt/grammar/shell_words.h"

namespace dckpt::tool::completion_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using testing::kModel;
using ::testing::Not;
using testing::path_of;
using testing::run_tool;

/// The candidates at the end of a line, with a checkpoint that holds these keys.
struct Line {
  std::vector<std::string> keys = {"embedding.weight", "decoder.bias", "rng/shard_0.1_1.1"};
  CheckpointArgument asked{};

  Completion at(const std::string& line) {
    Program program = make_program();
    std::vector<std::string> words = shell_words(line);
    words.erase(words.begin());
    const auto look_up = [this](const CheckpointArgument& checkpoint) {
      asked = checkpoint;
      std::vector<Candidate> found;
      for (const std::string& key : keys) found.push_back({key, ""});
      return found;
    };
    const auto iterations = [](const std::string& path) {
      return path == "root" ? std::vector<Candidate>{{"200", ""}} : std::vector<Candidate>{};
    };
    return complete(*program.spec, words, {look_up, iterations});
  }
  std::vector<std::string> words(const std::string& line) {
    std::vector<std::string> words;
    for (const Candidate& candidate : at(line).candidates) words.push_back(candidate.word);
    return words;
  }
};

TEST(Completion, OffersCommandsAndOptions) {
  Line line;
  EXPECT_THAT(line.words("dckpt "), IsSupersetOf({"inspect", "convert", "completion", "help"}));
  EXPECT_THAT(line.words("dckpt ver"), ElementsAre("verify"));
  EXPECT_THAT(line.words("dckpt --ver"), ElementsAre("--version"));
  EXPECT_THAT(line.words("dckpt inspect x --ch"), ElementsAre("--chunks"));
  EXPECT_THAT(line.words("dckpt verify x "), IsSupersetOf({"--deep", "--all"}));
  EXPECT_THAT(line.words("dckpt nonsense "), IsEmpty());
  EXPECT_THAT(line.words("dckpt inspect -- --ch"), IsEmpty());
  EXPECT_EQ(line.at("dckpt ver").candidates[0].about,
            "Check that a checkpoint is complete and sound");
}

TEST(Completion, OffersAnOptionOnceUnlessItIsRepeatable) {
  Line line;
  EXPECT_THAT(line.words("dckpt inspect x --json --keys a --"),
              AllOf(Not(Contains("--json")), Contains("--keys")));
  EXPECT_THAT(line.words("dckpt inspect x --unfold --"), Not(Contains("--timing")))
      << "they exclude";
}

TEST(Completion, OffersWhatAnOptionTakes) {
  Line line;
  EXPECT_THAT(line.words("dckpt inspect x --sort s"), ElementsAre("size", "stored"));
  EXPECT_THAT(line.words("dckpt inspect x --sort=s"), ElementsAre("--sort=size", "--sort=stored"));
  EXPECT_THAT(line.words("dckpt convert a b --to torch"), ElementsAre("torch_dist", "torch"));
  EXPECT_THAT(line.words("dckpt convert a b --compat megatron-"), ElementsAre("megatron-0.19"));
  EXPECT_THAT(line.words("dckpt inspect x --map "), IsSupersetOf({"auto", "llama"}));
  EXPECT_THAT(line.words("dckpt inspect x --map llama --set vocab_s"), ElementsAre("vocab_size="));
  EXPECT_THAT(line.words("dckpt inspect x --policy prod"), ElementsAre("production"));
  EXPECT_THAT(line.words("dckpt config show "), IsSupersetOf({"production", "llama"}));
  EXPECT_THAT(line.words("dckpt inspect root --iteration "), ElementsAre("200", "latest"));
  EXPECT_THAT(line.words("dckpt diff x root --iteration-a "), ElementsAre("latest"));
  EXPECT_THAT(line.words("dckpt diff x root --iteration-b "), ElementsAre("200", "latest"));
  EXPECT_THAT(line.words("dckpt diff root --iteration-b "), ElementsAre("200", "latest"));
  EXPECT_THAT(line.words("dckpt convert a b --jobs "), IsEmpty());
}

TEST(Completion, LeavesPathsToTheShell) {
  Line line;
  EXPECT_EQ(line.at("dckpt inspect ").paths, Paths::kFiles);
  EXPECT_EQ(line.at("dckpt convert a ").paths, Paths::kFolders);
  EXPECT_EQ(line.at("dckpt extract a b -o ").paths, Paths::kFiles);
  EXPECT_EQ(line.at("dckpt verify a --threads ").paths, Paths::kNone);
}

TEST(Completion, OffersKeysOfTheCheckpointOnTheLine) {
  Line line;
  EXPECT_THAT(line.words("dckpt explain 'my run' --iteration 7 --map llama dec"),
              ElementsAre("decoder.bias"));
  EXPECT_EQ(line.asked.path, "my run");
  EXPECT_EQ(line.asked.iteration, parse_iteration_name("7"));
  EXPECT_EQ(line.asked.map.name, "llama");
  EXPECT_THAT(line.words("dckpt inspect x --keys=r"), ElementsAre("--keys=rng/shard_0.1_1.1"));
  line.asked.path = "none";
  EXPECT_THAT(line.words("dckpt inspect --keys "), IsEmpty());
  EXPECT_EQ(line.asked.path, "none") << "no checkpoint is named yet";
}

TEST(Completion, OffersManyKeysUpToTheNextDot) {
  Line line;
  line.keys.clear();
  for (int layer = 0; layer < 60; ++layer) {
    for (const char* const name : {"weight", "bias"})
      line.keys.push_back("model.layers." + std::to_string(layer) + "." + name);
  }
  const std::vector<std::string> layers = line.words("dckpt explain x mod");
  EXPECT_EQ(layers.size(), 60u);
  EXPECT_THAT(layers, Contains("model.layers.7."));
  EXPECT_THAT(line.words("dckpt explain x model.layers.7."),
              ElementsAre("model.layers.7.weight", "model.layers.7.bias"));
  line.keys.assign(100'000, "");
  for (std::size_t i = 0; i < line.keys.size(); ++i) line.keys[i] = "key" + std::to_string(i);
  EXPECT_EQ(line.words("dckpt explain x ").size(), kMaxCandidates);
}

TEST(Completion, OffersNothingThatAShellWouldObey) {
  Line line;
  line.keys = {"$(touch x)", "a b", "`id`", "\x1b[2J", "a;b", "~root", "-o", "*", "fine.weight"};
  EXPECT_THAT(line.words("dckpt explain x "), ElementsAre("fine.weight"));
}

TEST(ShellWords, AreReadWithoutRunningAnything) {
  setenv("DCKPT_TEST_RUN", "/run", 1);
  EXPECT_THAT(shell_words("dckpt  inspect "), ElementsAre("dckpt", "inspect", ""));
  EXPECT_THAT(shell_words("a 'b c' d\\ e \"f g\" 'h"), ElementsAre("a", "b c", "d e", "f g", "h"));
  EXPECT_THAT(shell_words("$DCKPT_TEST_RUN/x ${DCKPT_TEST_RUN}y '$DCKPT_TEST_RUN' $(id) $"),
              ElementsAre("/run/x", "/runy", "$DCKPT_TEST_RUN", "$(id)", "$"));
  EXPECT_THAT(shell_words(""), ElementsAre(""));
  unsetenv("DCKPT_TEST_RUN");
}

TEST(CompleteCommand, IsQuietAboutWhatIsWrong) {
  for (const char* const line : {"dckpt explain /nonexistent ", "dckpt explain tests/data ",
                                 "dckpt inspect x --map no --set ", "dckpt explain s3://b/x ", "",
                                 "dckpt \xff\xfe --\x1b"}) {
    const auto run = run_tool({"__complete", line});
    EXPECT_EQ(run.exit_code, 0) << line;
    EXPECT_THAT(run.err, IsEmpty()) << line;
  }
  EXPECT_THAT(run_tool({"__complete", "dckpt explain " + path_of(kModel) + " output_layer.w"}).out,
              ::testing::StartsWith("output_layer.weight\tbfloat16 ("));
}

/// Runs a script in a shell with completion for the tool. Skips the test if there is no such shell.
std::string in_shell(const std::string& shell, const std::string& script) {
  const TempDir scratch;
  const auto file = [&](const char* name) { return (scratch / name).string(); };
  std::ofstream(scratch / "script") << script;
  std::ofstream(scratch / "completion") << run_tool({"completion", shell}).out;
  const std::string line = "COMPLETION=" + file("completion") + " TOOL=" DCKPT_TOOL " " + shell +
                           " " + file("script") + " >" + file("out") + " 2>&1";
  EXPECT_EQ(std::system(line.c_str()), 0) << testing::slurp(scratch / "out");
  return testing::slurp(scratch / "out");
}

bool has_shell(const std::string& shell) {
  return std::system(("command -v " + shell + " >/dev/null").c_str()) == 0;
}

TEST(ShellWords, AreWrittenAsAShellReadsThem) {
  if (!has_shell("bash")) GTEST_SKIP() << "there is no bash here";
  EXPECT_EQ(shell_word("run/iter_0000002"), "run/iter_0000002");
  for (const std::string word : {"", "run/a b", "it's", "$HOME/`id`", "~/x", "new\nline's\\", "é*"})
    EXPECT_EQ(in_shell("bash", "printf %s " + shell_word(word)), word) << word;
  EXPECT_EQ(shell_path("-r -x"), "'./-r -x'");
  EXPECT_EQ(shell_path("run/-r"), "run/-r");
}

TEST(CompletionScript, AsksTheToolInBash) {
  if (!has_shell("bash")) GTEST_SKIP() << "there is no bash here";
  const std::string ask = R"(. "$COMPLETION"
    complete_line() { COMP_LINE="dckpt $1" COMP_POINT=${#COMP_LINE}; COMP_POINT=$((${#1} + 6))
      _dckpt "$TOOL" "${1##*[ =]}" x; echo "${COMPREPLY[*]}"; }
    complete_line 'inspect x --so'
    complete_line 'inspect x --sort=s')";
  EXPECT_EQ(in_shell("bash", ask), "--sort\nsize stored\n");
}

TEST(CompletionScript, AsksTheToolInFish) {
  if (!has_shell("fish")) GTEST_SKIP() << "there is no fish here";
  const std::string ask = R"(set PATH (dirname $TOOL) $PATH
    source $COMPLETION
    complete -C 'dckpt inspect x --so'
    complete -C 'dckpt inspect x --sort=s'
    complete -C 'dckpt inspect CMakeP')";
  const std::string found = in_shell("fish", ask);
  EXPECT_THAT(found, HasSubstr("--sort\tOrder of the rows"));
  EXPECT_THAT(found, HasSubstr("--sort=size"));
  EXPECT_THAT(found, HasSubstr("CMakePresets.json"));
}

TEST(CompletionScript, IsReadByZsh) {
  if (!has_shell("zsh")) GTEST_SKIP() << "there is no zsh here";
  const std::string define = "compdef() { print $2 }; . $COMPLETION; print $+functions[_dckpt]";
  EXPECT_EQ(in_shell("zsh", define), "dckpt\n1\n");
}

}  // namespace
}  // namespace dckpt::tool::completion_test
