#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/planning/save_plan.h"

namespace dckpt {

/// Which readers must accept a checkpoint that is written.
enum class Compat : std::uint8_t {
  kMegatron,     ///< all Megatron-Core versions with torch_dist, and PyTorch DCP: common.pt, metadata.json of four fields
  kMegatron019,  ///< the newer form: common state as an object, metadata.json of two fields
  kDcp,          ///< a plain PyTorch DCP directory: no metadata.json
};

std::string_view to_string(Compat compat) noexcept;                 ///< "megatron", "megatron-0.19", "dcp"
std::optional<Compat> parse_compat(std::string_view name) noexcept;

struct WriteOptions {
  int threads = 2;              ///< per process that writes
  int files_per_rank = 1;
  bool fsync = true;            ///< make files durable before the checkpoint is published
  bool checksums = true;        ///< CRC-32 of every payload in its zip record; without, records say "not computed"
  bool page_aligned = false;    ///< payloads start at multiples of 4096 bytes (a little larger, faster to map and to read directly)
};

/// Fully parallel save and load: the ranks that hold the same shard share the work.
struct ParallelOptions {
  bool enabled = false;
};

struct SaveOptions {
  Compat compat = Compat::kMegatron;
  FlattenedForm flattened = FlattenedForm::kBoxes;
  PlannerOptions planner{};     ///< of the kinds, Compat::kDcp takes `default` and `standard` (and takes `mcore` as `default`), the others `mcore`
  ParallelOptions parallel{};
  bool overwrite = false;       ///< replace an existing checkpoint of that name (atomically); else that is an error
  bool integrity = false;       ///< write integrity.json with a SHA-256 per file
  WriteOptions io{};
};

/// Megatron's StrictHandling. "Unexpected": asked for, but not in the checkpoint. "Missing": in the checkpoint, but asked for by no rank.
enum class Strict : std::uint8_t {
  kAssumeOkUnexpected,  ///< unexpected keys are an error of the strategy; missing ones are ignored
  kLogUnexpected,
  kLogAll,
  kRaiseUnexpected,
  kRaiseAll,
  kReturnUnexpected,
  kReturnAll,
  kIgnoreAll,
};

std::string_view to_string(Strict strict) noexcept;                 ///< "assume_ok_unexpected", …
std::optional<Strict> parse_strict(std::string_view name) noexcept;

struct LoadOptions {
  Strict strict = Strict::kAssumeOkUnexpected;
  /// Globs of keys whose global shape may differ from the stored one: the common part from the origin is read, the rest is zero.
  std::vector<std::string> allow_shape_mismatch{};
  int threads = 2;
  std::uint64_t staging = std::uint64_t{64} << 20;  ///< temporary memory while reading, in bytes
};

}  // namespace dckpt
