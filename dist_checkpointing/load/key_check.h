#pragma once

#include <string>

#include "configs/options.h"
#include "dist_checkpointing/load/key_groups.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// What the ranks ask for against what is stored, in Megatron's words.
struct KeyDifference {
  KeySet missing;     ///< stored, but asked for by no rank; never the common state
  KeySet unexpected;  ///< asked for by this rank, but not stored
};

bool raises(Strict strict) noexcept;   ///< a difference is an error
bool logs(Strict strict) noexcept;     ///< … a warning
bool returns(Strict strict) noexcept;  ///< … part of the report
bool checks_unexpected(Strict strict) noexcept;
bool checks_missing(Strict strict) noexcept;

/// Compares keys as far as the mode wants it. A mode that raises throws CheckpointError (mismatch), the same on all ranks, one that logs warns on rank 0; both
/// tell what was found on all ranks. Collective, with the same `stored` and mode on all ranks.
KeyDifference check_keys(const KeySet& asked, const KeySet& stored, Strict strict, Communicator& comm);

/// Throws CheckpointError (mismatch), the same on all ranks, if one of them asks for something that is not stored. The message begins with `headline`, which
/// lacks its colon. Collective, with the same `stored` on all ranks.
void require_stored(const KeySet& asked, const StoredKeys& stored, const std::string& headline, Communicator& comm);

}  // namespace dckpt
