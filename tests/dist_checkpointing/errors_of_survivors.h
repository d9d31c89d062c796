#pragma once

#include <regex>
#include <string>

namespace dckpt::testing {

/// Returns whether the error of a surviving rank names the rank that is gone.
inline bool names_rank(const std::string& error, int rank) {
  return std::regex_search(error, std::regex("ranks? ([0-9]+, )*" + std::to_string(rank) + "\\b"));
}

/// Returns whether the error says what was being done, rather than begin with a communicator's
/// operation.
inline bool names_phase(const std::string& error) {
  static const std::regex kNoPhase(
      "^(barrier|gather|all_gather|scatter|broadcast|all_to_all|all_reduce|split|rank|waited|lost)"
      "\\b");
  return !std::regex_search(error, kNoPhase);
}

}  // namespace dckpt::testing
