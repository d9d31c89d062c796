#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "tools/dckpt/grammar/parser.h"

namespace dckpt::tool {

struct Values {
  Takes kind = Takes::kAnything;
  std::vector<std::string> choices{};  ///< if kind is kChoice
};

/// Returns a check that accepts everything and carries `kind`: option->check(takes(Takes::kKey)).
CLI::Validator takes(Takes kind);
/// Returns a check that accepts only these choices.
CLI::Validator one_of(std::vector<std::string> choices);
/// Returns a check that accepts numbers from 0 on.
CLI::Validator not_negative();

/// Returns "a, b or c", with "or" as the `last` word between them.
std::string alternatives(const std::vector<std::string>& words, const std::string& last);

/// Returns what the option was declared to take. (CLI11 returns validators of mutable options
/// only.)
Values values_of(CLI::Option& option);

}  // namespace dckpt::tool
