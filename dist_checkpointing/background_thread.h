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

/// The communicator of such a thread: of the same ranks. Collective.
inline std::unique_ptr<Communicator> split_off(Communicator& comm, const std::string& what) {
  const PhaseLabel label(what);
  return comm.split(0);
}

/// Tells that `thread`, which process `maker` has started, cannot be joined: a fork has none of its
/// parent's threads, and no thread can join itself. The last thread of a process that ends runs
/// the destructors of globals.
inline bool is_beyond_reach(const std::jthread& thread, ::pid_t maker) noexcept {
  return maker != ::getpid() || thread.get_id() == std::this_thread::get_id();
}

/// Keeps what such a thread refers to until the process ends; reachable, so that no leak is
/// reported.
template <typename... Parts>
void keep_for_good(Parts&&... parts) {
  static auto* const kept = new std::vector<std::tuple<std::remove_cvref_t<Parts>...>>;
  kept->emplace_back(std::forward<Parts>(parts)...);
}

}  // namespace dckpt
