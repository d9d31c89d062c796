#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// A hidden directory in a training root that belongs to one of its iterations.
struct UnfinishedWork {
  enum class State : std::uint8_t {
    kRunning,    ///< its process is running on this host
    kEnded,      ///< its process has ended: remove_leftovers() would remove it
    kElsewhere,  ///< it belongs to another host, whose processes are not visible here
  };
  std::string name;
  std::uint64_t iteration = 0;
  std::string purpose;  ///< "saving", "replaced", "deleting" or "interrupted" (a conversion)
  State state = State::kElsewhere;
  std::int64_t modified = 0;  ///< as FileInfo::modified
};

/// Returns the hidden directories in the order of the iterations. Removes nothing.
[[nodiscard]] std::vector<UnfinishedWork> list_unfinished_work(const Location& root);

}  // namespace dckpt
