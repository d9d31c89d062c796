// A model and its distributed optimizer, described by ParallelLayout, are saved under one layout
// and loaded under another.

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/state/fused_shards.h"
#include "mapping/state/optimizer_bucket.h"
#include "mapping/state/sharded_tree.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::parallel_layouts_test {
namespace {

constexpr std::int64_t kHidden = 8, kGroups = 4, kFeedForward = 12, kLayers = 4, kExperts = 4,
                       kTokens = 37;

Tensor zeros(const Shape& shape) {
  return Tensor::zeros(DType::kInt64, shape);
}

/// Returns a bucket with this rank's part of the optimizer state.
Value optimizer(const ParallelRank& rank, const Value& params, OptimizerBucket bucket) {
  bucket.param_alignment = 16;
  const FlattenedRange owned = owned_elements(rank, params, bucket);
  const Shape elements{owned.end - owned.begin};
  return distributed_optimizer_state(
      rank, params, {{"exp_avg", zeros(elements)}, {"exp_avg_sq", zeros(elements)}}, bucket);
}

/// Returns a rank's part of a transformer with experts.
StateDict model_of(const ParallelRank& rank) {
  const std::int64_t tp = rank.layout.tp, etp = rank.layout.etp,
                     experts = kExperts / rank.layout.ep;
  Value dense = Value::dict(), expert = Value::dict();
  if (rank.pp == 0) {
    dense["embedding"] = vocabulary_parallel(
        rank, "embedding", zeros({padded_vocabulary(rank, kTokens, 2) / tp, kHidden}));
  }
  const LayerRange layers = pipeline_layers(rank, kLayers);
  for (std::int64_t n = layers.first; n < layers.first + layers.count; ++n) {
    const ParallelTensorOptions layer{.layer = {{n, kLayers}}};
    Value& here = dense[n];
    here["norm"] = replicated(rank, "norm", zeros({kHidden}), layer);
    here["qkv"] = column_parallel(rank, "qkv", zeros({kGroups * 6 / tp, kHidden}), layer);
    here["qkv_apart"] = fused_column_parallel(rank, "qkv_apart", zeros({16 / tp, kHidden}),
                                              {8 / tp, 4 / tp, 4 / tp}, layer);
    here["proj"] = row_parallel(rank, "proj", zeros({kHidden, kGroups * 4 / tp}), layer);
    here["fc1"] =
        gated_column_parallel(rank, "fc1", zeros({2 * kFeedForward / tp, kHidden}), layer);
    here["own_key"] =
        column_parallel(rank, "layers." + std::to_string(n) + ".own_key", zeros({kGroups / tp}));

    ParallelTensorOptions stacked = layer;
    stacked.experts = {{.count = kExperts}};
    expert[n]["fc1"] = gated_column_parallel(
        rank, "experts.fc1", zeros({experts, 2 * kFeedForward / etp, kHidden}), stacked);
    expert[n]["fc2"] =
        row_parallel(rank, "experts.fc2", zeros({experts, kHidden, kFeedForward / etp}), stacked);
    for (std::int64_t e = rank.ep * experts; e < (rank.ep + 1) * experts; ++e) {
      ParallelTensorOptions one = layer;
      one.experts = {{.count = kExperts, .number = e}};
      Value& of_expert = expert[n][e];
      of_expert["axis"] =
          gated_column_parallel(rank, "one.fc1", zeros({2 * kFeedForward / etp, kHidden}), one);
      of_expert["bias"] = replicated(rank, "one.bias", zeros({kHidden}), one);
      one.experts->in_key = true;
      of_expert["key"] = row_parallel(rank, "expert." + std::to_string(e) + ".fc2",
                                      zeros({kHidden, kFeedForward / etp}), one);
    }
  }
  StateDict state;
  state["optimizer"]["dense"] = optimizer(rank, dense, {.end_alignment = 128});
  state["optimizer"]["experts"] = optimizer(rank, expert, {.experts = true});
  state["model"]["dense"] = std::move(dense);
  state["model"]["experts"] = std::move(expert);
  return state;
}

/// Calls `visit` with each element that a rank holds and the value that it should have.
void visit_elements(const StateDict& state,
                    const std::function<void(std::int64_t& element, std::int64_t value)>& visit) {
  visit_leaves(apply_factories(state), [&](const Value& leaf) {
    ShardedTensor shard = leaf.as_sharded_tensor();  // shares the elements
    const Box box = shard.global_box();
    const Shape strides = row_major_strides(shard.global_shape),
                local = row_major_strides(box.sizes);
    const FlattenedRange range =
        shard.flattened_range.value_or(FlattenedRange{0, numel(box.sizes)});
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      std::int64_t global = 0, at = shard.flattened_range ? i - range.begin : 0;
      for (std::size_t axis = 0; axis < box.sizes.size(); ++axis) {
        const std::int64_t position = i / local[axis] % box.sizes[axis];
        global += (box.offsets[axis] + position) * strides[axis];
        if (const auto prepended = static_cast<std::size_t>(shard.prepend_axis_num);
            !shard.flattened_range && axis >= prepended)
          at += position * shard.data->strides()[axis - prepended];
      }
      if (shard.key.ends_with("embedding") && global >= kTokens * kHidden) continue;  // padding
      visit(shard.data->data<std::int64_t>()[at],
            static_cast<std::int64_t>(std::hash<std::string>()(shard.key) % 100'000) * 100'000 +
                global + 1);
    }
  });
}

using ParallelLayouts = SaveLoad;

TEST_F(ParallelLayouts, AnyLayoutIsLoadedUnderAnyOther) {
  const std::vector<ParallelLayout> layouts{
      {.tp = 2, .pp = 2, .dp = 2},
      {.tp = 4, .ep = 4, .dp = 2, .etp = 1},
      {.pp = 2, .ep = 2, .dp = 2, .cp = 2},
      {.tp = 2, .pp = 4, .order = "tp-pp-dp"},
      {.tp = 2, .ep = 2, .dp = 1, .cp = 4, .order = "cp-tp-dp-ep-pp", .etp = 4},
  };
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const std::filesystem::path folder = checkpoint(std::to_string(i));
    run_ranks(8, [&](Communicator& comm) {
      const StateDict state = model_of(parallel_rank(layouts[i], comm.rank(), comm.size()));
      visit_elements(state, [](std::int64_t& element, std::int64_t value) { element = value; });
      save(state, folder, {}, comm);
    });
    for (const ParallelLayout& other : layouts) {
      run_ranks(8, [&](Communicator& comm) {
        const ParallelRank rank = parallel_rank(other, comm.rank(), comm.size());
        StateDict state = model_of(rank);
        load(state, folder, {.validate_access_integrity = true}, comm);
        std::int64_t wrong = 0, elements = 0;
        visit_elements(state, [&](const std::int64_t& element, std::int64_t value) {
          wrong += element == value ? 0 : 1;
          ++elements;
        });
        EXPECT_EQ(wrong, 0) << "of " << elements << " on rank " << rank.rank << ", layout " << i;
        EXPECT_GT(elements, 1000);
      });
    }
  }
}

}  // namespace
}  // namespace dckpt::parallel_layouts_test
