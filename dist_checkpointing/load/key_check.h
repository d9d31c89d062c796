#pragma once

#include <string>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/load/key_groups.h"
#include "dist_checkpointing/load/misfit.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// What the ranks ask for against what is stored, in Megatron's words.
struct KeyDifference {
  KeySet missing;     ///< stored, but asked for by no rank; never the common state
  KeySet unexpected;  ///< asked for by this rank, but not stored
};

bool raises(StrictHandling strict) noexcept;   ///< a difference is an error
bool logs(StrictHandling strict) noexcept;     ///< … a warning
bool returns(StrictHandling strict) noexcept;  ///< … part of the report
bool checks_unexpected(StrictHandling strict) noexcept;
bool checks_missing(StrictHandling strict) noexcept;

/// What a rank asks for.
struct Asked {
  KeySet keys{};
  /// Of what is stored, but otherwise; their keys need not be among `keys`.
  std::vector<Misfit> misfits{};
};

/// The keys of all ranks. Collective; nothing is exchanged but one number if no rank has any.
KeySet united(const KeySet& mine, Communicator& comm);

/// Compares keys as far as the mode wants it. A mode that raises throws CheckpointError (mismatch),
/// the same on all ranks, one that logs warns on rank 0; both tell what was found on all ranks, one
/// that raises together with the misfits. Collective, with the same `stored` and mode on all ranks.
KeyDifference check_keys(const Asked& asked, const KeySet& stored, StrictHandling strict,
                         Communicator& comm);

/// Throws CheckpointError (mismatch), the same on all ranks, if one of them asks for something that
/// is not stored, or stored otherwise: one error for all. What is not stored comes below
/// `headline`, which lacks its colon. Collective, with the same `stored` on all ranks.
void require_stored(const Asked& asked, const StoredKeys& stored, const std::string& headline,
                    Communicator& comm);

}  // namespace dckpt
