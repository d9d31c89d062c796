#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/error.h"
#include "mapping/base/finding.h"
#include "mapping/base/progress.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

struct StoredCheck {
  /// Also reads every byte and compares the checksums of chunks, objects and the common state, and
  /// the digests of integrity.json.
  bool deep = false;
  int threads = 2;
  Progress progress{};  ///< progress of the deep part
};

/// The counts of checked items, and all problems found.
struct VerifyReport {
  /// Problems in the order of the checks: files, coverage, chunks, objects, common state, manifest.
  /// Each names its key, file and offset if it has one.
  std::vector<CheckpointError> problems;
  Findings findings{};   ///< oddities that may be intended
  std::string format{};  ///< CheckpointInfo::format
  bool deep = false;
  std::size_t files = 0;
  std::size_t tensors = 0;
  std::size_t chunks = 0;
  std::size_t objects = 0;
  std::uint64_t bytes = 0;  ///< stored bytes of chunks and objects
  /// Deep only: items for which no checksum is recorded.
  std::size_t chunks_without_checksum = 0;
  std::size_t objects_without_checksum = 0;
  std::size_t manifest_files = 0;  ///< files listed in integrity.json; deep: compared with it

  bool ok() const noexcept { return problems.empty(); }
};

/// Checks an open checkpoint and collects all problems instead of stopping at the first. Always
/// checked: every data file exists, every chunk lies inside its file and its tensor and matches the
/// metadata, the chunks cover each tensor exactly, planner_data names only stored keys, objects and
/// common state can be decoded, the manifest can be read, its files exist with the sizes that it
/// records, and it lists every file that is read. Throws only for reasons outside the checkpoint:
/// out of memory, and (unsupported) if `deep` needs SHA-256, which this build lacks.
[[nodiscard]] VerifyReport check_stored(const CheckpointReader& reader,
                                        const StoredCheck& options = {});

/// Does the same with the ranks of a job, which have opened the same checkpoint: they divide what
/// is stored by bytes, and all get the same report. Collective; an error on one rank is thrown on
/// all.
[[nodiscard]] VerifyReport check_stored(const CheckpointReader& reader, const StoredCheck& options,
                                        Communicator& comm);

}  // namespace dckpt
