// Every rule of configs/policy/option_rules.cpp has a policy that breaks it, and a call refuses
// that policy with the message of the rule.

#include "configs/policy/option_rules.h"

#include <gmock/gmock.h>

#include <map>

#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "operations/convert/convert.h"
#include "operations/convert/convert_policy.h"
#include "strategies/registry/registry.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::option_rules_test {
namespace {

using ::testing::HasSubstr;

/// YAML below `version: 1`, by the field that it has to change; the strategy "limited" has no
/// optional capabilities.
const std::map<std::string_view, const char*> kBroken{
    {"save.planner.kind", "save: {strategy: limited, planner: {kind: my_standard}}"},
    {"save.flattened", "save: {strategy: limited, flattened: megatron}"},
    {"save.flatten", "save: {flatten: false}"},
    {"save.compat", "save: {strategy: limited, compat: megatron-0.19}"},
    {"save.integrity", "save: {strategy: limited, integrity: sha256}"},
    {"save.separation_hint", "save: {strategy: limited, separation_hint: optimizer}"},
    {"save.planner.validate", "save: {planner: {validate: false}}"},
    {"save.error_on", "save: {planner: {validate: false}, error_on: [ranks-differ]}"},
    {"save.planner.dedup", "save: {planner: {dedup: lowest_rank}}"},
    {"save.planner.split_replicas", "save: {planner: {split_replicas: true}}"},
    {"load.strategy", "load: {backend: {version: 2}}"},
    {"load.map", "load: {map: {set: [vocab_size=1]}}"},
    {"load.allow_partial_load", "load: {allow_partial_load: true}"},
    {"load.strict", "load: {strict: raise_all, allow_partial_load: true}"},
    {"load.allow_shape_mismatch", "load: {allow_shape_mismatch: ['*']}"},
    {"load.allow_truncation", "load: {allow_truncation: ['*']}"},
    {"load.missing", "load: {missing: [{keys: '*', action: keep}]}"},
    {"load.planner", "load: {planner: {kind: my_loader}}"},
    {"load.padding", "load: {padding: replicate}"},
    {"load.allow_unloaded", "load: {allow_unloaded: ['*']}"},
    {"load.cast", "load: {cast: allow}"},
    {"load.rename", "load: {planner: {kind: my_loader}, rename: [{from: a, to: b}]}"},
    {"load.objects", "load: {objects: []}"},
    {"load.validate_access_integrity", "load: {validate_access_integrity: false}"},
    {"load.engine", "load: {engine: direct, threads: 2, staging: 15MiB}"},
    {"load.parallel.exchange", "load: {parallel: {exchange: all_to_all}}"},
    {"retention.keep_every", "retention: {keep_every: 1000}"},
    {"retention.keep", "retention: {keep: [1000]}"},
    {"load.parallel", "load: {parallel: {enabled: true}}"},
};

/// Policies that YAML cannot express, but code can.
const std::map<std::string_view, void (*)(Policy&)> kBrokenInCode{
    {"save.timeout", [](Policy& policy) { policy.save.timeout = std::chrono::milliseconds(-5); }},
    {"save.io.threads", [](Policy& policy) { policy.save.io.threads = 0; }},
    {"save.io.files_per_rank", [](Policy& policy) { policy.save.io.files_per_rank = -1; }},
    {"load.threads", [](Policy& policy) { policy.load.threads = 0; }},
    {"load.timeout", [](Policy& policy) { policy.load.timeout = std::chrono::milliseconds(-5); }},
};

CheckedPolicy breaking(std::string_view field) {
  const auto yaml = kBroken.find(field);
  if (yaml != kBroken.end()) return check_policy(std::string("version: 1\n") + yaml->second);
  CheckedPolicy checked;
  kBrokenInCode.at(field)(checked.policy);
  return checked;
}

/// The calls whose rules 'config check' knows.
constexpr std::uint8_t kOfPolicies = static_cast<std::uint8_t>(Call::kSave) |
                                     static_cast<std::uint8_t>(Call::kLoad) |
                                     static_cast<std::uint8_t>(Call::kKeep);

class OptionRules : public SaveLoad {
 protected:
  OptionRules() {
    register_strategy(SaveStrategyEntry{.name = "limited", .make = [](const SaveOptions&) {
                                          return make_save_strategy(SaveOptions());
                                        }});
    register_planner(LoadPlannerEntry{.name = "my_loader", .make = [](const StrategySpec&) {
                                        return std::make_unique<MCoreLoadPlanner>();
                                      }});
    register_planner({.name = "my_mcore", .make = [](const StrategySpec&) {
                        return std::make_unique<MCoreSavePlanner>();
                      }});
    register_planner(
        {.name = "my_standard",
         .rules = PlannerKind::kHyperParallel,
         .make = [](const StrategySpec&) { return std::make_unique<StandardSavePlanner>(); }});
    save(state_, checkpoint());
  }

  /// Returns the messages of each call about the policy.
  std::map<std::string, std::string> said_of(const OptionRule& rule, const Policy& policy) {
    const auto is_for = [&](Call call) {
      return (rule.calls & static_cast<std::uint8_t>(call)) != 0;
    };
    StateDict state = state_;
    std::map<std::string, std::string> said;
    if (is_for(Call::kSave))
      said["save"] = error_of([&] { save(state, checkpoint("new"), policy.save); });
    if (is_for(Call::kSave) || is_for(Call::kKeep)) {
      said["Checkpointer"] = error_of([&] {
        const auto alone = single_rank();
        Checkpointer(checkpoint("run"), policy, *alone);
      });
    }
    if (is_for(Call::kLoad))
      said["load"] = error_of([&] { load(state, checkpoint(), policy.load); });
    if (is_for(Call::kLoadAll))
      said["load_state_dict"] =
          error_of([&] { (void)load_state_dict(checkpoint(), {}, policy.load); });
    if (is_for(Call::kLoadTensors))
      said["load_plain_tensors"] =
          error_of([&] { (void)load_plain_tensors(checkpoint(), policy.load); });
    if (is_for(Call::kConvert)) said["convert"] = error_of([&] { policy_for_conversion(policy); });
    return said;
  }

  const StateDict state_ = Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}});
};

TEST_F(OptionRules, AreBrokenByAPolicyEachAndSayTheSameEverywhere) {
  const Backend limited{.name = "limited"};
  for (const OptionRule& rule : option_rules()) {
    SCOPED_TRACE(rule.field);
    ASSERT_TRUE(kBroken.contains(rule.field) || kBrokenInCode.contains(rule.field))
        << "a new rule needs a policy that breaks it";
    const CheckedPolicy checked = breaking(rule.field);
    EXPECT_FALSE(rule.is_broken(Policy(), &limited)) << "the default policy breaks no rule";
    ASSERT_TRUE(rule.is_broken(checked.policy, &limited));
    std::string message;
    for (const Call call : {Call::kSave, Call::kLoad, Call::kLoadAll, Call::kLoadTensors,
                            Call::kConvert, Call::kKeep}) {
      for (const BrokenRule& broken : broken_rules(call, checked.policy, &limited)) {
        if (broken.rule == &rule) message = broken.message;
      }
    }
    for (const auto& [who, said] : said_of(rule, checked.policy))
      EXPECT_THAT(said, HasSubstr(message)) << who;
    if (rule.is_broken(checked.policy, nullptr) && (rule.calls & kOfPolicies) != 0 &&
        kBroken.contains(rule.field)) {
      ASSERT_EQ(checked.problems.size(), 1U) << "so that 'config check' says it too";
      EXPECT_EQ(checked.problems.front().message, message);
      EXPECT_EQ(checked.problems.front().code, rule.code);
    }
  }
}

TEST_F(OptionRules, SayWhichNumberTheyHaveFound) {
  SaveOptions options;
  options.timeout = std::chrono::milliseconds(-5);
  options.io.threads = 0;
  EXPECT_THAT(error_of([&] { save(state_, checkpoint("new"), options); }),
              HasSubstr("save.timeout: found -5 ms, but a time limit is not negative; say 0 for "
                        "none\nsave.io.threads: found 0, but it takes at least one thread to "
                        "write"));
  EXPECT_THAT(error_of([&] {
                convert(checkpoint(), checkpoint("new"), {.limits = {.io = {.files_per_rank = 0}}});
              }),
              HasSubstr("save.io.files_per_rank: found 0"));
  EXPECT_THAT(
      error_of([&] { convert(checkpoint(), checkpoint("new"), {.limits = {.read_threads = -1}}); }),
      HasSubstr("load.threads: found -1"));
}

}  // namespace
}  // namespace dckpt::option_rules_test
