#include <optional>
#include <string>
#include <vector>

#include "mapping/base/error.h"
#include "operations/page/page.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/output_file.h"
#include "tools/dckpt/render/progress_line.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

struct ReportArguments {
  CheckpointArgument checkpoint;
  CheckpointArgument compare;
  std::string output;
  bool stats = false;
  std::optional<int> threads;
};

void write_page(const ReportArguments& options, const PageData& page) {
  const std::string html = page_html(page);
  OutputFile file(options.output);
  file.write(as_bytes(html));
  file.commit();
  if (options.output != "-")
    print_note(str_format("wrote {}, {}", quote(options.output), human_bytes(html.size())));
}

/// Returns whether something is there that a page can show although it cannot be opened.
bool is_damaged(const CheckpointArgument& checkpoint, const CheckpointError& error) {
  return (error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kIncomplete ||
          error.code() == ErrorCode::kIo) &&
         Location(checkpoint.path).is_directory();
}

/// Opens the checkpoint. Writes a page about what is there before it throws.
std::unique_ptr<CheckpointReader> open_or_write(const ReportArguments& options) {
  try {
    return options.checkpoint.open_shown().reader;
  } catch (const CheckpointError& error) {
    if (is_damaged(options.checkpoint, error))
      write_page(options, gather_unopened(options.checkpoint.path, options.checkpoint.path, error));
    throw;
  }
}

std::unique_ptr<CheckpointReader> open_compared(const ReportArguments& options,
                                                const CheckpointReader& reader) {
  if (options.compare.path.empty()) return nullptr;
  if (lead_to_the_same(options.checkpoint, options.compare))
    throw_error(ErrorCode::kInvalidArgument, {.file = options.compare.path},
                "--compare leads to the same checkpoint; name another one, or another "
                "iteration of the training root with --compare-iteration");
  return open_to_compare(reader, options.checkpoint, options.compare, *single_rank());
}

int run_report(const ReportArguments& options) {
  require_outside(options.output, options.checkpoint);
  if (!options.compare.path.empty()) require_outside(options.output, options.compare);
  const auto reader = open_or_write(options);
  const auto compared = open_compared(options, *reader);
  PageOptions page_options{.title = options.checkpoint.resolved(),
                           .stats = options.stats,
                           .compare = compared.get(),
                           .compare_title = compared ? options.compare.resolved() : "",
                           .threads = options.threads.value_or(all_cores())};
  PageData page;
  {
    ProgressLine progress("report ");
    page_options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(done, total);
    };
    page = gather_page(*reader, page_options);
  }
  write_page(options, page);
  for (const auto& [part, why] : page.missing)
    print_log(LogLevel::kWarning, str_format("the page does not show the {}: {}", part, why));
  std::vector<std::string> problems;
  for (const CheckpointError& problem : page.verified.problems) problems.push_back(problem.what());
  for (const Finding& finding : page.stats ? page.stats->findings : Findings())
    if (finding.severity == Severity::kError) problems.push_back(finding.message);
  if (problems.empty()) return kOk;
  print_problem_count(problems.size(), options.checkpoint.resolved(), problems.front(), false);
  return kDiffers;
}

}  // namespace

Command add_report(ProgramSpec& program) {
  const auto options = std::make_shared<ReportArguments>();
  Parser command(program, "report", "Write a page for a browser that shows what is in there");
  command.footer(
      "The page is one HTML file without a link to anything else: the verdict of verify, sizes by "
      "module, which file holds what, how each tensor is cut, the ranges of the optimizer, what a "
      "load under another layout reads, and the arguments of the run; with --stats statistics and "
      "outliers, with --compare the differences. The same checkpoint gives the same bytes. A "
      "damaged checkpoint has a page, too, which says what it cannot show. Exit code 1: there is a "
      "problem (see dckpt verify and dckpt stats); what cannot be opened at all ends with 3 to "
      "6.\n\n"
      "Examples:\n"
      "  dckpt report iter_0001000 -o report.html\n"
      "  dckpt report iter_0001000 -o report.html --stats --compare iter_0000500");
  add_checkpoint(command, options->checkpoint);
  add_backend(command, options->checkpoint);
  add_map(command, options->checkpoint.map);
  command.add_option("-o,--output", options->output, "File to write; - for standard output")
      .required()
      .type_name("FILE")
      .takes(Takes::kFile);
  command.add_option("--compare", options->compare.path, "Also show the differences from this one")
      .type_name("PATH")
      .takes(Takes::kCheckpoint);
  add_iteration(command, "--compare-iteration", options->compare.iteration,
                "Of the training root of --compare [PATH]");
  command.add_flag("--stats", options->stats, "Also read every element, and show statistics");
  add_threads(command, options->threads);
  return {&command.spec(), [options, command] {
            if (command.given("--compare-iteration") && !command.given("--compare"))
              options->compare.path = options->checkpoint.path;
            return run_report(*options);
          }};
}

}  // namespace dckpt::tool
