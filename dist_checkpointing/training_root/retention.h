#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "configs/options.h"

namespace dckpt {

/// Which iterations go when `saved` has just been published, in ascending order. `iterations` are
/// those of the root, ascending, `saved` among them; `is_complete` is asked about the newest ones
/// only, from the newest down.
///
/// Stay: the `keep_last` newest complete ones, `saved` being the first; multiples of `keep_every`;
/// `in_use`; and everything newer than the oldest of the `keep_last`, complete or not. What is
/// newer than `saved` belongs to a history that the run has left (it went back to an older
/// iteration), or to another writer: it neither goes nor counts. Nothing goes before there are
/// `keep_last` complete ones.
std::vector<std::uint64_t> iterations_to_delete(
    std::span<const std::uint64_t> iterations, std::uint64_t saved, const Retention& retention,
    std::span<const std::uint64_t> in_use, const std::function<bool(std::uint64_t)>& is_complete);

}  // namespace dckpt
