#include "dckpt/cli.h"

#include <algorithm>
#include <csignal>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "dist_checkpointing/ranks/shared_work.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "tools/dckpt/commands/program.h"
#include "tools/dckpt/grammar/build_info.h"
#include "tools/dckpt/grammar/command_line.h"
#include "tools/dckpt/grammar/completion_scripts.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/grammar/wrong_usage.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

/// The command that the build runs to write the files to install (write_extras).
constexpr std::string_view kExtrasWord = "__extras";

int usage_error(const Refusal& refusal, const ProgramSpec& program, const CommandSpec& command) {
  print_error(refusal.message);
  const bool whole = &command == &program;
  if (refusal.of_arguments) print_note("usage: " + usage_line(program, command));
  print_note(str_format("'dckpt {}--help' explains how to call it",
                        whole ? std::string() : command.name + " "));
  return kUsage;
}

int run_on(Communicator& ranks, const Command& command) {
  if (const auto* const shared = std::get_if<1>(&command.run)) return (*shared)(ranks);
  int code = kOk;
  SharedWork(ranks, "running the command", 1).on_all_ranks([&] {
    if (ranks.rank() == 0) code = std::get<0>(command.run)();
  });
  return code;
}

int run(int argc, char** argv, Communicator& ranks) {
  Program program = make_program();
  ProgramSpec& spec = *program.spec;
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  SharedWork(ranks, "reading the arguments", 1).require_same("arguments", [&] {
    std::string lines;
    for (const std::string& word : words) lines += word + "\n";
    return lines;
  });
  if (words.empty()) {
    print_wrapped(help_text(spec, spec), columns_of_prose());
    return kOk;
  }
  if (words[0] == kCompleteWord)
    return answer_shell(program, words.size() > 1 ? words[1] : std::string());
  if (words[0] == kExtrasWord && words.size() == 2) return write_extras(program, words[1]);
  if (!words[0].starts_with('-') && spec.find_command(words[0]) == nullptr)
    return usage_error({unknown_command(spec, words[0])}, spec, spec);

  const CommandLine line = read_command_line(spec, words);
  if (const auto refusal = find_odd_value(line)) return usage_error(*refusal, spec, *line.command);
  if (line.find(line.command->help()) != nullptr) {
    print_wrapped(help_text(spec, *line.command), columns_of_prose());
    return kOk;
  }
  if (const auto refusal = find_mistake(spec, line, take_values(line)))
    return usage_error(*refusal, spec, *line.command);
  const Command* const command = program.find(*line.command);
  if (program.request->version) {
    if (command != nullptr)
      return usage_error({"--version stands without a command; leave one of them out"}, spec, spec);
    print(program.request->json ? version_json() : version_text());
    return kOk;
  }
  if (program.request->json)
    return usage_error({"--json stands behind a command, or beside --version"}, spec, spec);
  if (command == nullptr) return usage_error({"no command is given"}, spec, spec);
  try {
    return run_on(ranks, *command);
  } catch (const CheckpointError& thrown) {
    const CheckpointError error = with_place_of_options(thrown, spec, line);
    if (error.code() == ErrorCode::kInvalidArgument)
      return usage_error({error.what()}, spec, *line.command);
    throw with_suggested_path(error, line);
  }
}

/// Runs the program and turns every exception into a message and an exit code. Keeps it as
/// `failure`.
int guarded_run(int argc, char** argv, Communicator& ranks,
                std::optional<CheckpointError>& failure) {
  try {
    const int code = run(argc, argv, ranks);
    flush_output();
    return code;
  } catch (...) {
    failure = current_error();
    print_error(failure->what());
    return exit_code(failure->code());
  }
}

/// Runs it on every rank, and returns the exit code of rank 0. If that cannot be told, throws why.
int run_on_all(int argc, char** argv, Communicator& ranks) {
  std::optional<CheckpointError> failure;
  Bytes mine;
  append_le(mine, guarded_run(argc, argv, ranks, failure));
  try {
    return load_le<int>(ranks.broadcast(mine, 0), 0);
  } catch (const CheckpointError& error) {
    throw CheckpointError(failure ? *failure : error);
  }
}

/// Lets rank 0 alone print during its lifetime.
class OutputOfRank {
 public:
  explicit OutputOfRank(const Communicator& ranks) {
    if (ranks.size() > 1) set_output(ranks.rank() == 0 ? Output::kPlain : Output::kNone);
  }
  ~OutputOfRank() { set_output(Output::kUsual); }
  OutputOfRank(const OutputOfRank&) = delete;
  OutputOfRank& operator=(const OutputOfRank&) = delete;
};

/// Ignores a signal during its lifetime.
class IgnoredSignal {
 public:
  explicit IgnoredSignal(int signal) : signal_(signal) {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(signal, &ignore, &before_);
  }
  ~IgnoredSignal() { ::sigaction(signal_, &before_, nullptr); }
  IgnoredSignal(const IgnoredSignal&) = delete;
  IgnoredSignal& operator=(const IgnoredSignal&) = delete;

 private:
  const int signal_;
  struct sigaction before_ {};
};

/// Prints what the library logs during its lifetime, unless the program has a sink of its own.
class PrintedLog {
 public:
  PrintedLog() : before_(set_log_sink(print_log)) {
    if (before_) set_log_sink(before_);
  }
  ~PrintedLog() { set_log_sink(before_); }
  PrintedLog(const PrintedLog&) = delete;
  PrintedLog& operator=(const PrintedLog&) = delete;

 private:
  const LogSink before_;
};

}  // namespace
}  // namespace dckpt::tool

int dckpt::cli_main(int argc, char** argv) {
  return cli_main(argc, argv, *single_rank());
}

int dckpt::cli_main(int argc, char** argv, Communicator& ranks) {
  const tool::IgnoredSignal closed_pipe(SIGPIPE);  // appears as a failed write
  const tool::IgnoredSignal too_large(SIGXFSZ);    // as does a file size limit
  const tool::PrintedLog log;
  const tool::OutputOfRank output(ranks);
  return tool::run_on_all(argc, argv, ranks);
}
