#pragma once

#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/load/misfit.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "dist_checkpointing/open/key_groups.h"
#include "mapping/base/fields.h"
#include "mapping/base/finding.h"
#include "mapping/planning/metadata.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

// Each warning of rank 0 is also added to its `findings`.

/// Differences between requested and stored keys, in Megatron's words.
struct KeyDifference {
  KeySet missing;     ///< stored, but requested by no rank; never the common state
  KeySet unexpected;  ///< requested by this rank, but not stored
};

bool raises(StrictHandling strict) noexcept;   ///< a difference is an error
bool logs(StrictHandling strict) noexcept;     ///< a difference is a warning
bool returns(StrictHandling strict) noexcept;  ///< a difference is part of the report
bool checks_unexpected(StrictHandling strict) noexcept;
bool checks_missing(StrictHandling strict) noexcept;

/// The keys that a rank requests.
struct Asked {
  std::vector<std::string> keys{};  ///< in any order
  /// Requests that differ from the stored form; their keys need not be among `keys`.
  std::vector<Misfit> misfits{};
};
constexpr auto fields(const Asked*) {
  return std::tuple(Field(&Asked::keys), Field(&Asked::misfits));
}

/// Warns if `asks` is false on every rank although the checkpoint has tensors: a state without
/// descriptions is a valid request, but rarely intended. `consequence` begins the warning and says
/// what is loaded then. Collective.
void warn_if_nothing_is_asked(const Metadata& stored, Communicator& comm, bool asks,
                              const std::string& consequence, Findings& findings);

/// Returns the keys of all ranks. Collective; if no rank has any, only one number is exchanged.
KeySet united(const KeySet& mine, Communicator& comm);

/// Compares keys as far as the mode requires. A mode that raises throws CheckpointError (mismatch),
/// the same on all ranks; a mode that logs warns on rank 0. Both report the differences of all
/// ranks, and an error also reports the misfits. Collective, with the same `stored` and mode on all
/// ranks.
KeyDifference check_keys(const Asked& asked, const KeySet& stored, StrictHandling strict,
                         Communicator& comm, Findings& findings);

/// Requested keys that are not stored and that load.missing decides about.
struct DecidedKeys {
  KeySet kept;
  std::vector<std::string> refused;
};

/// Warns on rank 0 of rules that match no key requested by any rank, and names similar keys,
/// because such rules are likely misspelled. Collective if there are rules, with the same ones on
/// all ranks.
void warn_of_idle_rules(std::span<const MissingRule> rules,
                        const std::vector<std::string>& requested, Communicator& comm,
                        Findings& findings);

/// Removes the decided keys from `asked`, since no strict mode decides about them. Rank 0 warns of
/// those keys of all ranks whose rules ask for a warning. Collective if there are rules, with the
/// same ones on all ranks.
DecidedKeys take_decided(std::vector<std::string>& asked, const KeySet& stored,
                         std::span<const MissingRule> rules, Communicator& comm,
                         Findings& findings);

/// Throws one CheckpointError (mismatch) for everything, the same on all ranks, if a rank requests
/// keys that are not stored or are stored in another form. Missing keys are listed below
/// `headline`, which is given without its colon; those that one of `rules` refuses are listed
/// apart. Collective, with the same `stored` and rules on all ranks.
void require_stored(const Asked& asked, const StoredKeys& stored,
                    std::span<const MissingRule> rules, const std::string& headline,
                    Communicator& comm);

}  // namespace dckpt
