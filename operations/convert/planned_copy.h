#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/finding.h"
#include "mapping/planning/save/global_plan.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/copy_contents.h"
#include "operations/convert/model/model_folder.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// The contents to write, and their format.
struct PlannedCopy {
  CopyContents contents;
  ChosenTarget target;
  ModelFolder folder;
  std::unique_ptr<const SaveStrategy> strategy;
  std::vector<SavePlan> items;  ///< one per rank
  GlobalPlan plan;              ///< its own items are left out
};

/// Throws CheckpointError (invalid argument) for optimizer state that the target would give a form
/// from which no release resumes: Megatron 0.8 to 0.15 resume from flattened state beside a
/// common.pt, and from nothing else.
void require_resumable_optimizer(const CopyContents& contents, const ChosenTarget& target);

/// Cut for so many ranks, or as the contents are cut. Throws CheckpointError (unsupported) for what
/// the target would have to leave out.
PlannedCopy plan_copy(CopyContents contents, ChosenTarget target, ModelFolder folder,
                      std::optional<int> ranks);

/// Copies records that are not plain tensors byte by byte, if both formats store such records and
/// nothing is resharded. Returns whether there are any.
bool keep_records(PlannedCopy& copy, const CheckpointReader& reader);

/// Returns the sum over all ranks.
std::uint64_t bytes_of(const std::vector<SavePlan>& ranks);

/// `written` has one entry per rank.
Metadata metadata_of(const GlobalPlan& plan, std::vector<WrittenItems> written);

/// Adds to `report` the facts known before the copy is written. `source` is the metadata that it is
/// made of.
Findings describe(const PlannedCopy& copy, const Metadata& source, ConvertReport& report);

/// Reports the number and sizes of the result's files. For a format that cannot tell, the size is
/// at least the bytes of the stored items.
void measure(const PlannedCopy& copy, ConvertReport& report);

}  // namespace dckpt
