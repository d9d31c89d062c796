#include "operations/convert/conversion_steps.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "dist_checkpointing/verify/iteration_conflict.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/planning/rearrange.h"
#include "migration/megatron_fsdp/megatron_fsdp.h"
#include "migration/optimizer/optimizer_buckets.h"
#include "migration/optimizer/optimizer_conversion.h"
#include "migration/optimizer/optimizer_form.h"
#include "operations/convert/model/common_form.h"
#include "operations/convert/source/conversion_source.h"
#include "operations/convert/source/missing_data.h"
#include "operations/convert/source/other_models.h"
#include "strategies/tensor_io/lost_data.h"

namespace dckpt {
namespace {

/// A step that turns one form of a checkpoint into another.
struct Step {
  std::string_view name;
  bool (*applies)(const Draft&, const ConversionRequest&);
  /// Returns its result, as text for messages; empty if it is not worth reporting.
  std::string (*change)(Draft&, const ConversionRequest&, ConvertReport&);
};

bool always(const Draft&, const ConversionRequest&) {
  return true;
}

bool is_mapped(const Draft&, const ConversionRequest& request) {
  return request.mapped;
}

std::uint64_t chunks_of(const Metadata& metadata) {
  std::uint64_t chunks = 0;
  for (const TensorStorageMetadata& tensor : metadata.tensors) chunks += tensor.chunks.size();
  return chunks;
}

std::string counts(const Metadata& metadata) {
  return str_format("{} and {}", counted(metadata.tensors.size(), "tensor"),
                    counted(metadata.objects.size(), "object"));
}

// Steps that make the source.

bool takes_main_parameters(const Draft&, const ConversionRequest& request) {
  return request.source.main_parameters;
}

bool averages(const Draft&, const ConversionRequest& request) {
  return !request.source.average.empty();
}

bool joins_models(const Draft&, const ConversionRequest& request) {
  return !request.source.join.empty();
}

/// Maps know Megatron-Core's keys.
bool maps_megatron_fsdp(const Draft& draft, const ConversionRequest& request) {
  return request.mapped && draft.reader->info().conventions.megatron_fsdp;
}

bool merges_before_a_map(const Draft& draft, const ConversionRequest& request) {
  return draft.adapter && (!request.mapped || draft.adapter->is_for(draft.reader->metadata()));
}

bool merges(const Draft& draft, const ConversionRequest&) {
  return draft.adapter.has_value();
}

bool goes_back(const Draft& draft, const ConversionRequest&) {
  return draft.back != nullptr;
}

bool has_come_back(const Draft& draft, const ConversionRequest&) {
  return draft.trip.after != nullptr;
}

// Steps that change keys.

bool becomes_a_model(const Draft& draft, const ConversionRequest& request) {
  if (!request.source.average.empty()) return true;
  return draft.target.format->conventions.model_folder &&
         !draft.reader->info().conventions.model_folder && draft.keys.include.empty() &&
         !request.optimizer.sharding;
}

/// Leaves out the optimizer: of averages, and of Hugging Face folders unless it is requested.
std::string leave_optimizer(Draft& draft, const ConversionRequest& request, ConvertReport&) {
  std::vector<std::string> of_optimizer, of_model;
  for (const TensorStorageMetadata& tensor : draft.reader->metadata().tensors)
    (is_optimizer_key(tensor.key) ? of_optimizer : of_model).push_back(tensor.key);
  if (of_optimizer.empty() || of_model.empty()) return {};
  for (const char* const pattern : {"optimizer.*", "chained_[0-9]*.optimizer.*", "optim.*"}) {
    if (std::ranges::any_of(of_optimizer,
                            [&](const auto& key) { return glob_match(pattern, key); }))
      draft.keys.exclude.emplace_back(pattern);
  }
  draft.findings.push_back(
      {FindingCode::kOptimizerLeftOut,
       str_format("the optimizer stays behind: {}{}", counted(of_optimizer.size(), "tensor"),
                  !request.source.average.empty() ? ", which have no average"
                  : !request.source.join.empty()  ? "; --to torch_dist takes them"
                                                  : "; --include '*' takes them"),
       of_optimizer});
  return "leaves out the state of the optimizer";
}

bool leaves_megatron_fsdp(const Draft& draft, const ConversionRequest&) {
  return draft.reader->info().conventions.megatron_fsdp &&
         draft.target.format->conventions.megatron_keys;
}

std::string take_megatron_keys(Draft& draft, const ConversionRequest&, ConvertReport&) {
  show(draft, from_megatron_fsdp(std::move(draft.reader)));
  return "gives Megatron-FSDP's keys their names in Megatron-Core";
}

bool becomes_megatron_fsdp(const Draft& draft, const ConversionRequest&) {
  return draft.target.format->conventions.megatron_fsdp &&
         !draft.reader->info().conventions.megatron_fsdp;
}

std::string take_fsdp_keys(Draft& draft, const ConversionRequest&, ConvertReport&) {
  require_no_lost_data(*draft.reader, draft.reader->metadata(),
                       "fsdp_dtensor is made of whole checkpoints; first convert what is whole "
                       "to torch_dist (--allow-partial)");
  show(draft, to_megatron_fsdp(std::move(draft.reader),
                               read_fsdp_save_options(draft.target.save.strategy)));
  return "gives Megatron-Core's keys their names in Megatron-FSDP";
}

// Steps that change the state of the optimizer.

bool changes_optimizer(const Draft&, const ConversionRequest& request) {
  return request.optimizer.sharding.has_value();
}

/// Returns whether `keys` takes any optimizer state once its keys are made of the model's.
bool takes_state(const KeyFilter& keys, const Metadata& metadata) {
  if (keys.include.empty() && keys.exclude.empty()) return true;
  std::vector<std::string> names = optimizer_states(metadata);
  names.insert(names.end(), {"param", "fp32_param", "exp_avg"});
  return std::ranges::any_of(metadata.tensors, [&](const TensorStorageMetadata& tensor) {
    return !is_optimizer_key(tensor.key) &&
           std::ranges::any_of(names, [&](const std::string& name) {
             return keys(optimizer_state_key(name, tensor.key));
           });
  });
}

std::string change_optimizer(Draft& draft, const ConversionRequest& request, ConvertReport&) {
  const auto form = name_of(kOptimizerShardingNames, *request.optimizer.sharding);
  if (!takes_state(draft.keys, draft.reader->metadata()))
    throw_error(ErrorCode::kInvalidArgument,
                "the patterns (--include, --exclude) leave out the optimizer's "
                "state, which is to become {}; leave out one of them",
                form);
  show(draft, with_optimizer_sharding(std::move(draft.reader), *request.optimizer.sharding,
                                      {.threads = request.readers,
                                       .staging = std::min(request.limits.staging, draft.memory)},
                                      request.go_on));
  return str_format("gives the state of the optimizer the form {}", form);
}

/// Reports the uses for which a copy of buckets, or of parts of them, is unsuitable.
void tell_of_buckets(Draft& draft, bool cut_for_ranks) {
  if (std::ranges::none_of(draft.contents.metadata.tensors, is_bucket_key,
                           &TensorStorageMetadata::key))
    return;
  if (cut_for_ranks)
    draft.findings.push_back(
        {FindingCode::kFormKept,
         "optimizer state in buckets is found by the chunks of the model that Megatron saved, "
         "which are cut anew here; --optimizer works with this source, not with the result"});
  std::vector<std::string> weights_left_out;
  for (const TensorStorageMetadata& tensor : draft.reader->metadata().tensors) {
    if (!is_optimizer_key(tensor.key) && !draft.keys(tensor.key))
      weights_left_out.push_back(tensor.key);
  }
  if (!weights_left_out.empty())
    draft.findings.push_back({FindingCode::kFormKept,
                              "left out of the model, but not of the optimizer's buckets: " +
                                  quoted_list(weights_left_out),
                              weights_left_out});
}

// Steps that leave out or rename contents.

std::string leave_common_entries(Draft& draft, const ConversionRequest&, ConvertReport&) {
  const std::size_t patterns = draft.keys.exclude.size();
  show(draft, without_common_entries(std::move(draft.reader), draft.keys.exclude));
  return patterns == draft.keys.exclude.size() ? "" : "leaves out entries of the common state";
}

std::string select(Draft& draft, const ConversionRequest& request, ConvertReport& report) {
  if (request.mapped) draft.keys.check({&draft.reader->metadata(), &draft.source_keys});
  draft.contents = select_contents(*draft.reader, draft.keys);
  draft.contents.trainer = draft.trainer;
  tell_of_buckets(draft, request.target.ranks.has_value());
  report.chunks_before = chunks_of(draft.reader->metadata());
  return str_format("takes {} of {}", counts(draft.contents.metadata),
                    counts(draft.reader->metadata()));
}

/// Leaves out lost data. Also throws if chunks do not make up their tensors.
std::string leave_lost_data(Draft& draft, const ConversionRequest& request, ConvertReport& report) {
  draft.contents = without_lost_data(std::move(draft.contents), *draft.reader,
                                     request.source.allow_partial, report.lost);
  draft.contents.state_left_out +=
      static_cast<std::uint64_t>(std::ranges::count_if(report.lost, is_optimizer_key));
  require_coverage(draft.contents, report.source);
  return report.lost.empty() ? "" : "leaves out what the source has lost";
}

bool renames(const Draft&, const ConversionRequest& request) {
  return !request.target.rename.empty();
}

std::string rename(Draft& draft, const ConversionRequest& request, ConvertReport&) {
  draft.contents = rename_contents(std::move(draft.contents), request.target.rename);
  return str_format("renames keys by {}", counted(request.target.rename.size(), "rule"));
}

// Steps that convert to the form of the target.

/// Reads the common state, so it is called only once that is known to exist.
void tell_of_iteration(Draft& draft) {
  if (std::string conflict = iteration_conflict(*draft.reader); !conflict.empty())
    draft.findings.push_back({FindingCode::kIterationConflict, std::move(conflict)});
}

bool stores_common_state(const Draft& draft, const ConversionRequest&) {
  const Capabilities& can = draft.target.format->capabilities;
  return can.objects || can.common_state;
}

bool stores_tensors_alone(const Draft& draft, const ConversionRequest& request) {
  return !stores_common_state(draft, request);
}

std::string shape_common_state(Draft& draft, const ConversionRequest& request, ConvertReport&) {
  CopyContents& contents = draft.contents;
  contents =
      with_common_state(std::move(contents), *draft.reader, draft.target, request.checks.source);
  tell_of_iteration(draft);
  if (contents.common_file) return "keeps the common state beside the objects";
  if (contents.common_object) return "keeps the common state as an object";
  return {};
}

std::string leave_objects(Draft& draft, const ConversionRequest& request, ConvertReport&) {
  const bool chosen = request.source.keys.include.size() + request.source.keys.exclude.size() > 0;
  draft.contents = tensors_only(std::move(draft.contents), *draft.reader, chosen);
  tell_of_iteration(draft);
  return str_format("takes the tensors alone, which is what {} stores",
                    quote(draft.target.format->name));
}

std::string add_model_files(Draft& draft, const ConversionRequest& request, ConvertReport&) {
  draft.folder =
      model_folder(*draft.reader, draft.contents.metadata, draft.config, draft.target, request);
  name_files_left(*draft.reader, draft.folder, draft.beside);
  return draft.folder.files.empty()
             ? ""
             : str_format("adds {}", counted(draft.folder.files.size(), "file"));
}

bool is_arranged(const Draft& draft, const ConversionRequest&) {
  return draft.target.format->arrange != nullptr;
}

std::string arrange(Draft& draft, const ConversionRequest&, ConvertReport& report) {
  show(draft, draft.target.format->arrange(reader_of(draft.contents, std::move(draft.reader)),
                                           draft.target.save));
  report.left_out += draft.contents.left_out;
  draft.contents = select_contents(*draft.reader, {});
  return str_format("arranges them as {} does: {}", quote(draft.target.format->name),
                    counts(draft.contents.metadata));
}

bool flattens(const Draft&, const ConversionRequest& request) {
  return request.optimizer.flattened == FlattenedForm::kMegatron;
}

std::string flatten(Draft& draft, const ConversionRequest&, ConvertReport&) {
  const bool fragments_lost = draft.reader->info().conventions.fragments_lost;
  CopyContents& contents = draft.contents;
  const std::size_t changed =
      reformulate_optimizer_state(contents.metadata, contents.common, fragments_lost);
  if (changed > 0) {
    draft.findings.push_back(
        {FindingCode::kFormChanged,
         grouped(changed) +
             " optimizer tensors were flattened, as Megatron-Core 0.8 to 0.15 resume them"});
    return "flattens the state of the optimizer";
  }
  if (std::ranges::none_of(contents.metadata.tensors, [](const TensorStorageMetadata& tensor) {
        return tensor.flattened_shape.has_value();
      }))
    draft.findings.push_back(
        {FindingCode::kNoEffect,
         "--flattened megatron had no effect: there is no optimizer state of that form"});
  return {};
}

std::string join(Draft& draft, const ConversionRequest&, ConvertReport&) {
  const std::uint64_t before = chunks_of(draft.contents.metadata);
  join_small_chunks(draft.contents.metadata);
  const std::uint64_t after = chunks_of(draft.contents.metadata);
  return before == after ? ""
                         : str_format("joins {} to {}", counted(before, "chunk"), grouped(after));
}

constexpr Step kSourceSteps[] = {
    {"main parameters", takes_main_parameters, take_main_parameters},
    {"average", averages, average_models},
    {"join", joins_models, join_models},
    {"Megatron's keys", maps_megatron_fsdp, take_megatron_keys},
    {"adapter", merges_before_a_map, merge_adapter},
    {"map", is_mapped, apply_map},
    {"adapter", merges, merge_adapter},
};

constexpr Step kRoundTripSteps[] = {
    {"map back", goes_back, map_back},
    {"round trip", has_come_back, compare_round_trip},
};

constexpr Step kTargetSteps[] = {
    {"model only", becomes_a_model, leave_optimizer},
    {"Megatron's keys", leaves_megatron_fsdp, take_megatron_keys},
    {"optimizer", changes_optimizer, change_optimizer},
    {"FSDP's keys", becomes_megatron_fsdp, take_fsdp_keys},
    {"common entries", always, leave_common_entries},
    {"select", always, select},
    {"lost data", always, leave_lost_data},
    {"rename", renames, rename},
    {"common state", stores_common_state, shape_common_state},
    {"tensors only", stores_tensors_alone, leave_objects},
    {"model files", always, add_model_files},
    {"arrange", is_arranged, arrange},
    {"flatten", flattens, flatten},
    {"join", is_mapped, join},
};

void take(std::span<const Step> steps, Draft& draft, const ConversionRequest& request,
          ConvertReport& report) {
  for (const Step& step : steps) {
    if (!step.applies(draft, request)) continue;
    std::string does = step.change(draft, request, report);
    Findings findings = std::exchange(draft.contents.findings, {});
    append(findings, std::exchange(draft.folder.findings, {}));
    append(findings, std::exchange(draft.findings, {}));
    add_step(report, std::string(step.name), std::move(does), std::move(findings));
  }
}

}  // namespace

void show(Draft& draft, View view) {
  draft.reader = std::move(view.reader);
  append(draft.findings, std::move(view.findings));
}

void take_source_steps(Draft& draft, const ConversionRequest& request, ConvertReport& report) {
  take(kSourceSteps, draft, request, report);
  take(kRoundTripSteps, draft, request, report);
}

void take_target_steps(Draft& draft, const ConversionRequest& request, ConvertReport& report) {
  take(kTargetSteps, draft, request, report);
  report.left_out += draft.contents.left_out;
}

void add_step(ConvertReport& report, std::string name, std::string does, Findings findings) {
  if (does.empty() && findings.empty()) return;
  if (does.empty()) does = "changes nothing";
  report.steps.push_back({std::move(name), std::move(does), messages_of(findings)});
  append(report.findings, std::move(findings));
}

}  // namespace dckpt
