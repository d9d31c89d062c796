#pragma once

#include <regex>
#include <string>

namespace dckpt::testing {

/// Whether the error of a rank that lives names the one that is gone.
inline bool names_rank(const std::string& error, int rank) {
  return std::regex_search(error, std::regex("ranks? ([0-9]+, )*" + std::to_string(rank) + "\\b"));
}

/// Whether it says what was being done, rather than begin with an operation of a communicator.
inline bool names_phase(const std::string& error) {
  static const std::regex kNoPhase(
      "^(barrier|gather|all_gather|scatter|broadcast|all_to_all|all_reduce|split|rank|waited|lost)"
      "\\b");
  return !std::regex_search(error, kNoPhase);
}

}  // namespace dckpt::testing
