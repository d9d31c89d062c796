#include "operations/convert/convert_policy.h"

#include "configs/policy/option_rules.h"
#include "mapping/base/error.h"
#include "operations/convert/conversion_findings.h"
#include "strategies/registry/registry.h"

namespace dckpt {
PolicyForConversion policy_for_conversion(const Policy& policy, bool names_format) {
  const SaveOptions& save = policy.save;
  const LoadOptions& load = policy.load;
  require_rules(Call::kConvert, policy, nullptr);
  make_save_strategy(save);  // checks that the strategy exists and takes the options

  const Policy usual;
  PolicyForConversion result;
  ConvertOptions& options = result.options;
  options.source.strategy = load.strategy;
  if (!load.registered_planner.name.empty()) options.source.planner = load.registered_planner;
  const bool own_strategy = save.strategy != usual.save.strategy;
  const bool served_by_another = canonical(save).strategy != save.strategy;  // compat decides
  if (names_format && own_strategy && !served_by_another) {
    options.target.strategy = save.strategy.name;
    options.target.version = save.strategy.version;
    options.target.options = save.strategy.options;
    if (save.compat != usual.save.compat) options.target.compat = save.compat;
  } else if (names_format) {
    options.target.compat = save.compat;
  }
  if (save.flattened != usual.save.flattened) options.optimizer.flattened = save.flattened;
  options.source.map = load.map;
  options.target.rename = load.rename;
  options.checks.source = load.verify != Verify::kNone;
  options.checks.integrity = load.verify == Verify::kSha256;
  options.target.separation_hint = save.separation_hint;
  if (save.integrity) options.target.integrity = true;
  options.limits.io = save.io;
  const auto take_error_on = [&](const std::vector<FindingCode>& codes, const std::string& field) {
    for (const FindingCode code : codes) {
      if (is_of_conversions(code))
        options.checks.error_on.push_back(code);
      else
        result.unused.push_back(str_format("{}: {}", field, name_of(kFindingCodeNames, code)));
    }
  };
  take_error_on(load.error_on, "load.error_on");
  take_error_on(save.error_on, "save.error_on");
  options.limits.read_threads = load.threads;
  options.limits.staging = load.staging;

  const auto unused = [&](bool is_usual, const char* field) {
    if (!is_usual) result.unused.emplace_back(field);
  };
  unused(save.planner.kind != PlannerKind::kHyperParallel, "save.planner.kind");
  unused(save.planner.dedup.value_or(Dedup::kBalanced) == Dedup::kBalanced, "save.planner.dedup");
  unused(save.planner.cache == usual.save.planner.cache, "save.planner.cache");
  unused(save.planner.split_replicas == usual.save.planner.split_replicas,
         "save.planner.split_replicas");
  unused(save.parallel == usual.save.parallel, "save.parallel");
  unused(save.timeout == usual.save.timeout, "save.timeout");
  unused(save.report == usual.save.report, "save.report");
  unused(save.check_replicas == usual.save.check_replicas, "save.check_replicas");
  unused(save.async == usual.save.async, "save.async");
  unused(load.parallel == usual.load.parallel, "load.parallel");
  unused(load.validate_access_integrity == usual.load.validate_access_integrity,
         "load.validate_access_integrity");
  unused(load.engine == usual.load.engine, "load.engine");
  unused(load.allow_unloaded == usual.load.allow_unloaded, "load.allow_unloaded");
  unused(load.objects == usual.load.objects, "load.objects");
  unused(policy.retention == usual.retention, "retention");
  unused(policy.resume == usual.resume, "resume");
  return result;
}

}  // namespace dckpt
