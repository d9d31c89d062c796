#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::wrong_usage_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kModel;
using ::testing::Not;
using testing::path_of;
using testing::Root;
using testing::run_tool;
using testing::ToolRun;

void expect_usage_error(std::vector<std::string> words, const std::string& message) {
  const ToolRun run = run_tool(std::move(words));
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr(message));
}

TEST(WrongUsage, AnUnknownOptionLeadsToTheRightOne) {
  expect_usage_error({"inspect", "--kyes", "x", "y"},
                     "there is no option '--kyes' of inspect; did you mean '--keys'?");
  expect_usage_error({"inspect", "x", "--iter", "3"}, "did you mean '--iteration'?");
  expect_usage_error({"inspect", "x", "--deep"},
                     "there is no option '--deep' of inspect; verify, doctor and prune have it");
  expect_usage_error({"--verison"}, "there is no option '--verison'; did you mean '--version'?");
  expect_usage_error({"--keys", "x"}, "options of a command stand behind it: dckpt inspect --keys");
  expect_usage_error({"--json", "formats"}, "--json stands behind a command");
  EXPECT_THAT(run_tool({"inspect", "x", "--\x1b[2J"}).err, Not(HasSubstr("\x1b")));
}

TEST(WrongUsage, MissingAndSuperfluousArgumentsShowTheUsage) {
  expect_usage_error({"remove"},
                     "remove needs PATH and --prefix TEXT\n"
                     "dckpt: usage: dckpt remove [OPTIONS] --prefix TEXT PATH\n");
  expect_usage_error({"convert", "a"}, "convert needs DST\n");
  expect_usage_error({"inspect", "a", "b"}, "'b' is one argument too many: inspect takes PATH\n");
  expect_usage_error({"formats", "x"}, "formats takes none");
  expect_usage_error({"inspect", "a", "--keys"}, "--keys needs a value: --keys GLOB");
}

TEST(WrongUsage, AnArgumentThatTakesManyIsNeverTooMany) {
  expect_usage_error({"merge", "a", "b"},
                     "merge needs --output DST\n"
                     "dckpt: usage: dckpt merge [OPTIONS] --output DST MODEL...\n");
  expect_usage_error({"join", "-o", "c"}, "join needs MODEL...\n");
  expect_usage_error({"merge", "a", "b", "--wieghts", "0.5,0.5", "-o", "c"},
                     "there is no option '--wieghts' of merge; did you mean '--weights'?");
  expect_usage_error({"join", "a", "b", "c", "--weights", "1,1,1", "-o", "d"},
                     "there is no option '--weights' of join; merge has it");
  expect_usage_error({"diff", "a", "b", "0.1", "--rtoll", "0.1"}, "did you mean '--rtol'?");
}

TEST(WrongUsage, AnUnknownChoiceNamesTheChoices) {
  expect_usage_error(
      {"inspect", "x", "--sort", "kye"},
      "--sort: found 'kye', expected key, size, chunks or stored; did you mean 'key'?");
  expect_usage_error({"convert", "a", "b", "--compat", "megatrn"}, "did you mean 'megatron'?");
  const ToolRun never = run_tool({"convert", "a", "b", "--error-on", "not-finite"});
  EXPECT_EQ(never.exit_code, 2);
  EXPECT_THAT(never.err,
              AllOf(HasSubstr("--error-on: found 'not-finite', expected keys-changed,"),
                    HasSubstr("no-effect or values-implausible"), Not(HasSubstr("keys-differ"))));
  expect_usage_error({"diff", "a", "b", "--rtol", "-1"},
                     "--rtol: found '-1', expected a number from 0 on");
  const ToolRun format = run_tool({"convert", path_of(kModel), "x", "--to", "torchdist"});
  EXPECT_EQ(format.exit_code, 6);
  EXPECT_THAT(format.err, HasSubstr("did you mean 'torch_dist'?"));
}

TEST(WrongUsage, APathThatIsNotThereLeadsToOneThatIs) {
  const Root root;
  const auto message = [&](const std::string& path) {
    const ToolRun run = run_tool({"inspect", path});
    EXPECT_EQ(run.exit_code, 3);
    return run.err;
  };
  const auto meant = [&](const std::string& name) {
    return HasSubstr("does not exist; did you mean '" + root.text() + "/" + name + "'?");
  };
  EXPECT_THAT(message(root.text() + "/iter_10"), meant("iter_0000010"));
  EXPECT_THAT(message(root.text() + "/iter_0000011x/.metadata"), meant("iter_0000010/.metadata"));
  EXPECT_THAT(message(root.text() + "/nothing like it"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(message("/nonexistent/root"), Not(HasSubstr("did you mean")));
}

TEST(WrongUsage, ArgumentsMayHaveTheNamesOfCommands) {
  EXPECT_THAT(run_tool({"diff", "verify", "inspect"}).err, HasSubstr("'verify' does not exist"));
}

TEST(WrongUsage, NothingThatIsGivenIsDroppedSilently) {
  expect_usage_error({"formats", "--json=false"}, "--json takes no value, found 'false'");
  expect_usage_error({"inspect", "x", "--policy", ""}, "--policy: found '', expected a value");
  expect_usage_error({"convert", "a", "b", "--max-memory="}, "--max-memory: found ''");
  expect_usage_error({"inspect", "x", "--sort", "key", "--sort", "size"},
                     "--sort is given twice; give it once");
  expect_usage_error({"--version", "formats"}, "--version stands without a command");
  expect_usage_error({"inspect", "x", "--unfold", "--timing"}, "leave one of them out");
}

}  // namespace
}  // namespace dckpt::wrong_usage_test
