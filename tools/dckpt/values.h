#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "tools/dckpt/parser.h"

namespace dckpt::tool {

struct Values {
  Takes kind = Takes::kAnything;
  std::vector<std::string> choices{};  ///< of kChoice
};

/// Checks that accept everything and carry `kind`: option->check(takes(Takes::kKey)).
CLI::Validator takes(Takes kind);
/// Accepts these choices only.
CLI::Validator one_of(std::vector<std::string> choices);
/// Accepts numbers from 0 on.
CLI::Validator not_negative();

/// "a, b or c", with "or" as the `last` word between them.
std::string alternatives(const std::vector<std::string>& words, const std::string& last);

/// What the option was declared with. (CLI11 hands out validators of mutable options only.)
Values values_of(CLI::Option& option);

}  // namespace dckpt::tool
