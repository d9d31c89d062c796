// Planning, linked with nothing but its allowed dependencies: mapping/base and mapping/geometry.
// Two ranks that hold half a matrix each, and one of them a replica of a vector, plan a save; then
// a column is requested.

#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/save/plan_agreement.h"
#include "mapping/planning/validate.h"

namespace {

using namespace dckpt;

SavePlan plan_of(std::int64_t rank) {
  TensorShard rows;
  rows.key = "matrix";
  rows.global_shape = {4, 6};
  rows.box = {{2 * rank, 0}, {2, 6}};
  TensorShard vector;
  vector.key = "vector";
  vector.global_shape = {6};
  vector.box = whole(Shape{6});
  vector.main_replica = rank == 0;
  return plan_local_save(std::vector<LocalShard>{rows, vector}, FlattenedForm::kBoxes);
}

}  // namespace

int main() {
  std::vector<SavePlanCache> caches(2);
  const std::vector<PlanAgreement> ranks{PlanAgreement(caches[0], {}),
                                         PlanAgreement(caches[1], {})};
  const std::vector<LocalPlan> plans{ranks[0].create_local_plan(plan_of(0)),
                                     ranks[1].create_local_plan(plan_of(1))};
  const DecidedPlan decision =
      ranks[0].create_global_plan(std::vector{plans[0].proposal, plans[1].proposal});
  if (ranks[0].finish_plan(plans[0], decision.answers[0]).items.size() != 2 ||
      ranks[1].finish_plan(plans[1], decision.answers[1]).items.size() != 1)
    return 1;
  const Metadata& metadata = decision.plan().metadata;
  if (!validate_coverage(metadata.tensors[0]).empty()) return 2;
  const WantedShard column{.tensor = 0, .destination = 0, .box = {{0, 5}, {4, 1}}};
  return plan_reads(metadata, {&column, 1}).size() == 2 ? 0 : 3;
}
