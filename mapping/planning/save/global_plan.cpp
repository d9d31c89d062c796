#include "mapping/planning/save/global_plan.h"

#include <algorithm>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/planning/save/assemble.h"
#include "mapping/planning/save/balance.h"
#include "mapping/planning/save/dedup.h"

namespace dckpt {
namespace {

constexpr std::size_t kShownProblems = 20;

void require_none(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string message = "Invalid access pattern: the ranks' shards do not make a checkpoint:";
  for (std::size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i)
    message += "\n  " + problems[i];
  if (problems.size() > kShownProblems)
    message += str_format("\n  … and {} more", grouped(problems.size() - kShownProblems));
  throw_error(ErrorCode::kMismatch, message);
}

}  // namespace

GlobalPlan GlobalPlanner::finish() && {
  const CollectedItems collected = std::move(collector_).finish();
  const std::vector<DedupedKey> deduped = deduplicate(collected.keys, options_.any_holder());
  const ChosenItems chosen = choose_writers(collected, deduped, options_);
  AssembledPlan assembled = assemble(collected, chosen, options_.any_holder());
  std::vector<std::string> problems = collected.problems;
  problems.insert(problems.end(), chosen.problems.begin(), chosen.problems.end());
  if (options_.validate) {
    const auto holes = check_coverage(collected, assembled, options_.any_holder());
    problems.insert(problems.end(), holes.begin(), holes.end());
  }
  require_none(problems);
  return std::move(assembled.plan);
}

GlobalPlan plan_global_save(std::span<const SavePlan> plans, const GlobalPlanOptions& options) {
  GlobalPlanner planner(options);
  for (const SavePlan& plan : plans) planner.add(plan);
  return std::move(planner).finish();
}

Metadata written_metadata(const GlobalPlan& plan, std::span<const std::vector<StorageInfo>> places,
                          std::span<const std::vector<std::string>> files) {
  Metadata metadata = plan.metadata;
  metadata.files.clear();
  for (std::size_t rank = 0; rank < plan.items.size(); ++rank) {
    const auto first_file = static_cast<std::uint32_t>(metadata.files.size());
    metadata.files.insert(metadata.files.end(), files[rank].begin(), files[rank].end());
    if (places[rank].size() != plan.slots[rank].size()) {
      throw_error(ErrorCode::kIncomplete, {.rank = static_cast<int>(rank)},
                  "wrote {}, but its plan has {}", counted(places[rank].size(), "item"),
                  plan.slots[rank].size());
    }
    for (std::size_t i = 0; i < places[rank].size(); ++i) {
      const GlobalPlan::Slot& slot = plan.slots[rank][i];
      StorageInfo& place = slot.is_object ? metadata.objects[slot.entry].place
                                          : metadata.tensors[slot.entry].places[slot.chunk];
      place = places[rank][i];
      place.file += first_file;
    }
  }
  return metadata;
}

}  // namespace dckpt
