#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/convert_target.h"
#include "dist_checkpointing/rewrite/copy_contents.h"
#include "dist_checkpointing/rewrite/model_folder.h"
#include "mapping/base/finding.h"
#include "mapping/planning/save/global_plan.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// What will be written, and in which format.
struct PlannedCopy {
  CopyContents contents;
  ConvertTarget target;
  ModelFolder folder;
  std::unique_ptr<const SaveStrategy> strategy;
  std::vector<SavePlan> items;  ///< of each rank
  GlobalPlan plan;
};

/// Cut for so many ranks, or as the contents are cut. Throws CheckpointError (unsupported) for what
/// the target would have to leave out.
PlannedCopy plan_copy(CopyContents contents, ConvertTarget target, ModelFolder folder,
                      std::optional<int> ranks);

/// Copies records that are no plain tensors byte by byte, where both formats store such records and
/// nothing is cut anew. Returns whether there are any.
bool keep_records(PlannedCopy& copy, const CheckpointReader& reader);

/// Of all ranks.
std::uint64_t bytes_of(const std::vector<SavePlan>& ranks);

/// `written`: by each rank.
Metadata metadata_of(const GlobalPlan& plan, std::vector<WrittenItems> written);

/// Adds to `report` what is known of the copy before it is written. `source`: what it is made of.
Findings describe(const PlannedCopy& copy, const Metadata& source, ConvertReport& report);

/// How many files there will be, and how large. A format that cannot tell has the bytes of what is
/// stored, at least.
void measure(const PlannedCopy& copy, ConvertReport& report);

}  // namespace dckpt
