#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/state/value.h"

namespace dckpt {

/// The conversions that an argument matters for.
enum class ArgumentScope : std::uint8_t {
  kMegatron,  ///< conversions from Megatron's names to others
  kHalves,    ///< the same, and those that divide or join gate and up; rows with `gated` only
  kHf,        ///< an argument of config.json, for both directions
};

/// An argument that neither keys nor shapes show.
struct WeightArgument {
  /// Names in args and in run_config.yaml; flags of one meaning.
  std::vector<std::string_view> names;
  std::vector<std::string_view> usual;  ///< values that maps take for granted
  std::string_view rows;                ///< Megatron's keys that it matters for
  ArgumentScope scope;
  std::string_view meaning;
  std::string_view none{};  ///< the value that none stands for; empty: it says nothing
};

/// Returns the arguments that change the meaning of weights without changing keys and shapes.
const std::vector<WeightArgument>& weight_arguments();

/// Returns a value as text without differences of spelling: "1" for 1.0 and "true" for True. Equal
/// elements of a list count as one. Empty for none and for nested values.
std::string argument_text(const Value& value);

/// Returns the first of `names` that `config` has a value for, or the one that is true, with its
/// value; null if there is none.
std::pair<std::string, const Value*> find_any(const Value& config,
                                              const std::vector<std::string_view>& names);

/// Returns the value of an argument in Megatron's args or run_config.yaml, and the name that it has
/// there, which may differ; null if it is missing or none.
std::pair<std::string, const Value*> find_argument(const Value& config, const std::string& name);

}  // namespace dckpt
