#pragma once

#include <optional>
#include <span>
#include <string>

#include "dist_checkpointing/rewrite/conversion_journal.h"
#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/convert_target.h"
#include "dist_checkpointing/rewrite/model_folder.h"
#include "mapping/planning/save/local_plan.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// What an interrupted conversion has left.
struct Interrupted {
  std::string directory;  ///< hidden, beside the target
  JournalContent journal;
};

/// What two conversions must have in common so that one goes on with the other. `ranks`: what each
/// writes.
ConversionFacts conversion_facts(const Location& source, const ConvertOptions& options,
                                 const ConvertTarget& target, const ModelFolder& folder,
                                 std::span<const SavePlan> ranks);

/// What a conversion with these facts has left beside `target`; of several, the one that had
/// finished the most. Throws CheckpointError (mismatch) that says what differs if there are only
/// others.
std::optional<Interrupted> find_interrupted(const Location& target, const ConversionFacts& facts);

}  // namespace dckpt
