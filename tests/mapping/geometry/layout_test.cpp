#include "mapping/geometry/layout.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/support/random.h"

namespace dckpt::layout_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

using Indices = std::vector<std::int64_t>;

/// The model to compare with: explicit lists of indices, cut as by torch.chunk.
Indices chunk_of(const Indices& all, std::size_t count, std::size_t number) {
  const std::size_t step = (all.size() + count - 1) / count;
  const std::size_t begin = std::min(step * number, all.size());
  return {all.begin() + static_cast<std::ptrdiff_t>(begin),
          all.begin() + static_cast<std::ptrdiff_t>(std::min(begin + step, all.size()))};
}

Indices kept_by(const Indices& all, const StridedShard& shard, std::size_t count,
                std::size_t number) {
  Indices kept;
  for (std::int64_t outer = 0; outer < shard.split_factor; ++outer) {
    const Indices part = chunk_of(chunk_of(all, static_cast<std::size_t>(shard.split_factor),
                                           static_cast<std::size_t>(outer)),
                                  count, number);
    kept.insert(kept.end(), part.begin(), part.end());
  }
  return kept;
}

/// Returns the global indices that a rank holds, per tensor dim.
std::vector<Indices> model(const MeshLayout& layout, const Shape& shape, const Shape& coordinate) {
  std::vector<Indices> axes;
  for (const std::int64_t extent : shape) {
    axes.emplace_back(static_cast<std::size_t>(extent));
    std::iota(axes.back().begin(), axes.back().end(), 0);
  }
  std::vector<std::size_t> order = layout.order;
  for (std::size_t mesh_dim = order.size(); mesh_dim < coordinate.size(); ++mesh_dim)
    order.push_back(mesh_dim);
  for (const std::size_t mesh_dim : order) {
    const auto count = static_cast<std::size_t>(layout.mesh.shape()[mesh_dim]);
    const auto number = static_cast<std::size_t>(coordinate[mesh_dim]);
    const auto keep = [&](StridedShard shard) {
      Indices& axis = axes[static_cast<std::size_t>(
          shard.dim < 0 ? shard.dim + static_cast<std::int64_t>(shape.size()) : shard.dim)];
      axis = kept_by(axis, shard, count, number);
    };
    if (const auto* shard = std::get_if<Shard>(&layout.placements[mesh_dim])) keep({shard->dim, 1});
    if (const auto* shard = std::get_if<StridedShard>(&layout.placements[mesh_dim])) keep(*shard);
  }
  return axes;
}

/// Calls visit(index) for each element of a box, counted from its offsets.
template <typename Visit>
void for_each_index(const Shape& sizes, Visit&& visit) {
  for (std::int64_t number = 0; number < numel(sizes); ++number) {
    Shape index(sizes.size());
    std::int64_t rest = number;
    for (std::size_t axis = sizes.size(); axis-- > 0; rest /= sizes[axis])
      index[axis] = rest % sizes[axis];
    visit(index);
  }
}

Shape sum(const Shape& a, const Shape& b) {
  Shape out = a;
  for (std::size_t axis = 0; axis < out.size(); ++axis) out[axis] += b[axis];
  return out;
}

/// Expects that the pieces put each local element where the model has it, and hold each once.
void expect_as_modelled(const LocalPart& part, const std::vector<Indices>& axes) {
  ASSERT_EQ(part.shape.size(), axes.size());
  for (std::size_t axis = 0; axis < axes.size(); ++axis)
    ASSERT_EQ(part.shape[axis], static_cast<std::int64_t>(axes[axis].size()));
  std::map<Indices, int> seen;
  for (const LocalPiece& piece : part.pieces) {
    for_each_index(piece.box.sizes, [&](const Shape& index) {
      const Shape local = sum(piece.local_offsets, index);
      const Shape global = sum(piece.box.offsets, index);
      ++seen[Indices(local.begin(), local.end())];
      for (std::size_t axis = 0; axis < axes.size(); ++axis)
        ASSERT_EQ(global[axis], axes[axis][static_cast<std::size_t>(local[axis])]);
    });
  }
  ASSERT_EQ(static_cast<std::int64_t>(seen.size()), numel(part.shape));
  for (const auto& [index, times] : seen) ASSERT_EQ(times, 1);
}

struct Case {
  MeshLayout layout;
  Shape shape;
  std::vector<int> ranks;
};

Case random_case(testing::Random& random) {
  Shape shape;
  for (auto dims = random.between(1, 3); dims > 0; --dims)
    shape.push_back(random.between(random.chance(5) ? 0 : 1, 11));
  Shape mesh;
  for (auto dims = random.between(1, 4); dims > 0; --dims) mesh.push_back(random.between(1, 4));
  std::vector<Placement> placements;
  const auto tensor_dims = static_cast<std::int64_t>(shape.size());
  for (std::size_t mesh_dim = 0; mesh_dim < mesh.size(); ++mesh_dim) {
    const std::int64_t dim = random.between(-tensor_dims, tensor_dims - 1);
    const std::int64_t kind = random.between(0, 2);
    placements.push_back(kind == 0   ? Placement(Replicate{})
                         : kind == 1 ? Placement(Shard{dim})
                                     : Placement(StridedShard{dim, random.between(1, 5)}));
  }
  std::vector<int> ranks(static_cast<std::size_t>(numel(mesh)));
  std::iota(ranks.begin(), ranks.end(), 3);
  std::shuffle(ranks.begin(), ranks.end(), random.engine());
  std::vector<std::size_t> order;
  if (random.chance(50)) {
    order.resize(mesh.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random.engine());
  }
  return {{DeviceMesh(mesh, ranks), std::move(placements), std::move(order)},
          std::move(shape),
          std::move(ranks)};
}

TEST(Layout, RanksHoldWhatExplicitListsOfIndicesSay) {
  testing::Random random;
  for (int round = 0; round < 1000; ++round) {
    const Case c = random_case(random);
    SCOPED_TRACE(random.trace(round) + ": " + to_string(ShapeView(c.shape)) + " as " +
                 to_string(c.layout));
    for (const int rank : c.ranks) {
      const auto part = local_part(c.layout, c.shape, rank);
      ASSERT_TRUE(part);
      expect_as_modelled(*part, model(c.layout, c.shape, *c.layout.mesh.coordinate_of(rank)));
    }
    if (HasFatalFailure()) return;
  }
}

TEST(Layout, EachElementHasAllItsReplicasAndOneIsMain) {
  testing::Random random;
  for (int round = 0; round < 1000; ++round) {
    const Case c = random_case(random);
    SCOPED_TRACE(random.trace(round) + ": " + to_string(ShapeView(c.shape)) + " as " +
                 to_string(c.layout));
    std::int64_t replicas = 1;
    for (std::size_t mesh_dim = 0; mesh_dim < c.layout.mesh.dims(); ++mesh_dim) {
      if (std::holds_alternative<Replicate>(c.layout.placements[mesh_dim]))
        replicas *= c.layout.mesh.shape()[mesh_dim];
    }
    std::map<Indices, std::vector<std::int64_t>> holders;
    for (const int rank : c.ranks) {
      const LocalPart part = *local_part(c.layout, c.shape, rank);
      for (const LocalPiece& piece : part.pieces) {
        for_each_index(piece.box.sizes, [&](const Shape& index) {
          const Shape at = sum(piece.box.offsets, index);
          holders[Indices(at.begin(), at.end())].push_back(part.replica);
        });
      }
    }
    ASSERT_EQ(static_cast<std::int64_t>(holders.size()), numel(c.shape));
    Indices all(static_cast<std::size_t>(replicas));
    std::iota(all.begin(), all.end(), 0);
    for (auto& [at, ids] : holders) {
      std::sort(ids.begin(), ids.end());
      ASSERT_EQ(ids, all);
    }
  }
}

/// Returns the boxes of the ranks 0, 1, … of a mesh.
std::vector<std::string> boxes(const MeshLayout& layout, const Shape& shape) {
  std::vector<std::string> out;
  for (int rank = 0; rank < layout.mesh.size(); ++rank) {
    std::string text;
    const auto part = local_part(layout, shape, rank);
    for (const LocalPiece& piece : part->pieces) text += to_string(piece.box);
    out.push_back(text);
  }
  return out;
}

TEST(Layout, Fsdp2CutsUnevenlyAndLeavesLastRanksEmpty) {
  EXPECT_THAT(boxes({DeviceMesh({4}), {Shard{0}}}, {9, 10}),
              ElementsAre("[0:3, 0:10]", "[3:6, 0:10]", "[6:9, 0:10]", "[9:9, 0:10]"));
}

TEST(Layout, HsdpReplicatesTheShards) {
  const MeshLayout layout{DeviceMesh({2, 2}), {Replicate{}, Shard{0}}};
  EXPECT_THAT(boxes(layout, {3}), ElementsAre("[0:2]", "[2:3]", "[0:2]", "[2:3]"));
  EXPECT_EQ(local_part(layout, Shape{3}, 1)->replica, 0);
  EXPECT_EQ(local_part(layout, Shape{3}, 3)->replica, 1);
}

TEST(Layout, Fsdp2OverTensorParallelismCutsByTheInnerDimensionFirst) {
  const std::vector<std::string> expected{"[0:4]", "[7:11]", "[4:7]", "[11:14]"};
  EXPECT_EQ(boxes({DeviceMesh({2, 2}), {StridedShard{0, 2}, Shard{0}}}, {14}), expected);
  EXPECT_EQ(boxes({DeviceMesh({2, 2}), {Shard{0}, Shard{0}}, {1, 0}}, {14}), expected);
  EXPECT_THAT(boxes({DeviceMesh({2, 2}), {Shard{0}, Shard{0}}}, {14}),
              ElementsAre("[0:4]", "[4:7]", "[7:11]", "[11:14]"));
}

TEST(Layout, AStridedShardAloneLeavesPiecesApart) {
  const auto part = local_part({DeviceMesh({2}), {StridedShard{0, 2}}}, Shape{9, 2}, 0);
  EXPECT_EQ(part->shape, (Shape{5, 2}));
  EXPECT_THAT(part->pieces, ElementsAre(LocalPiece{{{0, 0}, {3, 2}}, {0, 0}},
                                        LocalPiece{{{5, 0}, {2, 2}}, {3, 0}}));
}

TEST(Layout, ADimensionOfOneRankCutsNothing) {
  EXPECT_THAT(boxes({DeviceMesh({1, 2}), {StridedShard{0, 3}, Shard{-1}}}, {7, 4}),
              ElementsAre("[0:7, 0:2]", "[0:7, 2:4]"));
}

TEST(Layout, ATensorWithoutElementsHasOneMainRank) {
  const MeshLayout layout{DeviceMesh({2, 2}), {Shard{0}, Replicate{}}};
  EXPECT_THAT(boxes(layout, {0, 4}),
              ElementsAre("[0:0, 0:4]", "[0:0, 0:4]", "[0:0, 0:4]", "[0:0, 0:4]"));
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(local_part(layout, Shape{0, 4}, rank)->replica, rank);
}

TEST(Layout, AScalarIsReplicated) {
  const auto part = local_part({DeviceMesh({2, 2}), {Replicate{}, Replicate{}}}, Shape{}, 2);
  EXPECT_THAT(part->pieces, ElementsAre(LocalPiece{}));
  EXPECT_EQ(part->replica, 2);
}

TEST(Layout, RanksOutsideTheMeshHoldNothing) {
  const MeshLayout layout{DeviceMesh({2}, {5, 1}), {Shard{0}}};
  EXPECT_EQ(local_part(layout, Shape{4}, 5)->pieces[0].box.offsets[0], 0);
  EXPECT_EQ(local_part(layout, Shape{4}, 1)->pieces[0].box.offsets[0], 2);
  for (const int rank : {-1, 0, 2, 6}) EXPECT_FALSE(local_part(layout, Shape{4}, rank));
  EXPECT_FALSE(local_part({DeviceMesh({2}), {Shard{0}}}, Shape{4}, 2));
}

TEST(Layout, HugeExtentsDoNotOverflow) {
  constexpr std::int64_t kHuge = INT64_MAX;
  const DeviceMesh mesh({1 << 20});
  const LocalPart last = *local_part({mesh, {Shard{0}}}, Shape{kHuge}, (1 << 20) - 1);
  EXPECT_EQ(last.pieces[0].box.offsets[0] + last.pieces[0].box.sizes[0], kHuge);
  const LocalPart strided = *local_part({mesh, {StridedShard{0, 4}}}, Shape{kHuge}, (1 << 20) - 1);
  EXPECT_EQ(strided.pieces.back().box.offsets[0] + strided.pieces.back().box.sizes[0], kHuge);
}

TEST(Layout, APartialTensorIsToBeReducedFirst) {
  const auto error = error_of([] {
    (void)local_part({DeviceMesh({2, 2}), {Shard{0}, Partial{}}}, Shape{4}, 0);
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(),
              HasSubstr("partial along mesh dimension 1 of its layout [S(0), P] on a (2, 2) mesh"));
  EXPECT_THAT(error.message(), HasSubstr("Reduce it first"));
}

TEST(Layout, WhatDoesNotFitIsRefusedOnEveryRank) {
  const auto message = [](std::vector<Placement> placements, Shape shape = {4, 4},
                          std::vector<std::size_t> order = {}) {
    const MeshLayout layout{DeviceMesh({2, 2}), std::move(placements), std::move(order)};
    return error_of([&] { (void)local_part(layout, shape, 77); }).message();
  };
  EXPECT_THAT(message({Shard{0}}), HasSubstr("one placement per mesh dimension"));
  EXPECT_THAT(message({Shard{0}, Shard{2}}), HasSubstr("has no dim 2"));
  EXPECT_THAT(message({Shard{-3}, Shard{0}}), HasSubstr("has no dim -3"));
  EXPECT_THAT(message({Shard{0}, Replicate{}}, {}), HasSubstr("has no dim 0"));
  EXPECT_THAT(message({StridedShard{0, 0}, Shard{0}}), HasSubstr("split factor of at least 1"));
  EXPECT_THAT(message({Shard{0}, Shard{0}}, {4, -1}), HasSubstr("negative"));
  EXPECT_THAT(message({Shard{0}, Shard{0}}, {4, 4}, {0, 0}),
              HasSubstr("each of the 2 mesh dimensions once"));
  EXPECT_THAT(message({Shard{0}, Shard{0}}, {4, 4}, {1}),
              HasSubstr("each of the 2 mesh dimensions once"));
}

TEST(Layout, PiecesAreLimited) {
  constexpr auto kMost = static_cast<std::int64_t>(kMaxPieces);
  const auto pieces = [](std::vector<Placement> placements, const Shape& shape) {
    return local_part({DeviceMesh(Shape(placements.size(), 2)), placements}, shape, 0)
        ->pieces.size();
  };
  EXPECT_EQ(pieces({StridedShard{0, kMost}}, {2 * kMost}), kMaxPieces);
  EXPECT_THAT(error_of([&] {
                pieces({StridedShard{0, kMost + 1}}, {2 * kMost + 2});
              }).message(),
              HasSubstr("split factor 65537"));
  EXPECT_EQ(pieces({StridedShard{0, 256}, StridedShard{1, 256}}, {512, 512}), kMaxPieces);
  EXPECT_THAT(error_of([&] {
                pieces({StridedShard{0, 256}, StridedShard{1, 257}}, {512, 514});
              }).message(),
              HasSubstr("more than 65536 pieces"));
}

TEST(DeviceMesh, KnowsWhereRanksStand) {
  const DeviceMesh mesh({2, 3}, {10, 11, 12, 20, 21, 22});
  EXPECT_EQ(mesh.coordinate_of(21), (Shape{1, 1}));
  EXPECT_EQ(mesh.coordinate_of(0), std::nullopt);
  EXPECT_EQ(DeviceMesh({2, 3}).coordinate_of(5), (Shape{1, 2}));
  EXPECT_EQ(DeviceMesh({}).coordinate_of(0), Shape{});
}

TEST(DeviceMesh, RefusesWhatIsNoMesh) {
  const auto message = [](Shape shape, std::vector<int> ranks = {}) {
    return error_of([&] { DeviceMesh(std::move(shape), std::move(ranks)); }).message();
  };
  EXPECT_THAT(message({2, 0}), HasSubstr("extents of at least 1"));
  EXPECT_THAT(message({kMaxMeshRanks + 1}), HasSubstr("at most 16777216 ranks"));
  EXPECT_THAT(message(Shape(kMaxDims + 1, 1)), HasSubstr("at most 64 dimensions"));
  EXPECT_THAT(message({2, 2}, {0, 1, 2}), HasSubstr("needs 4 ranks, got 3"));
  EXPECT_THAT(message({2}, {3, 3}), HasSubstr("rank 3 appears twice on a device mesh"));
  EXPECT_THAT(message({2}, {-1, 3}), HasSubstr("cannot hold rank -1"));
  EXPECT_EQ(DeviceMesh({kMaxMeshRanks}).size(), kMaxMeshRanks);
  EXPECT_EQ(DeviceMesh(Shape(kMaxDims, 1)).size(), 1);
}

}  // namespace
}  // namespace dckpt::layout_test
