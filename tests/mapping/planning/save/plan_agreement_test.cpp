#include "mapping/planning/save/plan_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "mapping/base/error.h"

namespace dckpt::plan_agreement_test {
namespace {

using ::testing::HasSubstr;

/// Ranks that plan together; message sizes show what was sent.
class Job {
 public:
  explicit Job(std::size_t ranks, PlannerOptions options = {})
      : caches_(ranks), options_(options) {}

  /// Returns plans in which rank r holds row r of every tensor named, each of `width` elements.
  std::vector<SavePlan> plan(const std::vector<std::string>& keys, std::int64_t width) {
    std::vector<SavePlan> plans;
    const auto ranks = static_cast<std::int64_t>(caches_.size());
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<LocalShard> shards;
      for (const std::string& key : keys) {
        TensorShard shard;
        shard.key = key;
        shard.global_shape = {ranks, width};
        shard.box = {{rank, 0}, {1, width}};
        shards.emplace_back(std::move(shard));
      }
      plans.push_back(plan_local_save(shards, FlattenedForm::kBoxes));
    }
    return plans;
  }

  void save(const std::vector<SavePlan>& plans) {
    std::vector<PlanAgreement> planners;
    for (SavePlanCache& cache : caches_) planners.emplace_back(cache, options_);
    std::vector<LocalPlan> locals;
    std::vector<Bytes> proposals;
    for (std::size_t rank = 0; rank < planners.size(); ++rank) {
      locals.push_back(planners[rank].create_local_plan(plans[rank]));
      proposals.push_back(locals[rank].proposal);
    }
    decision = planners[0].create_global_plan(proposals);
    proposal_sizes = sizes(proposals);
    why_planned = locals[0].why_planned.empty() ? decision.why_planned : locals[0].why_planned;
    finals.clear();
    for (std::size_t rank = 0; rank < planners.size(); ++rank) {
      FinalPlan final = planners[rank].finish_plan(locals[rank], decision.answers[rank]);
      finals.push_back(final.items);
      caches_[rank].commit(planners[rank].to_remember(std::move(final.local),
                                                      rank == 0 ? decision.global : nullptr));
    }
    answer_sizes = sizes(decision.answers);
  }

  SavePlanCache& cache(std::size_t rank) { return caches_[rank]; }

  std::vector<SavePlan> finals;
  DecidedPlan decision;
  std::string why_planned;  ///< rank 0's reason
  std::vector<std::size_t> proposal_sizes;
  std::vector<std::size_t> answer_sizes;

 private:
  static std::vector<std::size_t> sizes(const std::vector<Bytes>& messages) {
    std::vector<std::size_t> result;
    for (const Bytes& message : messages) result.push_back(message.size());
    return result;
  }

  std::vector<SavePlanCache> caches_;
  PlannerOptions options_;
};

TEST(PlanAgreement, SendsOnlyAFingerprintWhenNothingHasChanged) {
  Job job(3);
  const auto plans = job.plan({"a", "b"}, 8);
  job.save(plans);
  const auto first = job.finals;
  EXPECT_FALSE(job.decision.cache_hit);
  for (int again = 0; again < 2; ++again) {
    job.save(plans);
    EXPECT_TRUE(job.decision.cache_hit);
    EXPECT_EQ(job.finals, first);
    EXPECT_EQ(job.proposal_sizes, (std::vector<std::size_t>{18, 18, 18}));
    EXPECT_EQ(job.answer_sizes, (std::vector<std::size_t>{1, 1, 1}));
    EXPECT_EQ(job.decision.plan().metadata.tensors.size(), 2U);
  }
}

TEST(PlanAgreement, ThreeSavesOfOneStructureGiveTheMetadataOfOne) {
  const auto metadata_after = [](int saves) {
    Job job(3);
    for (int i = 0; i < saves; ++i) job.save(job.plan({"a", "b"}, 8));
    return job.decision.plan().metadata;
  };
  const Metadata once = metadata_after(1);
  const Metadata thrice = metadata_after(3);
  ASSERT_EQ(thrice.tensors.size(), once.tensors.size());
  for (std::size_t i = 0; i < once.tensors.size(); ++i) {
    EXPECT_EQ(thrice.tensors[i].key, once.tensors[i].key);
    EXPECT_EQ(thrice.tensors[i].size, once.tensors[i].size);
    EXPECT_EQ(thrice.tensors[i].chunks, once.tensors[i].chunks);
    EXPECT_EQ(thrice.tensors[i].places.size(), once.tensors[i].places.size());
  }
}

TEST(PlanAgreement, NeverTakesAChangedPlanForTheSame) {
  Job job(2);
  const auto plans = job.plan({"a"}, 8);
  const std::vector<std::function<void(WriteItem&)>> changes{
      [](WriteItem& item) { item.key = "b"; },
      [](WriteItem& item) { item.properties.dtype = DType::kInt32; },
      [](WriteItem& item) { item.properties.requires_grad = true; },
      [](WriteItem& item) {
        item.size = {2, 9}, item.chunk.sizes = {1, 9};
      },
      [](WriteItem& item) { item.flattened = true; },
      [](WriteItem& item) { item.source = 5; },
      [](WriteItem& item) { item.source_begin = 4; },
  };
  for (const auto& change : changes) {
    job.save(plans);
    auto changed = plans;
    for (SavePlan& plan : changed) change(plan[0]);
    job.save(changed);
    EXPECT_FALSE(job.decision.cache_hit);
    for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(job.finals[rank], changed[rank]);
  }
}

TEST(PlanAgreement, SendsTheFinalPlansThatDiffer) {
  Job job(3);
  auto plans = job.plan({"a"}, 8);
  job.save(plans);
  TensorShard extra;
  extra.key = "extra";
  extra.global_shape = {4};
  extra.box = whole(Shape{4});
  const LocalShard added(extra);
  plans[1].push_back(plan_local_save({&added, 1}, FlattenedForm::kBoxes).front());
  job.save(plans);
  EXPECT_EQ(job.answer_sizes[0], 1U);
  EXPECT_GT(job.answer_sizes[1], 1U);
  EXPECT_EQ(job.answer_sizes[2], 1U);
  EXPECT_EQ(job.finals, plans);
  EXPECT_EQ(job.decision.plan().metadata.tensors.size(), 2U);
}

TEST(PlanAgreement, SizesOfObjectsMayChange) {
  Job job(1);
  const auto plan_of = [](std::uint64_t bytes) {
    const LocalShard object(ObjectShard{"rng", bytes, true, 0});
    return std::vector<SavePlan>{plan_local_save({&object, 1}, FlattenedForm::kBoxes)};
  };
  job.save(plan_of(10));
  job.save(plan_of(11));
  EXPECT_TRUE(job.decision.cache_hit);
  EXPECT_EQ(job.finals[0][0].nbytes, 11U);
}

TEST(PlanAgreement, RemembersNothingOfASaveThatFailed) {
  Job job(2);
  const auto plans = job.plan({"a"}, 8);
  job.save(plans);
  auto bad = plans;
  bad[1][0].size = {2, 7};
  bad[1][0].chunk.sizes = {1, 7};
  EXPECT_THROW(job.save(bad), CheckpointError);
  job.save(plans);
  EXPECT_EQ(job.finals, plans);
  EXPECT_FALSE(job.decision.cache_hit);
  EXPECT_EQ(job.why_planned, "the save before failed");
  job.save(plans);
  EXPECT_TRUE(job.decision.cache_hit);
}

TEST(PlanAgreement, OtherOptionsDecideAgain) {
  SavePlanCache cache;
  const LocalShard object(ObjectShard{"rng", 10, true, 0});
  std::string why_planned;
  bool cache_hit = false;
  const auto save_by = [&](const PlannerOptions& options) {
    PlanAgreement planner(cache, options);
    const auto local = planner.create_local_plan(plan_local_save({&object, 1}, {}));
    const auto decision = planner.create_global_plan({&local.proposal, 1});
    cache.commit(planner.to_remember(planner.finish_plan(local, decision.answers[0]).local,
                                     decision.global));
    why_planned = decision.why_planned;
    cache_hit = decision.cache_hit;
    return decision.global;
  };
  const auto first = save_by({});
  EXPECT_EQ(save_by({}), first) << "handed on, not copied";
  EXPECT_TRUE(cache_hit);
  EXPECT_NE(save_by({.validate = false}), first);
  EXPECT_FALSE(cache_hit);
  EXPECT_EQ(why_planned, "other planner options");
}

TEST(PlanAgreement, FewerRanksAreNotTakenForTheSameJob) {
  Job four(4), two(2);
  four.save(four.plan({"a"}, 8));
  for (std::size_t rank = 0; rank < 2; ++rank) two.cache(rank) = four.cache(rank).fork();
  EXPECT_THROW(two.save(four.plan({"a"}, 8)), CheckpointError);
  two.save(two.plan({"a"}, 8));
  EXPECT_FALSE(two.decision.cache_hit);
}

TEST(PlanAgreement, RefusesAFingerprintOfAPlanThatTheCoordinatorDoesNotRemember) {
  Job job(2);
  const auto plans = job.plan({"a"}, 8);
  job.save(plans);
  job.cache(0) = {};
  EXPECT_THROW(job.save(plans), CheckpointError);
}

TEST(PlanAgreement, NamesTheRankWithOtherOptions) {
  std::vector<SavePlanCache> caches(2);
  const PlanAgreement coordinator(caches[0], {});
  const PlanAgreement other(caches[1], {.dedup = Dedup::kLowestRank});
  try {
    coordinator.create_global_plan(std::vector{coordinator.create_local_plan({}).proposal,
                                               other.create_local_plan({}).proposal});
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.context().rank, 1);
    EXPECT_THAT(error.message(), HasSubstr("dedup lowest_rank"));
  }
}

TEST(PlanAgreement, WithoutACachePlansEveryTime) {
  Job job(2, {.cache = false});
  const auto plans = job.plan({"a"}, 8);
  job.save(plans);
  job.save(plans);
  EXPECT_FALSE(job.decision.cache_hit);
  EXPECT_EQ(job.finals, plans);
}

static_assert(!std::is_copy_constructible_v<SavePlanCache>);
static_assert(std::is_nothrow_move_constructible_v<SavePlanCache>);

TEST(SavePlanCache, IsMovedWithItsPlansAndLeavesANewOne) {
  SavePlanCache cache;
  cache.commit({.local = SavePlanCache::Local{.plan = to_bytes("plan")}});
  SavePlanCache moved = std::move(cache);
  EXPECT_FALSE(moved.empty());
  EXPECT_TRUE(cache.empty());  // NOLINT(bugprone-use-after-move): documented
  EXPECT_EQ(cache.why_empty(), "first save");
  const SavePlanCache fork = moved.fork();
  moved.clear("another checkpoint");
  EXPECT_EQ(moved.why_empty(), "another checkpoint");
  EXPECT_FALSE(fork.empty());
}

TEST(PlanAgreement, NeverCrashesOnADamagedMessage) {
  Job job(2);
  const auto plans = job.plan({"a", "b"}, 8);
  SavePlanCache empty;
  const PlanAgreement planner(empty, {});
  const LocalPlan local = planner.create_local_plan(plans[1]);
  const std::vector<Bytes> proposals{planner.create_local_plan(plans[0]).proposal, local.proposal};
  const Bytes answer = planner.create_global_plan(proposals).answers[1];
  const auto each_damage = [](const Bytes& good, auto&& use) {
    for (std::size_t at = 0; at < good.size(); ++at) {
      for (const int value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
        Bytes bytes = good;
        bytes[at] = static_cast<std::byte>(value);
        try {
          use(bytes);
        } catch (const CheckpointError&) {
        }
      }
      EXPECT_NO_FATAL_FAILURE({
        try {
          use(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(at)));
        } catch (const CheckpointError&) {
        }
      });
    }
  };
  each_damage(proposals[1], [&](const Bytes& bytes) {
    planner.create_global_plan(std::vector{proposals[0], bytes});
  });
  each_damage(answer, [&](const Bytes& bytes) { planner.finish_plan(local, bytes); });
}

}  // namespace
}  // namespace dckpt::plan_agreement_test
