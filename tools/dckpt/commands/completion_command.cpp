#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "mapping/base/text.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/completion.h"
#include "tools/dckpt/commands/program.h"
#include "tools/dckpt/grammar/completion_scripts.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/grammar/shell_words.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

constexpr unsigned kMostSeconds = 3;  // the file system of the checkpoint may hang

int run_completion(const std::string& shell) {
  const auto& scripts = completion_scripts();
  print(std::ranges::find(scripts, shell, &CompletionScript::shell)->text);
  return kOk;
}

/// Returns the description that a shell shows beside the word, on one line.
std::string short_about(const std::string& about) {
  constexpr std::size_t kLongest = 72;
  return printable(about, kLongest);
}

}  // namespace

int answer_shell(Program& program, const std::string& line) {
  std::signal(SIGALRM, [](int) { _exit(kOk); });
  alarm(kMostSeconds);
  std::vector<std::string> words = shell_words(line);
  words.erase(words.begin());
  const Completion completion = complete(*program.spec, words, stored_checkpoints());
  alarm(0);
  for (const Candidate& candidate : completion.candidates)
    print(candidate.word + "\t" + short_about(candidate.about) + "\n");
  if (completion.paths != Paths::kNone)
    print(completion.paths == Paths::kFiles ? ":files\n" : ":folders\n");
  return kOk;
}

Command add_completion(ProgramSpec& program) {
  const auto shell = std::make_shared<std::string>();
  Parser command(program, "completion",
                 "Print a script that lets a shell complete commands, options and keys");
  command.footer(
      "An installed dckpt brings the scripts along; where the shell does not find them, load them "
      "by hand.\n"
      "Keys are those of the checkpoint that the line names, of which only the metadata is "
      "read.\n\n"
      "Examples:\n"
      "  source <(dckpt completion bash)                                in ~/.bashrc\n"
      "  source <(dckpt completion zsh)                                 in ~/.zshrc, after "
      "compinit\n"
      "  dckpt completion fish > ~/.config/fish/completions/dckpt.fish");
  std::vector<std::string> shells;
  for (const CompletionScript& script : completion_scripts()) shells.push_back(script.shell);
  command.add_option("SHELL", *shell, "bash, zsh or fish").required().type_name("").one_of(shells);
  return {&command.spec(), [shell] { return run_completion(*shell); }};
}

}  // namespace dckpt::tool
