#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategies/comm/communicator.h"
#include "strategies/comm/phase_label.h"

namespace dckpt {

/// Returns a communicator of the same ranks for such a thread. Collective.
inline std::unique_ptr<Communicator> split_off(Communicator& comm, const std::string& what) {
  const PhaseLabel label(what);
  return comm.split(0);
}

/// Returns whether `thread`, started by process `maker`, cannot be joined: a fork has none of its
/// parent's threads, and no thread can join itself. The last thread of an ending process runs the
/// destructors of globals.
inline bool is_beyond_reach(const std::jthread& thread, ::pid_t maker) noexcept {
  return maker != ::getpid() || thread.get_id() == std::this_thread::get_id();
}

/// Keeps everything such a thread refers to until the process ends. It stays reachable, so no leak
/// is reported.
template <typename... Parts>
void keep_for_good(Parts&&... parts) {
  static auto* const kept = new std::vector<std::tuple<std::remove_cvref_t<Parts>...>>;
  kept->emplace_back(std::forward<Parts>(parts)...);
}

}  // namespace dckpt
