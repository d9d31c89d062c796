#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "configs/policy/options.h"

namespace dckpt {

/// Returns the iterations to delete after `saved` has been published, in ascending order.
/// `iterations` are those of the root, ascending, including `saved`; `is_sound` (find_unsound() of
/// soundness.h) is only called for the newest ones, from `saved` down.
///
/// Kept are: the `keep_last` newest sound ones, starting with `saved`; multiples of `keep_every`;
/// those that `keep` names; `in_use`; and everything newer than the oldest of the `keep_last`,
/// sound or not. Iterations newer than `saved` belong to a history that the run has abandoned (it
/// went back to an older iteration) or to another writer: they are neither deleted nor counted.
/// Nothing is deleted before there are `keep_last` sound ones.
std::vector<std::uint64_t> iterations_to_delete(std::span<const std::uint64_t> iterations,
                                                std::uint64_t saved, const Retention& retention,
                                                std::span<const std::uint64_t> in_use,
                                                const std::function<bool(std::uint64_t)>& is_sound);

}  // namespace dckpt
