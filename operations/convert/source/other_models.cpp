#include "operations/convert/source/other_models.h"

#include <memory>
#include <utility>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/verify/integrity.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "migration/models/combined_models.h"
#include "strategies/contract/forwarding_reader.h"

namespace dckpt {
namespace {

std::vector<OtherModel> open_others(const std::vector<Location>& models,
                                    const ConversionRequest& request, Findings& findings) {
  std::vector<OtherModel> others;
  for (const Location& model : models) {
    others.push_back({open_checkpoint(model, {.planner = {.name = std::string(kAutoStrategy)}}),
                      model.display()});
    compare_beside(*others.back().reader, request.checks, request.readers);
    append(findings, others.back().reader->info().findings);
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

std::string take_main_parameters(Draft& draft, const ConversionRequest&, ConvertReport&) {
  const std::shared_ptr<const CheckpointReader> source = std::move(draft.reader);
  show(draft, with_main_parameters(std::make_unique<ForwardingReader>(source), source));
  return "takes the weights from the optimizer, in float32";
}

std::string average_models(Draft& draft, const ConversionRequest& request, ConvertReport&) {
  const std::vector<double> weights = weights_of(request.source);
  std::vector<OtherModel> others = open_others(request.source.average, request, draft.findings);
  for (std::size_t i = 0; i < others.size(); ++i) others[i].weight = weights[i + 1];
  show(draft, averaged_models(std::move(draft.reader), weights[0], others));
  std::string shown;
  for (const double weight : weights)
    shown += str_format("{}{}", shown.empty() ? "" : ", ", weight);
  return str_format("averages {} with the weights {}", counted(weights.size(), "model"), shown);
}

std::string join_models(Draft& draft, const ConversionRequest& request, ConvertReport&) {
  const std::size_t before = draft.reader->metadata().tensors.size();
  const auto others = open_others(request.source.join, request, draft.findings);
  show(draft, joined_models(std::move(draft.reader), others));
  return str_format("adds {} of {}",
                    counted(draft.reader->metadata().tensors.size() - before, "tensor"),
                    counted(request.source.join.size(), "other model"));
}

void compare_beside(const CheckpointReader& reader, const ConvertChecks& checks, int threads) {
  if (!checks.source) return;
  if (const auto manifest = find_integrity_manifest(reader.storage()))
    compare_digests(reader.storage(), entries_of(*manifest, files_of(reader)), 0, 1, threads);
}

}  // namespace dckpt
