#include <CLI/CLI.hpp>

#include <algorithm>

#include "dist_checkpointing/verify.h"
#include "mapping/base/text.h"
#include "tools/dckpt/command.h"
#include "tools/dckpt/exit_code.h"
#include "tools/dckpt/progress_line.h"
#include "tools/dckpt/terminal.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kShownProblems = 100;

struct Options {
  CheckpointArgument checkpoint;
  VerifyOptions verify;
  bool json = false;
};

Value to_json_value(const CheckpointReader& reader, const VerifyReport& report) {
  ValueList problems;
  for (const CheckpointError& problem : report.problems) {
    problems.push_back(Value::dict({{"code", to_string(problem.code())}, {"message", problem.message()}, {"key", or_none(problem.context().key)},
                                    {"file", or_none(problem.context().file)}, {"offset", or_none(problem.context().offset)}}));
  }
  return Value::dict({{"ok", report.ok()},
                      {"deep", report.deep},
                      {"format", reader.info().format},
                      {"files", report.files},
                      {"tensors", report.tensors},
                      {"chunks", report.chunks},
                      {"objects", report.objects},
                      {"bytes", report.bytes},
                      {"chunks_without_checksum", report.deep ? Value(report.chunks_without_checksum) : Value()},
                      {"objects_without_checksum", report.deep ? Value(report.objects_without_checksum) : Value()},
                      {"manifest_files", report.manifest_files},
                      {"problems", Value::list(std::move(problems))}});
}

std::string count(std::size_t number, const std::string& noun) { return grouped(number) + " " + noun + (number == 1 ? "" : "s"); }

/// One damage that several tensors of a file share.
bool same_but_for_the_key(const CheckpointError& a, const CheckpointError& b) {
  return a.code() == b.code() && a.message() == b.message() && a.context().file == b.context().file && a.context().offset == b.context().offset;
}

void print_report(const Options& options, const VerifyReport& report) {
  std::size_t shown_problems = 0;
  for (auto problem = report.problems.begin(); problem != report.problems.end();) {
    if (shown_problems++ == kShownProblems) {
      print("… and " + grouped(static_cast<std::uint64_t>(report.problems.end() - problem)) + " more (--json lists all)\n");
      break;
    }
    const auto next = std::find_if_not(problem + 1, report.problems.end(), [&](const CheckpointError& other) { return same_but_for_the_key(*problem, other); });
    print(styled(Style::kRed, to_string(problem->code())) + "  " + safe_message(problem->what()));
    if (next - problem > 1) print(", and for " + count(static_cast<std::size_t>(next - problem) - 1, "more key"));
    print("\n");
    problem = next;
  }
  if (!report.ok()) print("\n");

  print("checked   " + count(report.tensors, "tensor") + " in " + count(report.chunks, "chunk") + ", " + count(report.objects, "object") + ", " +
        count(report.files, "data file") + ", " + human_bytes(report.bytes) + "\n");
  if (report.deep) {
    const std::size_t without = report.chunks_without_checksum + report.objects_without_checksum;
    const std::size_t all = report.chunks + report.objects;
    print("content   checksums of " + grouped(all - std::min(all, without)) + " of " + grouped(all) + " chunks and objects compared");
    print(without == 0 ? "\n" : "; " + styled(Style::kYellow, "not computed for " + grouped(without)) + "\n");
  } else {
    print("content   not read; --deep also compares checksums\n");
  }
  if (report.manifest_files > 0) {
    print("manifest  integrity.json lists " + count(report.manifest_files, "file") + (report.deep ? ", SHA-256 compared\n" : "\n"));
  }
  const std::string path = shown(options.checkpoint.resolved());
  if (report.ok()) print(styled(Style::kGreen, "OK") + "  " + path + "\n");
}

int run_verify(const Options& options) {
  const auto reader = options.checkpoint.open();
  VerifyOptions verify_options = options.verify;
  VerifyReport report;
  {
    ProgressLine progress("verify ");
    verify_options.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
    report = verify(*reader, verify_options);
  }
  if (options.json) print_json(to_json_value(*reader, report));
  else print_report(options, report);
  if (report.ok()) return kOk;
  flush_output();
  print_error(count(report.problems.size(), "problem") + " in " + dckpt::quoted(options.checkpoint.resolved(), 1000) +
              ", the first: " + report.problems.front().what());
  return kDiffers;
}

}  // namespace

Command add_verify(CLI::App& program) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = *program.add_subcommand("verify", "Check that a checkpoint is complete and sound");
  command.footer(
      "Without --deep no tensor is read: it checks files, byte ranges, the coverage of every tensor,\n"
      "the head of every chunk, and decodes all objects and the common state. Exit code 1 if there is\n"
      "a problem; what cannot be opened at all ends with 3 to 6 (see dckpt --help).\n\n"
      "Examples:\n"
      "  dckpt verify run/checkpoints\n"
      "  dckpt verify iter_0001000 --deep --threads 8\n"
      "  dckpt verify iter_0001000 --json | jq '.problems'");
  add_checkpoint(command, options->checkpoint);
  command.add_flag("--deep", options->verify.deep, "Read everything; compare CRC-32 checksums and integrity.json");
  add_threads(command, options->verify.threads);
  add_json(command, options->json);
  return {&command, [options] { return run_verify(*options); }};
}

}  // namespace dckpt::tool
