#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "operations/inspect/stats.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/progress_line.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kShownTensors = 20;

struct StatsArguments {
  CheckpointArgument checkpoint;
  StatsOptions stats;
  std::optional<int> threads;
  bool layers = false;
  bool all = false;
  bool json = false;
};

/// Returns four digits, in the shortest form: "0.01234", "1.234e-08"; "-" for what is too large, or
/// no number.
std::string number(double value) {
  if (!std::isfinite(value)) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

std::string count_or_dash(std::uint64_t count) {
  return count == 0 ? "-" : grouped(count);
}

Table table_of(Table::Column last) {
  std::vector<Table::Column> columns;
  for (const char* const title : {"ELEMENTS", "MEAN", "DEVIATION", "ABS MAX", "FURTHEST", "L2",
                                  "ZERO", "DENORMAL", "NAN", "INF"})
    columns.push_back(Table::beneath(title, Table::Align::kRight));
  columns.push_back(std::move(last));
  return Table(std::move(columns), "");
}

std::vector<std::string> cells(const ElementStats& stats, std::string last) {
  const auto of_finite = [&](double value) { return stats.finite() > 0 ? number(value) : "-"; };
  return {grouped(stats.count),
          of_finite(stats.mean),
          of_finite(stats.deviation()),
          of_finite(stats.abs_max()),
          of_finite(stats.furthest()),
          of_finite(stats.l2()),
          count_or_dash(stats.zero),
          count_or_dash(stats.denormal),
          count_or_dash(stats.nan),
          count_or_dash(stats.infinite),
          std::move(last)};
}

void print_tensor_stats(const StatsReport& report, bool all) {
  const std::vector<TensorStats> tensors = outliers_first(report.tensors);
  const std::size_t shown_tensors = all ? tensors.size() : std::min(tensors.size(), kShownTensors);
  Table table = table_of(Table::names("KEY"));
  std::size_t without = 0;
  for (std::size_t i = 0; i < shown_tensors; ++i) {
    if (tensors[i].elements) table.add(cells(*tensors[i].elements, shown(tensors[i].key)));
  }
  for (const TensorStats& tensor : tensors) without += tensor.elements ? 0 : 1;
  table.add(cells(report.weights, "all weights (floats)"));
  table.print();
  if (shown_tensors < tensors.size())
    print(str_format("… and {}, whose elements lie closer to their mean (--all)\n",
                     counted(tensors.size() - shown_tensors, "more tensor")));
  if (without > 0)
    print(str_format("note: {} no real numbers, and no statistics\n",
                     counted(without, "tensor has", "tensors have")));
}

void print_layer_stats(const StatsReport& report) {
  Table table = table_of({"LAYER"});
  for (const LayerStats& layer : report.layers)
    table.add(cells(layer.elements, str_format("{} {}", shown(layer.stack), layer.layer)));
  if (table.empty()) return print("no key names a layer\n");
  table.print();
}

int run_stats(const StatsArguments& options, Communicator& ranks) {
  const auto reader = options.checkpoint.open(ranks);
  StatsOptions stats_options = options.stats;
  stats_options.threads = options.threads.value_or(all_cores());
  StatsReport report;
  {
    ProgressLine progress("stats ");
    stats_options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(done, total);
    };
    report = with_context({.file = options.checkpoint.path},
                          [&] { return stats(*reader, stats_options, ranks); });
  }
  if (options.json) {
    print_json(to_json(report));
  } else {
    options.layers ? print_layer_stats(report) : print_tensor_stats(report, options.all);
    for (const Finding& finding : report.findings)
      print(str_format("{}  {}\n", styled(Style::kRed, name_of(kFindingCodeNames, finding.code)),
                       safe_message(finding.message)));
  }
  const bool wrong = std::ranges::any_of(
      report.findings, [](const Finding& finding) { return finding.severity == Severity::kError; });
  return wrong ? kDiffers : kOk;
}

}  // namespace

Command add_stats(ProgramSpec& program) {
  const auto options = std::make_shared<StatsArguments>();
  Parser command(program, "stats", "Mean, deviation, extremes, NaN and zeros of each tensor");
  command.footer(
      "FURTHEST is the distance of the furthest element from the mean, in deviations. Tensors with "
      "NaN or infinite elements come first, then those with the furthest elements. Exit code 1: "
      "there are such elements, or the optimizer's state is impossible (a second moment below "
      "zero).\n\n"
      "Examples:\n"
      "  dckpt stats iter_0001000\n"
      "  dckpt stats iter_0001000 --layers\n"
      "  dckpt stats iter_0001000 --keys 'optimizer.*' --all\n"
      "  dckpt stats model --json");
  add_checkpoint(command, options->checkpoint);
  add_backend(command, options->checkpoint);
  add_map(command, options->checkpoint.map);
  add_key_filter(command, options->stats.keys);
  command.add_flag("--layers", options->layers, "One row for the weights of each layer")
      .excludes(command.add_flag("--all", options->all, "All tensors, not the first 20"));
  add_threads(command, options->threads);
  add_json(command, options->json);
  return {&command.spec(), [options](Communicator& ranks) { return run_stats(*options, ranks); }};
}

}  // namespace dckpt::tool
