#include "configs/policy/option_rules.h"

#include <algorithm>
#include <array>
#include <utility>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr auto kSave = static_cast<std::uint8_t>(Call::kSave);
constexpr auto kLoad = static_cast<std::uint8_t>(Call::kLoad);
constexpr auto kConvert = static_cast<std::uint8_t>(Call::kConvert);
constexpr auto kLoadTensors = static_cast<std::uint8_t>(Call::kLoadTensors);
constexpr auto kKeep = static_cast<std::uint8_t>(Call::kKeep);
constexpr auto kWithoutState =
    static_cast<std::uint8_t>(static_cast<std::uint8_t>(Call::kLoadAll) | kLoadTensors);

constexpr auto kUnsupported = ErrorCode::kUnsupported;

constexpr std::string_view kNoEffect =
    "would have no effect in a load without a state dict, which takes what is stored as it is "
    "stored; leave the default";
constexpr std::string_view kNoKeys =
    "a conversion asks for no keys; choose them with --include and --exclude";
constexpr std::string_view kNoShapes = "a conversion keeps every shape";

template <auto Field>
bool is_set(const Policy& policy, const Backend*) {
  static const LoadOptions usual;
  return policy.load.*Field != usual.*Field;
}

bool saves_dcp(const Policy& policy, const Backend* backend) {
  if (policy.save.compat == Compat::kDcp) return true;
  // Without the registry, the form is known only for the default strategy.
  return backend == nullptr ? policy.save.strategy.name != SaveOptions().strategy.name
                            : backend->conventions.keys_are_paths;
}

/// Returns the form that a strategy with a single form writes.
Compat only_form(const Backend& backend) {
  return backend.conventions.keys_are_paths ? Compat::kDcp : Compat::kMegatron;
}

constexpr std::array kRules{
    // Rules of saves.
    OptionRule{kSave, "save.timeout",
               "found {timeout} ms, but a time limit is not negative; say 0 for none",
               [](const Policy& policy, const Backend*) {
                 return policy.save.timeout < policy.save.timeout.zero();
               }},
    OptionRule{kSave, "save.error_on",
               "a save with planner.validate: false does not compare the common states of the "
               "ranks; set planner.validate to true, or leave error_on out",
               [](const Policy& policy, const Backend*) {
                 return !policy.save.error_on.empty() && !policy.save.planner.validate;
               }},
    OptionRule{kSave | kConvert, "save.io.threads",
               "found {threads}, but it takes at least one thread to write",
               [](const Policy& policy, const Backend*) { return policy.save.io.threads < 1; }},
    OptionRule{
        kSave | kConvert, "save.io.files_per_rank",
        "found {files}, but a rank needs at least one file",
        [](const Policy& policy, const Backend*) { return policy.save.io.files_per_rank < 1; }},
    OptionRule{kSave, "save.planner.kind",
               "{kind} saves plain DCP directories, but compat is {compat}; say {remedy}",
               [](const Policy& policy, const Backend* backend) {
                 return policy.save.planner.kind != PlannerKind::kMegatron &&
                        !saves_dcp(policy, backend);
               }},
    OptionRule{kSave, "save.planner.dedup",
               "{dedup} would have no effect, since only the main replica may write a part; say "
               "parallel: {enabled: true}, or leave it at balanced",
               [](const Policy& policy, const Backend* backend) {
                 return policy.save.planner.effective_dedup() != Dedup::kBalanced &&
                        policy.save.planner.kind == PlannerKind::kMegatron &&
                        !saves_dcp(policy, backend) && !policy.save.parallel.enabled;
               }},
    OptionRule{
        kSave, "save.planner.split_replicas",
        "would have no effect, since only one rank may write each tensor; say parallel: "
        "{enabled: true} with kind: mcore, and not dedup: off with the others, or leave it at "
        "false",
        [](const Policy& policy, const Backend* backend) {
          const PlannerOptions& planner = policy.save.planner;
          if (!planner.split_replicas) return false;
          if (policy.save.compat == Compat::kDcp) return planner.effective_dedup() == Dedup::kOff;
          return !saves_dcp(policy, backend) && !policy.save.parallel.enabled;
        }},
    OptionRule{kSave, "save.flattened",
               "strategy {strategy} stores flattened tensors as boxes only; leave it at boxes",
               [](const Policy& policy, const Backend* backend) {
                 return backend != nullptr && !backend->capabilities.flattened_form &&
                        policy.save.flattened != FlattenedForm::kBoxes;
               },
               kUnsupported},
    OptionRule{
        kSave, "save.flatten",
        "plain DCP directories alone have a state dict that is flattened, and this save makes "
        "none; say compat: dcp, or leave it at true",
        [](const Policy& policy, const Backend* backend) {
          return !policy.save.flatten && !saves_dcp(policy, backend);
        }},
    OptionRule{kConvert, "save.flatten", "a conversion keeps what is stored; leave it at true",
               [](const Policy& policy, const Backend*) { return !policy.save.flatten; }},
    OptionRule{kSave, "save.compat",
               "strategy {strategy} writes for no other readers: it has one form only; leave out "
               "compat",
               [](const Policy& policy, const Backend* backend) {
                 return backend != nullptr && !backend->capabilities.compat &&
                        policy.save.compat != only_form(*backend);
               },
               kUnsupported},
    OptionRule{kSave, "save.integrity",
               "strategy {strategy} cannot have it: it writes no integrity manifest; leave it at "
               "none",
               [](const Policy& policy, const Backend* backend) {
                 return backend != nullptr && !backend->capabilities.integrity &&
                        policy.save.integrity;
               },
               kUnsupported},
    OptionRule{kSave, "save.separation_hint",
               "strategy {strategy} keeps no keys in files of their own; leave out separation_hint",
               [](const Policy& policy, const Backend* backend) {
                 return backend != nullptr && !backend->capabilities.separation_hint &&
                        !policy.save.separation_hint.empty();
               },
               kUnsupported},
    // Rules of loads.
    OptionRule{kLoad | kConvert, "load.strategy",
               "a version or options are those of one strategy; add its name",
               [](const Policy& policy, const Backend*) {
                 const StrategySpec& strategy = policy.load.strategy;
                 return strategy.name == kAutoStrategy &&
                        (strategy.version || !strategy.options.empty());
               }},
    OptionRule{kLoad | kConvert, "load.map",
               "numbers and settings (--set, --dtype) are those of a map; add its name (--map), or "
               "leave them out",
               [](const Policy& policy, const Backend*) {
                 const KeyMapOptions& map = policy.load.map;
                 return (map.name.empty() || map.name == kNoMap) && !map.set.empty();
               }},
    OptionRule{kLoad | kConvert, "load.threads",
               "found {readers}, but it takes at least one thread to read",
               [](const Policy& policy, const Backend*) { return policy.load.threads < 1; }},
    OptionRule{
        kLoad, "load.engine",
        "direct takes 8 MiB of load.staging for each thread, but {staging} are for {readers} "
        "threads; raise load.staging, lower load.threads, or leave it at auto",
        [](const Policy& policy, const Backend*) {
          const LoadOptions& load = policy.load;
          return load.engine == ReadEngine::kDirect && load.threads > 0 &&
                 load.staging / static_cast<std::uint64_t>(load.threads) < kDirectStaging;
        }},
    OptionRule{kLoad, "load.parallel.exchange",
               "would have no effect, since every rank reads what it needs; say parallel: "
               "{enabled: true}, or leave it at auto",
               [](const Policy& policy, const Backend*) {
                 const ParallelOptions& parallel = policy.load.parallel;
                 return !parallel.enabled && parallel.exchange != Exchange::kAuto;
               }},
    OptionRule{
        kLoad, "load.allow_partial_load",
        "would have no effect, since the checkpoint is no plain DCP directory; leave the default",
        [](const Policy& policy, const Backend* found) {
          return found != nullptr && !found->conventions.keys_are_paths &&
                 policy.load.allow_partial_load;
        }},
    OptionRule{kLoad, "load.strict",
               "would have no effect with allow_partial_load: true, which goes on without any key; "
               "leave one of them out",
               [](const Policy& policy, const Backend*) {
                 return policy.load.allow_partial_load &&
                        policy.load.strict != LoadOptions().strict;
               }},
    OptionRule{kWithoutState, "load.strict", kNoEffect, is_set<&LoadOptions::strict>},
    OptionRule{kWithoutState, "load.missing", kNoEffect, is_set<&LoadOptions::missing>},
    OptionRule{kWithoutState, "load.allow_shape_mismatch", kNoEffect,
               is_set<&LoadOptions::allow_shape_mismatch>},
    OptionRule{kWithoutState, "load.allow_truncation", kNoEffect,
               is_set<&LoadOptions::allow_truncation>},
    OptionRule{kWithoutState, "load.allow_unloaded", kNoEffect,
               is_set<&LoadOptions::allow_unloaded>},
    OptionRule{kLoad | kWithoutState, "load.timeout",
               "found {load_timeout} ms, but a time limit is not negative; say 0 for none",
               [](const Policy& policy, const Backend*) {
                 return policy.load.timeout < policy.load.timeout.zero();
               }},
    OptionRule{kLoad, "load.rename",
               "load.planner names a planner, which plans with the keys that are stored; let it "
               "rename them (LoadItem::tensor), and leave out load.rename",
               [](const Policy& policy, const Backend*) {
                 return !policy.load.registered_planner.name.empty() && !policy.load.rename.empty();
               }},
    OptionRule{kWithoutState, "load.padding", kNoEffect, is_set<&LoadOptions::padding>},
    OptionRule{kWithoutState, "load.cast", kNoEffect, is_set<&LoadOptions::cast>},
    OptionRule{kWithoutState, "load.rename", kNoEffect, is_set<&LoadOptions::rename>},
    OptionRule{kWithoutState, "load.objects", kNoEffect, is_set<&LoadOptions::objects>},
    OptionRule{kWithoutState, "load.validate_access_integrity", kNoEffect,
               is_set<&LoadOptions::validate_access_integrity>},
    OptionRule{kLoadTensors, "load.allow_partial_load", kNoEffect,
               is_set<&LoadOptions::allow_partial_load>},
    OptionRule{kLoadTensors, "load.parallel", kNoEffect, is_set<&LoadOptions::parallel>},
    // Rules of conversions.
    OptionRule{
        kConvert, "save.planner.kind",
        "planner {planner} plans saves, and a conversion has its plan from the source; leave "
        "it out",
        [](const Policy& policy, const Backend*) {
          return !policy.save.registered_planner.name.empty();
        }},
    OptionRule{kConvert, "save.planner.validate",
               "a conversion always checks that chunks cover their tensors; leave it at true",
               [](const Policy& policy, const Backend*) { return !policy.save.planner.validate; }},
    OptionRule{kConvert, "load.timeout", "a conversion has no time limit; leave it at none",
               is_set<&LoadOptions::timeout>},
    OptionRule{kConvert, "load.strict", kNoKeys, is_set<&LoadOptions::strict>},
    OptionRule{kConvert, "load.missing", kNoKeys, is_set<&LoadOptions::missing>},
    OptionRule{kConvert, "load.allow_partial_load", kNoKeys,
               is_set<&LoadOptions::allow_partial_load>},
    OptionRule{kConvert, "load.allow_shape_mismatch", kNoShapes,
               is_set<&LoadOptions::allow_shape_mismatch>},
    OptionRule{kConvert, "load.allow_truncation", kNoShapes,
               is_set<&LoadOptions::allow_truncation>},
    OptionRule{kConvert, "load.padding", kNoShapes, is_set<&LoadOptions::padding>},
    OptionRule{kConvert, "load.cast", "a conversion keeps every dtype", is_set<&LoadOptions::cast>},
    // Rules of retention.
    OptionRule{
        kKeep, "retention.keep_every",
        "would have no effect, since keep_last: 0 keeps every checkpoint; say with keep_last "
        "how many of the newest to keep (1 or more), or leave keep_every at 0",
        [](const Policy& policy, const Backend*) {
          return policy.retention.keep_every != 0 && policy.retention.keep_last == 0;
        }},
    OptionRule{
        kKeep, "retention.keep",
        "would have no effect, since keep_last: 0 keeps every checkpoint; say with keep_last "
        "how many of the newest to keep (1 or more), or leave keep out",
        [](const Policy& policy, const Backend*) {
          return !policy.retention.keep.empty() && policy.retention.keep_last == 0;
        }},
};

std::string message_of(const OptionRule& rule, const Policy& policy, const Backend* backend) {
  std::string text = str_format("{}: {}", rule.field, rule.message);
  const bool has_compat = backend == nullptr || backend->capabilities.compat;
  const std::array<std::pair<std::string_view, std::string>, 12> values{{
      {"{strategy}", quote(backend != nullptr ? backend->name : "")},
      {"{planner}", quote(policy.save.registered_planner.name)},
      {"{kind}", std::string(to_string(policy.save.planner.kind))},
      {"{dedup}", std::string(to_string(policy.save.planner.effective_dedup()))},
      {"{compat}", std::string(to_string(policy.save.compat))},
      {"{remedy}", has_compat ? "compat: dcp, or kind: mcore" : "kind: mcore"},
      {"{load_timeout}", std::to_string(policy.load.timeout.count())},
      {"{timeout}", std::to_string(policy.save.timeout.count())},
      {"{threads}", std::to_string(policy.save.io.threads)},
      {"{files}", std::to_string(policy.save.io.files_per_rank)},
      {"{staging}", human_bytes(policy.load.staging)},
      {"{readers}", std::to_string(policy.load.threads)},
  }};
  for (const auto& [name, value] : values) {
    if (const std::size_t at = text.find(name); at != std::string::npos)
      text.replace(at, name.size(), value);
  }
  return text;
}

}  // namespace

std::span<const OptionRule> option_rules() noexcept {
  return kRules;
}

std::vector<BrokenRule> broken_rules(Call call, const Policy& policy, const Backend* backend) {
  std::vector<BrokenRule> broken;
  for (const OptionRule& rule : kRules) {
    if ((rule.calls & static_cast<std::uint8_t>(call)) == 0) continue;
    if (rule.is_broken(policy, backend))
      broken.push_back({&rule, message_of(rule, policy, backend)});
  }
  return broken;
}

void require_rules(Call call, const Policy& policy, const Backend* backend) {
  const std::vector<BrokenRule> broken = broken_rules(call, policy, backend);
  if (broken.empty()) return;
  std::string message;
  for (const BrokenRule& each : broken) message += (message.empty() ? "" : "\n") + each.message;
  const bool unsupported = std::ranges::all_of(
      broken, [](const BrokenRule& each) { return each.rule->code == kUnsupported; });
  throw_error(unsupported ? kUnsupported : ErrorCode::kInvalidArgument, message);
}

}  // namespace dckpt
