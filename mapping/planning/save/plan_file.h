#pragma once

#include <memory>

#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/save/plan_cache_content.h"

namespace dckpt {

/// The file in which a checkpoint keeps the plans of its save (KeepPlans::kFile): a fingerprint of
/// each rank's plan, and the decisions made from them. The rest of the global plan is the
/// checkpoint's metadata. docs/formats/dckpt_plans.md has the layout.
inline constexpr const char* kPlanFile = "dckpt_plans.bin";

Bytes encode_plan_file(const SavePlanCache::Global& global);

/// Returns the content without local plans; `metadata` is the checkpoint's. Throws CheckpointError:
/// (unsupported) for another version, (corrupt) for damaged bytes, (mismatch) if the plans were not
/// decided for the contents that `metadata` lists.
std::shared_ptr<const SavePlanCache::Global> decode_plan_file(ByteView bytes,
                                                              const Metadata& metadata);

}  // namespace dckpt
