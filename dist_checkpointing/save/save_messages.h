#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist_checkpointing/save/key_paths.h"
#include "dist_checkpointing/save/rank_save_report.h"
#include "dist_checkpointing/save/write_checkpoint.h"
#include "mapping/base/bytes.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

// Messages between the ranks of a save, beside plans (mapping/planning/save). Decoding throws
// CheckpointError (corrupt).

/// The message from rank 0 to a rank: where to write, the id of the save (StorageMeta::save_id),
/// the planner's answer, and the items of the rank's local plan whose hashes rank 0 compares with
/// those of other ranks.
struct RankAssignment {
  std::string directory;
  std::string save_id;
  Bytes answer;
  std::vector<std::uint32_t> compared{};
};
Bytes encode(const RankAssignment& assignment);
/// `planned` is the number of items of the local plan.
RankAssignment decode_assignment(ByteView bytes, std::size_t planned);

/// The message from a rank to rank 0: its files, one place per item, the files' digests if there is
/// a manifest, and, under DCP's rules, the paths of the items' keys.
struct WrittenByRank {
  WrittenItems items;
  ManifestDigests digests;
  KeyPaths paths;
  RankSaveReport report;
};
Bytes encode(const WrittenByRank& written);
WrittenByRank decode_written(ByteView bytes);

}  // namespace dckpt
