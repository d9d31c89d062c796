#pragma once

#include <set>
#include <string>

#include "configs/options.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// What the ranks ask for against what is stored, in Megatron's words.
struct KeyDifference {
  std::set<std::string> missing;     ///< stored, but asked for by no rank
  std::set<std::string> unexpected;  ///< asked for by this rank, but not stored

  bool empty() const noexcept { return missing.empty() && unexpected.empty(); }
};

bool raises(Strict strict) noexcept;   ///< a difference is an error
bool logs(Strict strict) noexcept;     ///< … a warning
bool returns(Strict strict) noexcept;  ///< … part of the report
bool checks_unexpected(Strict strict) noexcept;
bool checks_missing(Strict strict) noexcept;

/// Compares keys as far as the mode wants it, and raises or logs what it finds. Collective, with the same mode on all ranks: where missing keys are looked for,
/// the ranks exchange what they ask for. Throws CheckpointError (mismatch) on all ranks if the mode raises and one of them found a difference.
KeyDifference check_keys(const std::set<std::string>& asked, const std::set<std::string>& stored, Strict strict, Communicator& comm);

}  // namespace dckpt
