#include "operations/convert/conversion_rules.h"

#include <algorithm>
#include <array>
#include <vector>

#include "mapping/base/counted.h"
#include "mapping/base/finding.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "operations/convert/conversion_findings.h"
#include "operations/convert/source/conversion_source.h"
#include "strategies/registry/registry.h"

namespace dckpt {
namespace {

using Options = ConvertOptions;
using Format = SaveStrategyEntry;

std::string no_pool(const char* option, const char* instead) {
  return str_format("--workers and {} exclude each other; {}", option, instead);
}

/// Returns whether Megatron's flattened form fits the format; if none is named, it is the source's.
bool may_be_flattened(const Options& options) {
  return options.target.strategy.empty() ||
         find_save_strategy(options.target.strategy, options.target.version)
             .capabilities.flattened_form;
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
    ConversionRule{[](const Options& options, const Format*) -> std::string {
      const std::size_t models = options.source.average.size() + 1;
      if (options.source.weights.empty()) return {};
      if (models == 1) return "weights are for averages; name the other models, too";
      if (options.source.weights.size() == models) return {};
      return str_format("an average of {} needs as many weights, found {}",
                        counted(models, "model"), options.source.weights.size());
    }},
    ConversionRule{[](const Options& options, const Format*) -> std::string {
      if (!options.checks.round_trip || has_map(options)) return {};
      return "a round trip is checked through a map; name one";
    }},
    ConversionRule{[](const Options& options, const Format*) -> std::string {
      return never_found(options.checks.error_on);
    }},
    // The form of the result.
    ConversionRule{[](const Options& options, const Format*) -> std::string {
      if (!options.target.ranks ||
          (*options.target.ranks >= 1 && *options.target.ranks <= kMaxRanks))
        return {};
      return str_format("the number of ranks must be between 1 and {}, got {}", grouped(kMaxRanks),
                        *options.target.ranks);
    }},
    ConversionRule{[](const Options& options, const Format*) -> std::string {
      if (options.optimizer.sharding != OptimizerSharding::kFullyShardedModelSpace ||
          options.optimizer.flattened != FlattenedForm::kBoxes || !may_be_flattened(options))
        return {};
      return "fully_sharded_model_space optimizer state is flattened, and --flattened boxes "
             "contradicts it; leave one of them out";
    }},
    ConversionRule{[](const Options& options, const Format*) -> std::string {
      const auto sharding = options.optimizer.sharding;
      if (!sharding || sharding == OptimizerSharding::kFullyShardedModelSpace ||
          options.optimizer.flattened != FlattenedForm::kMegatron)
        return {};
      return str_format("{} optimizer state is not flattened; leave --flattened at 'boxes'",
                        name_of(kOptimizerShardingNames, *sharding));
    }},
    ConversionRule{[](const Options& options, const Format* format) -> std::string {
                     if (format == nullptr || options.target.compat != Compat::kMegatron019 ||
                         format->capabilities.compat)
                       return {};
                     return str_format(
                         "the format {} is written for no other readers: it has one form only; "
                         "leave out compat (--compat)",
                         quote(format->name));
                   },
                   ErrorCode::kUnsupported},
    ConversionRule{[](const Options& options, const Format* format) -> std::string {
      if (format == nullptr || !format->conventions.keys_are_paths ||
          options.optimizer.flattened != FlattenedForm::kMegatron)
        return {};
      return str_format(
          "only Megatron-Core reads its flattened form, and not from plain DCP; {}, or "
          "write 'torch_dist'",
          options.optimizer.sharding ? "take --optimizer fully_reshardable"
                                     : "leave --flattened at boxes");
    }},
    ConversionRule{[](const Options& options, const Format* format) -> std::string {
      if (format == nullptr || !options.target.ranks) return {};
      if (!format->capabilities.cut_tensors)
        return str_format(
            "the format {} stores each tensor whole and has no shards of ranks; leave "
            "out the number of ranks",
            quote(format->name));
      if (format->capabilities.equal_chunks)
        return str_format(
            "the format {} stores chunks of one size, so tensors are not cut anew for "
            "ranks; leave out the number of ranks",
            quote(format->name));
      return {};
    }},
    // Workers.
    ConversionRule{[](const Options& options, const Format*) -> std::string {
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

}  // namespace

std::span<const ConversionRule> conversion_rules() noexcept {
  return kRules;
}

void require_conversion_rules(const ConvertOptions& options, const SaveStrategyEntry* format) {
  for (const ConversionRule& rule : kRules) {
    if (const std::string reason = rule.broken(options, format); !reason.empty())
      throw CheckpointError(rule.code, reason);
  }
}

}  // namespace dckpt
