#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// A hidden directory in a training root that belongs to one of its iterations or to its `release`,
/// or the mark of a job in one of its checkpoints.
struct UnfinishedWork {
  enum class State : std::uint8_t {
    kRunning,    ///< its process is running on this host
    kEnded,      ///< its process has ended: remove_leftovers() would remove it
    kElsewhere,  ///< it belongs to another host, container or boot, whose processes are not visible
  };
  std::string name;             ///< in the root
  std::uint64_t iteration = 0;  ///< 0 for `release`
  /// "saving", "replaced", "deleting" or "interrupted" (a conversion); of a mark "claim" (a save in
  /// place) or "lock" (a removal of keys)
  std::string purpose;
  State state = State::kElsewhere;
  std::int64_t modified = 0;  ///< as FileInfo::modified
};

inline constexpr EnumNames<UnfinishedWork::State, 3> kWorkStateNames{
    {{UnfinishedWork::State::kRunning, "running"},
     {UnfinishedWork::State::kEnded, "ended"},
     {UnfinishedWork::State::kElsewhere, "elsewhere"}}};

/// Returns the hidden directories in the order of the iterations. Removes nothing.
[[nodiscard]] std::vector<UnfinishedWork> list_unfinished_work(const Location& root);

/// Returns the marks that jobs have set in the checkpoint `directory` of a training root. One that
/// names no owner counts as that of another host.
[[nodiscard]] std::vector<UnfinishedWork> list_marks(const Location& root,
                                                     const std::string& directory);

/// Returns what this host knows about the process that made a token (staging_token.h).
UnfinishedWork::State state_of_owner(std::string_view token);

}  // namespace dckpt
