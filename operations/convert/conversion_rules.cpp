#include "operations/convert/conversion_rules.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/finding.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "migration/maps/findings/close_maps.h"
#include "migration/maps/mapped_reader.h"
#include "migration/megatron_fsdp/megatron_fsdp.h"
#include "operations/convert/conversion_findings.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/model/model_config.h"
#include "operations/convert/source/conversion_source.h"
#include "strategies/contract/forwarding_reader.h"

namespace dckpt {
namespace {

std::string no_pool(const char* option, const char* instead) {
  return str_format("--workers and {} exclude each other; {}", option, instead);
}

/// Returns why codes of findings that no conversion makes cannot be errors.
std::string never_found(const std::vector<FindingCode>& errors) {
  std::vector<std::string> never, others;
  for (const auto& [code, name] : kFindingCodeNames) {
    if (is_of_conversions(code))
      others.emplace_back(name);
    else if (std::ranges::find(errors, code) != errors.end())
      never.emplace_back(name);
  }
  if (never.empty()) return {};
  return str_format(
      "conversions make no findings of the kind {}, so these cannot be errors; they make {}",
      quoted_list(never), quoted_list(others, others.size()));
}

constexpr std::array kRules{
    // The source.
    ConversionRule{[](const ConvertOptions& options) -> std::string {
      const std::size_t models = options.source.average.size() + 1;
      if (options.source.weights.empty()) return {};
      if (models == 1) return "weights are for averages; name the other models, too";
      if (options.source.weights.size() == models) return {};
      return str_format("an average of {} needs as many weights, found {}",
                        counted(models, "model"), options.source.weights.size());
    }},
    ConversionRule{[](const ConvertOptions& options) -> std::string {
      if (!options.checks.round_trip || has_map(options.source.map)) return {};
      return "a round trip is checked through a map; name one";
    }},
    ConversionRule{[](const ConvertOptions& options) -> std::string {
      return never_found(options.checks.error_on);
    }},
    // The form of the result.
    ConversionRule{[](const ConvertOptions& options) -> std::string {
      if (!options.target.ranks ||
          (*options.target.ranks >= 1 && *options.target.ranks <= kMaxRanks))
        return {};
      return str_format("the number of ranks must be between 1 and {}, got {}", grouped(kMaxRanks),
                        *options.target.ranks);
    }},
    ConversionRule{[](const ConvertOptions& options) -> std::string {
      if (options.optimizer.sharding != OptimizerSharding::kFullyShardedModelSpace ||
          options.optimizer.flattened != FlattenedForm::kBoxes || !may_be_flattened(options.target))
        return {};
      return "fully_sharded_model_space optimizer state is flattened, and --flattened boxes "
             "contradicts it; leave one of them out";
    }},
    ConversionRule{[](const ConvertOptions& options) -> std::string {
      const auto sharding = options.optimizer.sharding;
      if (!sharding || sharding == OptimizerSharding::kFullyShardedModelSpace ||
          options.optimizer.flattened != FlattenedForm::kMegatron)
        return {};
      return str_format("{} optimizer state is not flattened; leave --flattened at 'boxes'",
                        name_of(kOptimizerShardingNames, *sharding));
    }},
    // Workers.
    ConversionRule{[](const ConvertOptions& options) -> std::string {
      if (!options.workers.directory) return {};
      if (options.dry_run) return no_pool("a dry run", "run it without --workers first");
      if (options.target.resume)
        return no_pool("--resume",
                       "workers always go on with what others of the same pool have finished");
      if (options.checks.round_trip)
        return no_pool("--roundtrip-check", "run it with --dry-run and without --workers first");
      return {};
    }},
};

// Rules about the source and the format.

[[noreturn]] void refuse(const std::string& reason, ErrorCode code = ErrorCode::kInvalidArgument,
                         ErrorContext context = {}) {
  throw CheckpointError(code, reason, std::move(context));
}

void require_readers_of_format(const Draft& draft, const ConversionRequest& request) {
  const SaveStrategyEntry& format = *draft.target.format;
  if (request.target.compat == Compat::kMegatron019 && !format.capabilities.compat)
    refuse(str_format("the format {} is written for no other readers: it has one form only; "
                      "leave out compat (--compat)",
                      quote(format.name)),
           ErrorCode::kUnsupported);
}

void require_readers_of_flattened(const Draft& draft, const ConversionRequest& request) {
  if (draft.target.format->conventions.keys_are_paths &&
      request.optimizer.flattened == FlattenedForm::kMegatron)
    refuse(
        str_format("only Megatron-Core reads its flattened form, and not from plain DCP; {}, or "
                   "write 'torch_dist'",
                   request.optimizer.sharding ? "take --optimizer fully_reshardable"
                                              : "leave --flattened at boxes"));
}

void require_shards(const Draft& draft, const ConversionRequest& request) {
  const SaveStrategyEntry& format = *draft.target.format;
  if (!request.target.ranks) return;
  if (!format.capabilities.cut_tensors)
    refuse(
        str_format("the format {} stores each tensor whole and has no shards of ranks; leave "
                   "out the number of ranks",
                   quote(format.name)));
  if (format.capabilities.equal_chunks)
    refuse(
        str_format("the format {} stores chunks of one size, so tensors are not cut anew for "
                   "ranks; leave out the number of ranks",
                   quote(format.name)));
}

/// A folder for transformers gets the keys of transformers' models. A copy of such a folder stays
/// as it is.
void require_map_for_models(const Draft& draft, const ConversionRequest& request) {
  const CheckpointReader& reader = *draft.reader;
  if (!draft.target.format->conventions.model_folder || reader.info().conventions.model_folder ||
      !request.source.map.name.empty() ||
      std::ranges::none_of(reader.metadata().tensors, [](const TensorStorageMetadata& tensor) {
        return !is_optimizer_key(tensor.key) && is_megatron_key(tensor.key);
      }))
    return;
  auto model = std::unique_ptr<CheckpointReader>(std::make_unique<ForwardingReader>(reader));
  if (reader.info().conventions.megatron_fsdp)  // maps know Megatron-Core's keys
    model = from_megatron_fsdp(std::move(model)).reader;
  std::string fitting;
  for (const std::string& map : fitting_maps(*model, model_files(request.target.model_files).get()))
    fitting += (fitting.empty() ? "--map " : " or --map ") + map;
  refuse(
      str_format("the keys are Megatron's, and transformers finds none of them; {}; --map none "
                 "insists on these keys",
                 fitting.empty() ? "no shipped map fits this model, so write one (docs/maps.md)" +
                                       closest_maps(model->metadata())
                                 : "it has the keys and shapes of a model for " + fitting));
}

/// Formats without such files: the numbers of a map may still come from config.json.
void require_use_of_model_files(const Draft& draft, const ConversionRequest& request) {
  const std::optional<Location>& files = request.target.model_files;
  if (!files || draft.target.format->conventions.model_folder) return;
  if (!request.mapped)
    refuse(
        str_format("the format {} takes no files of a model; leave out --model-files, write "
                   "'hf' (--to), or convert with a --map, which takes numbers from their "
                   "config.json",
                   quote(draft.target.format->name)));
  if (!files->directory()->stat(kModelConfig))
    refuse("there is no config.json that the map could take numbers from",
           ErrorCode::kInvalidArgument, {.file = files->display()});
}

/// Several attempts, or workers, write one copy.
void require_several_writers(const Draft& draft, const ConversionRequest& request) {
  if (!request.target.resume && !request.workers.directory) return;
  const char* const option = request.target.resume ? "--resume" : "--workers";
  if (!draft.target.format->capabilities.resume)
    refuse(str_format("the format {} is written in one go by one process; leave out {}",
                      quote(draft.target.format->name), option),
           ErrorCode::kUnsupported);
  if (!draft.route.to.storage()->capabilities().rename)
    refuse(str_format("this storage cannot rename, so nothing in it can wait for another process "
                      "to go on; leave out {}",
                      option),
           ErrorCode::kUnsupported, {.file = draft.route.to.display()});
}

/// The files of a pool must not be among those that count.
void require_pool_outside(const Draft& draft, const ConversionRequest& request) {
  const std::optional<Location>& pool = request.workers.directory;
  if (!pool) return;
  const std::string name = pool->absolute();
  for (const auto& [place, what] : {std::pair(draft.reader->storage().absolute(""), "the source"),
                                    std::pair(draft.route.to.absolute(), "the destination")}) {
    if (name == place || name.starts_with(place + '/'))
      refuse(str_format("the directory for workers is in {}, whose files its own would be among; "
                        "choose one outside",
                        what),
             ErrorCode::kInvalidArgument, {.file = pool->display()});
  }
}

void require_free_name_for_dry_run(const Draft& draft, const ConversionRequest& request) {
  if (request.dry_run) require_free_name(draft.route.to, request.target.overwrite);
}

constexpr std::array<TargetRule, 8> kTargetRules{
    require_readers_of_format, require_readers_of_flattened,  require_shards,
    require_map_for_models,    require_free_name_for_dry_run, require_use_of_model_files,
    require_several_writers,   require_pool_outside,
};

}  // namespace

std::span<const ConversionRule> conversion_rules() noexcept {
  return kRules;
}

void require_conversion_rules(const ConvertOptions& options) {
  for (const ConversionRule rule : kRules) {
    if (const std::string reason = rule(options); !reason.empty()) refuse(reason);
  }
}

std::span<const TargetRule> target_rules() noexcept {
  return kTargetRules;
}

void require_target_rules(const Draft& draft, const ConversionRequest& request) {
  for (const TargetRule rule : kTargetRules) rule(draft, request);
}

}  // namespace dckpt
