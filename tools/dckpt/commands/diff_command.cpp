#include <algorithm>
#include <span>

#include "dist_checkpointing/ranks/shared_work.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/element.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/diff_layers.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/progress_line.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kShownDifferences = 200;
constexpr std::size_t kShownLayerRows = 40;

struct DiffArguments {
  CheckpointArgument a;
  CheckpointArgument b;
  std::optional<IterationName> both{};  // --iteration
  DiffOptions diff;
  bool no_common = false;
  bool json = false;
};

std::string either(const std::string& a, const std::string& b) {
  return str_format("{} | {}", a.empty() ? "(nothing)" : shown(a),
                    b.empty() ? "(nothing)" : shown(b));
}

std::string what_differs(const Difference& difference) {
  if (difference.kind == Difference::Kind::kOnlyInA) return difference.a;
  if (difference.kind == Difference::Kind::kOnlyInB) return difference.b;
  if (!difference.elements) return either(difference.a, difference.b);
  const ElementDifferences& elements = *difference.elements;
  std::string text = str_format("{} of {}, first at {}: {}", grouped(elements.count),
                                counted(elements.elements, "element"), to_string(elements.first),
                                either(elements.first_a, elements.first_b));
  if (elements.max_abs) text += ", max |a - b| " + shortest(*elements.max_abs);
  return text;
}

/// Prints "KIND  KEY  WHAT", in two lines if it is long.
void print_difference(const Difference& difference) {
  std::string head = to_string(difference.kind);
  head.resize(std::max<std::size_t>(head.size(), 9), ' ');
  head += str_format("  {}{}{}", shown(difference.key),
                     difference.path.empty() || difference.key.empty() ? "" : " ",
                     shown(difference.path));
  const std::string what = what_differs(difference);
  const bool fits = columns_of(head) + 2 + columns_of(what) <= columns_of_prose();
  print(str_format("{}{}{}\n", head, fits ? "  " : "\n" + std::string(13, ' '), what));
}

/// Returns the keys of the tensors that were compared.
std::vector<std::string> keys_of(const DiffArguments& options, const CheckpointReader& a,
                                 const CheckpointReader& b) {
  std::vector<std::string> keys;
  for (const CheckpointReader* const reader : {&a, &b}) {
    for (const TensorStorageMetadata& tensor : reader->metadata().tensors)
      if (options.diff.keys(tensor.key)) keys.push_back(tensor.key);
  }
  return keys;
}

void print_differing_layers(const DiffReport& report, const std::vector<std::string>& keys) {
  const std::vector<DifferingLayers> rows = differing_layers(keys, report);
  if (rows.empty()) return;
  Table table({{"LAYERS"}, {"DIFFERENT", Table::Align::kRight}});
  const std::size_t shown_rows = std::min(rows.size(), kShownLayerRows);
  for (const DifferingLayers& row : std::span(rows).first(shown_rows))
    table.add({row.names, row.share});
  table.print();
  if (shown_rows < rows.size())
    print(str_format("  … and {} more rows\n", grouped(rows.size() - shown_rows)));
  print("  The share of the elements that differ, in the tensor of a layer that differs most.\n\n");
}

void print_diff(const DiffArguments& options, const DiffReport& report,
                const std::vector<std::string>& keys) {
  if (!report.equal()) {
    print(str_format("A  {}\nB  {}\n\n", shown(options.a.resolved()), shown(options.b.resolved())));
    for (std::size_t i = 0; i < std::min(report.differences.size(), kShownDifferences); ++i)
      print_difference(report.differences[i]);
    if (report.differences.size() > kShownDifferences)
      print(str_format("… and {} more (--json lists all)\n",
                       grouped(report.differences.size() - kShownDifferences)));
    print("\n");
    print_differing_layers(report, keys);
  }
  print(str_format("{} and {} in both{}\n", counted(report.tensors_compared, "tensor"),
                   counted(report.objects_compared, "object are", "objects are"),
                   report.common_compared ? "; the common state was compared, too"
                                          : "; no common state was compared"));
  print(report.equal()
            ? styled(Style::kGreen, "equal") + "\n"
            : styled(Style::kRed, counted(report.differences.size(), "difference")) + "\n");
}

/// Completes the two sides: --iteration applies to each side without an iteration of its own, and B
/// is A if left out.
void complete_sides(DiffArguments& options, const Parser& command) {
  const auto given = [&](const char* option) { return command.given(option); };
  if (given("--iteration") && given("--iteration-a") && given("--iteration-b"))
    throw_error(ErrorCode::kInvalidArgument,
                "--iteration is for a side without an iteration of its own, and both have "
                "one; leave it out");
  if (!given("--iteration-a")) options.a.iteration = options.both;
  if (!given("--iteration-b")) options.b.iteration = options.both;
  if (given("B")) return;
  options.b.path = options.a.path;
  if (!given("--iteration-a") && !given("--iteration-b")) {
    throw_error(ErrorCode::kInvalidArgument, {.file = options.a.path},
                "there is nothing to compare it with: name another checkpoint, or choose "
                "two iterations of this training root with --iteration-a and "
                "--iteration-b");
  }
  if (lead_to_the_same(options.a, options.b)) {
    throw_error(ErrorCode::kInvalidArgument, {.file = options.a.path},
                "--iteration-a and --iteration-b lead to the same checkpoint, "
                "{}: choose two iterations",
                quote(options.a.resolved()));
  }
}

int run_diff(const DiffArguments& options, Communicator& ranks) {
  const auto a = options.a.open(ranks);
  const auto b = open_to_compare(*a, options.a, options.b, ranks);
  DiffOptions diff_options = options.diff;
  diff_options.common = !options.no_common;
  DiffReport report;
  {
    ProgressLine progress("diff ");
    diff_options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(done, total);
    };
    report = diff(*a, *b, diff_options, ranks);
  }
  if (options.json)
    print_json(to_json(report));
  else
    print_diff(options, report, keys_of(options, *a, *b));
  return report.equal() ? kOk : kDiffers;
}

}  // namespace

Command add_diff(ProgramSpec& program) {
  const auto options = std::make_shared<DiffArguments>();
  Parser command(program, "diff", "Compare two checkpoints of any formats and shardings");
  command.footer(
      "Compares keys, shapes, dtypes, every element, objects and the common state. Exit code 1 if "
      "anything differs. Without --rtol and --atol tensors are compared bit by bit; with them "
      "numbers are equal if |a - b| <= atol + rtol * |b|, and NaN equals NaN. --map gives A the "
      "names of B; if both have the same names, both get the map's others.\n\n"
      "Examples:\n"
      "  dckpt diff before/iter_0001000 after/iter_0001000\n"
      "  dckpt diff run/checkpoints --iteration-a 1000 --iteration-b 2000    two of one run\n"
      "  dckpt diff run/checkpoints --iteration-a 1000                       and its latest\n"
      "  dckpt diff run/checkpoints copy/checkpoints --iteration 1000        the same of two runs\n"
      "  dckpt diff a b --keys 'decoder.*' --rtol 1e-5 --atol 1e-8\n"
      "  dckpt diff a b --no-common --json | jq '.differences'");
  command.add_option("A", options->a.path, "One checkpoint")
      .required()
      .type_name("")
      .takes(Takes::kCheckpoint);
  command.add_option("B", options->b.path, "The other; without it, A with another iteration")
      .type_name("")
      .takes(Takes::kCheckpoint);
  add_iteration(command, "--iteration", options->both, "Of both training roots");
  add_iteration(command, "--iteration-a", options->a.iteration, "Of A");
  add_iteration(command, "--iteration-b", options->b.iteration, "Of B, or of A if B is left out");
  add_map(command, options->a.map);
  command.add_option("--rtol", options->diff.rtol, "Relative tolerance for floating-point numbers")
      .type_name("X");
  command.add_option("--atol", options->diff.atol, "Absolute tolerance for floating-point numbers")
      .type_name("Y");
  command.add_flag("--no-common", options->no_common, "Leave the common state out");
  add_key_filter(command, options->diff.keys);
  add_threads(command, options->diff.threads);
  add_json(command, options->json);
  return {&command.spec(), [options, command](Communicator& ranks) {
            SharedWork(ranks, "opening the checkpoints", 1).on_all_ranks([&] {
              complete_sides(*options, command);
            });
            return run_diff(*options, ranks);
          }};
}

}  // namespace dckpt::tool
