#pragma once

#include "configs/options.h"
#include "configs/schema.h"

namespace dckpt {

/// A strategy's own options (save.backend.options in a policy) as a struct. Fields that are not
/// mentioned keep their defaults. Throws CheckpointError (invalid argument) with all mistakes, with
/// line and column of the policy.
///
///   const Schema<RawOptions> schema{{config::field("block", &RawOptions::block, config::size(512, 1 << 30))}};
///   const auto options = read_options(schema, save_options.strategy);
template <typename Options>
Options read_options(const config::Schema<Options>& schema, const StrategyName& strategy) {
  Options options;
  ConfigProblems problems;
  config::section(schema).read(strategy.options, "save.backend.options", options, problems);
  raise_if_any(std::move(problems), "options of strategy " + strategy.name);
  return options;
}

/// For a strategy without options. Throws CheckpointError (invalid argument) if there are any.
void refuse_options(const StrategyName& strategy);

}  // namespace dckpt
