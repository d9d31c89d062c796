#include "operations/convert/source/other_models.h"

#include <utility>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/verify/integrity.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "migration/models/combined_models.h"
#include "operations/convert/conversion_steps.h"

namespace dckpt {
namespace {

std::vector<OtherModel> open_others(const std::vector<Location>& models,
                                    const ConvertOptions& options, ConvertReport& report) {
  std::vector<OtherModel> others;
  for (const Location& model : models) {
    others.push_back({open_checkpoint(model), model.display()});
    compare_beside(*others.back().reader, options);
    append(report.findings, others.back().reader->info().findings);
  }
  return others;
}

/// Returns the weights of the source and the others.
std::vector<double> weights_of(const ConvertSource& source) {
  const std::size_t models = source.average.size() + 1;
  return source.weights.empty() ? std::vector<double>(models, 1 / static_cast<double>(models))
                                : source.weights;
}

}  // namespace

std::unique_ptr<CheckpointReader> combined(
    std::unique_ptr<CheckpointReader> source,
    const std::function<std::unique_ptr<CheckpointReader>()>& again, const ConvertOptions& options,
    ConvertReport& report) {
  if (options.source.main_parameters) {
    View view = with_main_parameters(std::move(source), again());
    source = std::move(view.reader);
    add_step(report, "main parameters", "takes the weights from the optimizer, in float32",
             std::move(view.findings));
  }
  if (!options.source.average.empty()) {
    const std::vector<double> weights = weights_of(options.source);
    std::vector<OtherModel> others = open_others(options.source.average, options, report);
    for (std::size_t i = 0; i < others.size(); ++i) others[i].weight = weights[i + 1];
    View view = averaged_models(std::move(source), weights[0], others);
    std::string shown;
    for (const double weight : weights)
      shown += str_format("{}{}", shown.empty() ? "" : ", ", weight);
    add_step(report, "average",
             str_format("averages {} with the weights {}", counted(weights.size(), "model"), shown),
             std::move(view.findings));
    source = std::move(view.reader);
  }
  if (!options.source.join.empty()) {
    const std::size_t before = source->metadata().tensors.size();
    View view = joined_models(std::move(source), open_others(options.source.join, options, report));
    source = std::move(view.reader);
    add_step(
        report, "join",
        str_format("adds {} of {}", counted(source->metadata().tensors.size() - before, "tensor"),
                   counted(options.source.join.size(), "other model")),
        std::move(view.findings));
  }
  return source;
}

void compare_beside(const CheckpointReader& reader, const ConvertOptions& options) {
  if (!options.checks.source) return;
  if (const auto manifest = find_integrity_manifest(reader.storage()))
    compare_digests(reader.storage(), entries_of(*manifest, files_of(reader)), 0, 1,
                    options.limits.read_threads.value_or(options.limits.io.threads));
}

}  // namespace dckpt
