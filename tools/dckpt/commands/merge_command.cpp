#include <charconv>

#include "mapping/base/error.h"
#include "operations/convert/convert.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/convert_report.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/progress_line.h"

namespace dckpt::tool {
namespace {

struct MergeArguments {
  std::vector<std::string> models;
  std::string destination;
  std::string weights;
  ConvertOptions convert;
  bool json = false;
};

/// Parses "0.7,0.3".
std::vector<double> parse_weights(const std::string& text) {
  std::vector<double> weights;
  if (text.empty()) return weights;
  for (const std::string& part : split(text, ',')) {
    double weight = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), weight);
    if (error != std::errc() || rest != part.data() + part.size())
      throw_error(ErrorCode::kInvalidArgument,
                  "--weights: found {}, expected numbers such as 0.7,0.3", quote(text));
    weights.push_back(weight);
  }
  return weights;
}

int run_merge(const MergeArguments& options, bool joins, Communicator& ranks) {
  ConvertOptions convert_options = options.convert;
  convert_options.limits.io.threads = all_cores();
  auto& others = joins ? convert_options.source.join : convert_options.source.average;
  for (const std::string& model : options.models) others.emplace_back(model);
  const Location first = others.front();
  others.erase(others.begin());
  if (others.empty()) throw_error(ErrorCode::kInvalidArgument, "name at least two models");
  convert_options.source.weights = parse_weights(options.weights);
  ConvertReport report;
  {
    ProgressLine progress(joins ? "join " : "merge ");
    convert_options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(done, total);
    };
    report = with_context({.file = options.models.front()}, [&] {
      return convert(first, options.destination, convert_options, ranks);
    });
  }
  if (options.json)
    print_json(to_json(report, convert_options.dry_run));
  else
    print_report(report, convert_options.dry_run, true, false);
  return kOk;
}

void add_models(Parser command, MergeArguments& options) {
  command.add_option("MODEL", options.models, "Two or more checkpoints of any formats")
      .required()
      .type_name("")
      .takes(Takes::kCheckpoint);
  command.add_option("-o,--output", options.destination, "Directory to write")
      .required()
      .type_name("DST")
      .takes(Takes::kFolder);
  command
      .add_option("--to", options.convert.target.strategy,
                  "Format to write, one of those of dckpt formats; default: that of the first")
      .type_name("FORMAT")
      .takes(Takes::kFormat);
  add_model_files(command, options.convert.target.model_files,
                  "Folder of config.json and tokenizer, to copy; default: the first MODEL");
  command.add_flag("--allow-other-config", options.convert.checks.allow_other_config,
                   "Let a config.json go along that differs from the tensors");
  command.add_flag("--dry-run", options.convert.dry_run, "Say what would be done, write nothing");
  command.add_flag("--overwrite", options.convert.target.overwrite, "Replace DST if it exists");
  add_json(command, options.json);
}

}  // namespace

Command add_merge(ProgramSpec& program) {
  const auto options = std::make_shared<MergeArguments>();
  Parser command(program, "merge", "Average models: sums of weight × element");
  command.footer(
      "All models must have the same tensors in the same shapes; formats and dtypes may differ. "
      "Sums are in float32 and rounded once to the dtype of the first. Objects, the common state "
      "and files of the model are the first's; the optimizer is left out.\n\n"
      "Examples:\n"
      "  dckpt merge step_1000 step_2000 step_3000 -o averaged\n"
      "  dckpt merge base tuned -o between --weights 0.3,0.7\n"
      "  dckpt merge tuned base other -o vector --weights 1,-1,1");
  add_models(command, *options);
  command.add_option("--weights", options->weights, "A weight for each model, sum 1 [equal]")
      .type_name("W,W");
  return {&command.spec(),
          [options](Communicator& ranks) { return run_merge(*options, false, ranks); }};
}

Command add_join(ProgramSpec& program) {
  const auto options = std::make_shared<MergeArguments>();
  Parser command(program, "join", "Put the tensors of several checkpoints into one");
  command.footer(
      "A tensor that several models have is taken from the first of them, and a note says so. "
      "Objects, the common state and files of the model are the first's, and a note names objects "
      "that only others have.\n\n"
      "Examples:\n"
      "  dckpt join trained_language_model original_model -o whole");
  add_models(command, *options);
  return {&command.spec(),
          [options](Communicator& ranks) { return run_merge(*options, true, ranks); }};
}

}  // namespace dckpt::tool
