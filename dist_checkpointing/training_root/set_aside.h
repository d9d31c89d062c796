#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "strategies/storage/storage.h"

namespace dckpt {

/// The name that something in a training root has while it is set aside:
/// `.iter_0002000.quarantined-1`, `.latest_checkpointed_iteration.txt.quarantined-2`. Saves leave
/// such names alone.
struct AsideName {
  std::string original;
  std::uint64_t number = 0;
};
std::string to_string(const AsideName& name);
/// Inverts to_string(); empty for anything else.
std::optional<AsideName> parse_set_aside(std::string_view name);
/// Returns the first name that is free, behind those that are taken, for what has the name
/// `original` in this directory. Throws CheckpointError (io).
AsideName next_aside(const Storage& directory, const std::string& original);

}  // namespace dckpt
