#pragma once

#include <string>
#include <vector>

#include "dist_checkpointing/save/key_paths.h"
#include "dist_checkpointing/save/rank_save_report.h"
#include "dist_checkpointing/save/write_checkpoint.h"
#include "mapping/base/bytes.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

// What the ranks of a save send each other, beside plans (mapping/planning/save).
// Decoding throws CheckpointError (corrupt).

/// From rank 0 to a rank: where to write, for which save (StorageMeta::save_id), and the planner's
/// answer.
struct RankAssignment {
  std::string directory;
  std::string save_id;
  Bytes answer;
};
Bytes encode(const RankAssignment& assignment);
RankAssignment decode_assignment(ByteView bytes);

/// From a rank to rank 0: its files, a place per item, for a manifest the files' digests and, under
/// DCP's rules, the paths of the keys of these items.
struct WrittenByRank {
  WrittenItems items;
  ManifestDigests digests;
  KeyPaths paths;
  RankSaveReport report;
};
Bytes encode(const WrittenByRank& written);
WrittenByRank decode_written(ByteView bytes);

}  // namespace dckpt
