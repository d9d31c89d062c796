#include "operations/convert/convert_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "mapping/base/error.h"

namespace dckpt::convert_policy_test {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

enum class Effect { kHonoured, kRefused, kNamedAsUnused };
struct Case {
  std::string yaml;  ///< a policy in which one field is not the default
  Effect effect;
};

const std::vector<Case> kCases{
    {"save: {strategy: raw}", Effect::kRefused},
    {"save: {strategy: dcp}", Effect::kHonoured},
    {"save: {backend: {name: torch_dist, version: 7}}", Effect::kRefused},
    {"save: {backend: {name: torch_dist, options: {x: 1}}}", Effect::kRefused},
    {"save: {compat: megatron-0.19}", Effect::kHonoured},
    {"save: {flattened: megatron}", Effect::kHonoured},
    {"save: {compat: dcp, planner: {kind: standard}}", Effect::kNamedAsUnused},
    {"save: {parallel: {enabled: true}, planner: {dedup: lowest_rank}}", Effect::kNamedAsUnused},
    {"save: {compat: dcp, flatten: false}", Effect::kRefused},
    {"save: {planner: {cache: false}}", Effect::kNamedAsUnused},
    {"save: {planner: {validate: false}}", Effect::kRefused},
    {"save: {parallel: {enabled: true}, planner: {split_replicas: true}}", Effect::kNamedAsUnused},
    {"save: {parallel: {enabled: true}}", Effect::kNamedAsUnused},
    {"save: {async: {enabled: true}}", Effect::kNamedAsUnused},
    {"save: {async: {snapshot: eager, staging_memory: 1GiB, when_busy: skip}}",
     Effect::kNamedAsUnused},
    {"save: {timeout: 5s}", Effect::kNamedAsUnused},
    {"save: {report: true}", Effect::kNamedAsUnused},
    {"save: {separation_hint: optimizer.}", Effect::kHonoured},
    {"save: {io: {engine: direct}}", Effect::kHonoured},
    {"save: {io: {threads: 3}}", Effect::kHonoured},
    {"save: {io: {files_per_rank: 3}}", Effect::kHonoured},
    {"save: {io: {fsync: false}}", Effect::kHonoured},
    {"save: {io: {checksums: false}}", Effect::kHonoured},
    {"save: {io: {page_aligned: true}}", Effect::kHonoured},
    {"save: {integrity: sha256}", Effect::kHonoured},
    {"load: {strategy: zarr}", Effect::kHonoured},
    {"load: {strict: raise_all}", Effect::kRefused},
    {"load: {missing: [{keys: x, action: keep}]}", Effect::kRefused},
    {"load: {allow_partial_load: true}", Effect::kRefused},
    {"load: {parallel: {enabled: true}}", Effect::kNamedAsUnused},
    {"load: {parallel: {enabled: true, exchange: gather}}", Effect::kNamedAsUnused},
    {"load: {allow_shape_mismatch: [x]}", Effect::kRefused},
    {"load: {allow_truncation: [x]}", Effect::kRefused},
    {"load: {padding: replicate}", Effect::kRefused},
    {"load: {cast: allow}", Effect::kRefused},
    {"load: {backend: {name: torch_dist, version: 1}}", Effect::kHonoured},
    {"load: {map: llama}", Effect::kHonoured},
    {"load: {rename: [{from: a, to: b}]}", Effect::kHonoured},
    {"load: {objects: [{keys: x, when_resharded: drop}]}", Effect::kNamedAsUnused},
    {"load: {validate_access_integrity: false}", Effect::kNamedAsUnused},
    {"load: {verify: none}", Effect::kHonoured},
    {"load: {verify: sha256}", Effect::kHonoured},
    {"load: {threads: 3}", Effect::kHonoured},
    {"load: {staging: 8MiB}", Effect::kHonoured},
    {"save: {error_on: [data-lost]}", Effect::kHonoured},
    {"load: {error_on: [data-lost]}", Effect::kHonoured},
    {"save: {error_on: [ranks-differ]}", Effect::kNamedAsUnused},
    {"load: {error_on: [values-kept, not-finite]}", Effect::kNamedAsUnused},
    {"retention: {keep_last: 3}", Effect::kNamedAsUnused},
    {"save: {check_replicas: all}", Effect::kNamedAsUnused},
    {"load: {allow_unloaded: [x]}", Effect::kNamedAsUnused},
    {"resume: {allow_dropped_keys: true}", Effect::kNamedAsUnused},
    {"retention: {keep_last: 1, keep_every: 3, keep: [2]}", Effect::kNamedAsUnused},
};

/// Returns all options that a policy determines.
auto decided(const ConvertOptions& options) {
  return std::tuple(options.source.strategy, options.target.compat, options.optimizer.flattened,
                    options.source.map, options.target.rename, options.checks.source,
                    options.checks.integrity, options.target.separation_hint,
                    options.target.integrity, options.limits.io, options.limits.read_threads,
                    options.limits.staging, options.checks.error_on);
}

TEST(PolicyForConversion, HonoursRefusesOrNamesEachField) {
  const auto usual = decided(policy_for_conversion({}).options);
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.yaml);
    const Policy policy = Policy::from_text("version: 1\n" + test.yaml + "\n");
    if (test.effect == Effect::kRefused) {
      EXPECT_THROW(policy_for_conversion(policy), CheckpointError);
      continue;
    }
    const PolicyForConversion result = policy_for_conversion(policy);
    EXPECT_EQ(result.unused.empty(), test.effect != Effect::kNamedAsUnused);
    EXPECT_EQ(decided(result.options) != usual,
              test.effect == Effect::kHonoured || test.yaml.find("compat") != std::string::npos);
  }
}

TEST(PolicyForConversion, ReadersDecideTheFormatUnlessTheStrategyDoes) {
  const auto target = [](const std::string& save) {
    const ConvertOptions options =
        policy_for_conversion(Policy::from_text("version: 1\nsave: " + save + "\n")).options;
    return options.target.strategy +
           (options.target.compat ? " for " + std::string(to_string(*options.target.compat)) : "");
  };
  EXPECT_EQ(target("{backend: {name: torch_dist, version: 1}, compat: dcp}"), " for dcp");
  EXPECT_EQ(target("{compat: megatron-0.19}"), " for megatron-0.19");
  EXPECT_EQ(target("{strategy: dcp}"), "dcp");
}

/// A new field of the schema needs a case.
TEST(PolicyForConversion, HasACaseForEachFieldOfTheSchema) {
  std::istringstream lines(to_yaml(Policy{}));
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with(':') || line.starts_with("version")) continue;
    const std::size_t begin = line.find_first_not_of(" -");
    const std::string field = line.substr(begin, line.find(':') - begin) + ":";
    EXPECT_TRUE(std::ranges::any_of(kCases, [&](const Case& test) {
      return test.yaml.find(field) != std::string::npos;
    })) << field;
  }
}

TEST(PolicyForConversion, TakesEveryPolicyThatComesWithTheLibrary) {
  for (const ShippedPolicy& shipped : shipped_policies())
    EXPECT_NO_THROW(policy_for_conversion(Policy::shipped(shipped.name))) << shipped.name;
  EXPECT_THAT(policy_for_conversion(Policy::shipped("production")).unused, Contains("retention"));
  EXPECT_THAT(policy_for_conversion({}).unused, IsEmpty());
}

}  // namespace
}  // namespace dckpt::convert_policy_test
