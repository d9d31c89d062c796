// Tensors on device meshes are saved under one layout and loaded under another.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/geometry/tensor_map.h"
#include "mapping/state/layout_shards.h"
#include "strategies/comm/threads.h"
#include "tests/support/temp_dir.h"

namespace dckpt::layouts_test {
namespace {

const Shape kShape{9, 10};

/// Returns a global tensor whose element i has the value i.
Tensor global_tensor() {
  Tensor tensor = Tensor::empty(DType::kInt64, kShape);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) std::memcpy(tensor.data() + 8 * i, &i, 8);
  return tensor;
}

/// A rank's local tensor, described by the shards that view it.
struct Local {
  Tensor tensor;
  std::vector<ShardedTensor> shards;

  Local(const MeshLayout& layout, int rank) {
    if (const auto part = local_part(layout, kShape, rank))
      tensor = Tensor::zeros(DType::kInt64, part->shape);
    shards = sharded_tensors_from_layout("w", tensor, kShape, layout, rank);
  }

  StateDict state() const {
    StateDict state = Value::dict({});
    for (std::size_t piece = 0; piece < shards.size(); ++piece)
      state["w"][std::to_string(piece)] = shards[piece];
    return state;
  }

  void fill() const {
    for (const ShardedTensor& shard : shards) {
      const Tensor source = expected(shard);
      strided_copy(shard.local_shape, 8, source.data(), {0, source.strides()},
                   shard.data->mutable_data(), {0, shard.data->strides()});
    }
  }
  bool is_filled() const {
    return std::all_of(shards.begin(), shards.end(), [](const ShardedTensor& shard) {
      return equal(*shard.data, expected(shard));
    });
  }

 private:
  static Tensor expected(const ShardedTensor& shard) {
    Tensor part = global_tensor();
    for (std::size_t axis = 0; axis < kShape.size(); ++axis)
      part = part.narrow(axis, shard.global_offset[axis], shard.local_shape[axis]);
    return part;
  }
};

TEST(Layouts, AnyLayoutIsLoadedUnderAnyOther) {
  const std::vector<MeshLayout> layouts{
      {DeviceMesh({4}), {Shard{0}}},                         // FSDP2: uneven, the last rank empty
      {DeviceMesh({2, 2}), {Replicate{}, Shard{0}}},         // HSDP
      {DeviceMesh({2, 2}), {StridedShard{0, 2}, Shard{0}}},  // FSDP2 over tensor parallelism
      {DeviceMesh({2, 2}),
       {StridedShard{1, 3}, StridedShard{0, 2}}},  // several pieces in a local tensor
      {DeviceMesh({2}, {3, 1}), {Shard{1}}},       // ranks 0 and 2 hold nothing
      to_mesh_layout({{2, 2}, {{-1}, {1}}, {0, 2, 1, 3}}, kShape),  // HyperParallel
  };
  for (const MeshLayout& saved : layouts) {
    const TempDir directory;
    const std::filesystem::path checkpoint = directory.path() / "checkpoint";
    run_ranks(4, [&](Communicator& comm) {
      const Local local(saved, comm.rank());
      local.fill();
      save(local.state(), checkpoint, {}, comm);
    });
    for (const MeshLayout& loaded : layouts) {
      run_ranks(4, [&](Communicator& comm) {
        const Local local(loaded, comm.rank());
        StateDict state = local.state();
        load(state, checkpoint, {}, comm);
        EXPECT_TRUE(local.is_filled())
            << to_string(saved) << " loaded as " << to_string(loaded) << " on rank " << comm.rank();
      });
    }
  }
}

TEST(Layouts, ARankOutsideTheMeshAsksForNothing) {
  const MeshLayout layout = to_mesh_layout(
      {{2}, {{-1}, {0}}, {3, 1}}, kShape);  // HyperParallel's rank_list names ranks 3 and 1 of four
  const TempDir directory;
  for (const Compat compat : {Compat::kMegatron, Compat::kDcp}) {
    const std::filesystem::path checkpoint = directory.path() / to_string(compat);
    run_ranks(4, [&](Communicator& comm) {
      const Local saved(layout, comm.rank());
      saved.fill();
      save(saved.state(), checkpoint, {.compat = compat}, comm);
      const Local loaded(layout, comm.rank());
      StateDict state = loaded.state();
      const LoadReport report = load(state, checkpoint, {}, comm);
      const bool outside = comm.rank() % 2 == 0;
      EXPECT_EQ(report.bytes_wanted, outside ? 0U : 9U * 5 * 8);
      EXPECT_EQ(report.bytes_read == 0, outside);
      EXPECT_TRUE(loaded.is_filled());
    });
  }
}

}  // namespace
}  // namespace dckpt::layouts_test
