#include "dist_checkpointing/planner/load_planner.h"

#include <utility>

#include "dist_checkpointing/planner/no_setup.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"

namespace dckpt {

void throw_no_setup() {
  throw_error(ErrorCode::kInvalidArgument,
              "setup() is called before set_up_planner(), or after create_local_plan() "
              "has returned; keep in members what later steps need of it");
}

const LoadSetup& DefaultLoadPlanner::setup() const {
  if (!setup_) throw_no_setup();
  return *setup_;
}

LoadPlan create_default_local_load_plan(const LoadSetup& setup) {
  LoadPlan plan;
  plan.reserve(setup.wanted.size());
  for (const ShardedTensor& tensor : setup.wanted)
    plan.push_back({plan.size(), tensor.without_data(), tensor.dtype});
  return plan;
}

std::vector<LoadPlan> create_default_global_load_plan(std::vector<LoadPlan> plans) {
  return plans;
}

std::vector<ReadItem> create_read_items_for_chunk_list(const Metadata& metadata,
                                                       std::uint32_t tensor,
                                                       std::span<const Box> chunks) {
  std::vector<WantedShard> wanted;
  for (const Box& chunk : chunks)
    wanted.push_back(
        {.tensor = tensor, .destination = static_cast<std::uint32_t>(wanted.size()), .box = chunk});
  return plan_reads(metadata, wanted);
}

std::vector<TensorStorageMetadata> LoadPlanner::contents(const LoadSetup& setup) const {
  return setup.metadata.tensors;
}

Tensor LoadPlanner::commit_tensors(std::span<const LoadItem> items,
                                   std::vector<Tensor> read) const {
  if (items.size() != 1)
    throw_error(
        ErrorCode::kUnsupported, {.key = items.front().tensor.key},
        "{} fill one part of a tensor together, which commit_tensors() has to make of them; "
        "override it",
        counted(items.size(), "resolved item"));
  return commit_tensor(items.front(), std::move(read.front()));
}

LoadPlan DefaultLoadPlanner::create_local_plan() {
  return create_default_local_load_plan(setup());
}

}  // namespace dckpt
