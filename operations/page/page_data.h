#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/save/save_report.h"
#include "mapping/base/error.h"
#include "mapping/base/progress.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/inspect.h"
#include "operations/inspect/stats.h"
#include "operations/inspect/verify.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

using NameAndText = std::pair<std::string, std::string>;

/// A checkpoint that the page compares with this one.
struct Comparison {
  std::string with;  ///< the other checkpoint, as the user spells it
  DiffReport report;
  std::vector<std::string> keys{};  ///< tensors of either side
};

/// Parameters in the buckets of an optimizer, in the order of Megatron's gradient buffers.
struct BucketRange {
  std::string bucket;  ///< key of the bucket's parameters
  std::string parameter;
  std::int64_t begin = 0;  ///< first element in the bucket
  std::int64_t count = 0;  ///< elements of the parameter's chunk
};

/// The content of a page. Parts that cannot be read are empty, and `missing` says why.
struct PageData {
  std::string title{};  ///< the checkpoint, as the user spells it
  CheckpointInfo info{};
  VerifyReport verified{};
  std::vector<NameAndText> missing{};    ///< name of a part, and why it is not shown
  std::vector<NameAndText> facts{};      ///< the model, the run that saved it, who can read it
  std::vector<NameAndText> arguments{};  ///< values of the common state, by their paths
  std::vector<FileSummary> files{};
  DataFiles data_files{};
  Metadata metadata{};
  std::vector<BucketRange> bucket_ranges{};
  std::optional<StatsReport> stats{};
  std::optional<Comparison> comparison{};
  std::optional<SaveReport> save{};
};

struct PageOptions {
  std::string title{};
  bool stats = false;  ///< reads every element
  const CheckpointReader* compare = nullptr;
  std::string compare_title{};
  int threads = 2;
  Progress progress{};  ///< of the statistics, then of the comparison
};

/// Gathers what is there. Throws CheckpointError only for reasons outside the checkpoints, and what
/// `progress` throws.
[[nodiscard]] PageData gather_page(const CheckpointReader& reader, const PageOptions& options);

/// Gathers what can be said about a checkpoint that cannot be opened: the error and the files.
[[nodiscard]] PageData gather_unopened(const Location& location, const std::string& title,
                                       const CheckpointError& error);

}  // namespace dckpt
