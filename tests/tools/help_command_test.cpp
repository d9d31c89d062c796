#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/temp_dir.h"
#include "tests/tools/run_tool.h"
#include "tools/dckpt/commands/program.h"
#include "tools/dckpt/grammar/man_page.h"

namespace dckpt::tool::help_command_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using testing::run_tool;
using testing::slurp;

TEST(HelpCommand, SaysWhatTheOptionSays) {
  Program program = make_program();
  for (const std::string& command : program.spec->command_names())
    EXPECT_EQ(run_tool({"help", command}).out, run_tool({command, "--help"}).out);
  EXPECT_EQ(run_tool({"help"}).out, run_tool({"--help"}).out);
  EXPECT_EQ(run_tool({"help", "inspekt"}).exit_code, 2);
}

TEST(ManPage, HasEveryOptionOfItsCommand) {
  Program program = make_program();
  for (const CommandSpec& command : program.spec->commands) {
    const std::string page = man_page(*program.spec, command);
    for (const OptionSpec& option : command.options)
      EXPECT_THAT(page, HasSubstr(option.is_argument() ? "\\fI" + option.main_name() : "\\fB\\-"))
          << option.main_name();
    EXPECT_THAT(page, HasSubstr(".SH SYNOPSIS\n.B dckpt " + command.name));
  }
  const std::string convert = run_tool({"help", "convert", "--man"}).out;
  EXPECT_THAT(convert, HasSubstr("\n\\fB\\-\\-max\\-memory\\fR \\fISIZE\\fR\n"));
  EXPECT_THAT(convert,
              HasSubstr(".SH EXAMPLES\n.EX\ndckpt convert iter_0001000 plain \\-\\-to dcp\n"));
  EXPECT_THAT(run_tool({"help", "--man"}).out, HasSubstr(".SH EXIT STATUS\n0 ok; 1 differs"));
}

TEST(ManPage, RendersWithoutWarnings) {
  if (std::system("groff --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no groff here";
  Program program = make_program();
  const TempDir scratch;
  write_extras(program, scratch.path().string());
  const std::string pages = (scratch / "man" / "man1" / "*.1").string();
  const std::string warnings = (scratch / "warnings").string();
  std::system(
      ("for page in " + pages + "; do groff -man -ww -Tutf8 $page; done >/dev/null 2>" + warnings)
          .c_str());
  EXPECT_THAT(slurp(warnings), IsEmpty());
}

TEST(Extras, LieWhereTheyAreLookedFor) {
  const TempDir scratch;
  EXPECT_EQ(run_tool({"__extras", scratch.path().string()}).exit_code, 0);
  for (const char* const file :
       {"man/man1/dckpt.1", "man/man1/dckpt-inspect.1", "bash-completion/completions/dckpt",
        "zsh/site-functions/_dckpt", "fish/vendor_completions.d/dckpt.fish"})
    EXPECT_TRUE(std::filesystem::exists(scratch / file)) << file;
}

TEST(Version, SaysWhereTheToolComesFrom) {
  EXPECT_THAT(run_tool({"--version"}).out,
              MatchesRegex("dckpt [0-9]+\\.[0-9]+\\.[0-9]+\n  commit .*\n  compiler .*\n"
                           "  build .*\n  crc32 +(ISA-L|zlib)\n  zstd .*(.|\n)*"));
  const Value json = run_tool({"--version", "--json"}).json();
  EXPECT_THAT(json.at("commit").as_str(), Not(IsEmpty()));
  EXPECT_THAT(json.at("with").at("zstd").as_str(), Not(IsEmpty()));
}

}  // namespace
}  // namespace dckpt::tool::help_command_test
