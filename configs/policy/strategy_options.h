#pragma once

#include <string>
#include <string_view>

#include "configs/policy/options.h"
#include "configs/yaml/schema.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

inline constexpr const char* kSaveBackendOptions = "save.backend.options";
inline constexpr const char* kLoadBackendOptions = "load.backend.options";

/// Returns "strategy" or "planner": whose options a field of a policy has.
std::string_view plug_of(std::string_view field);

/// Reads the own options of a strategy or planner into a struct; `field` is their place in a
/// policy. Fields that are not mentioned keep their defaults. Throws CheckpointError (invalid
/// argument) with all mistakes, with line and column of the policy.
///
///   const Schema<RawOptions> schema{{config::field("block", &RawOptions::block, config::size(512, 1 << 30))}};
///   const auto options = read_options(schema, save_options.strategy);
template <typename Options>
Options read_options(const config::Schema<Options>& schema, const StrategySpec& strategy,
                     const char* field = kSaveBackendOptions) {
  Options options;
  ConfigProblems problems;
  config::section(schema).read({strategy.options.tree(), field, problems}, options);
  raise_if_any(std::move(problems),
               "options of " + std::string(plug_of(field)) + " " + strategy.name);
  return options;
}

/// Throws CheckpointError (invalid argument) if one without options is given any.
void refuse_options(const StrategySpec& strategy, const char* field = kSaveBackendOptions);

/// Throws (unsupported) if page_aligned or files_per_rank is set, for strategies that decide
/// themselves which files they write. `why`: "zarr has a file for every chunk".
void refuse_file_options(const WriteOptions& io, std::string_view why);

}  // namespace dckpt
