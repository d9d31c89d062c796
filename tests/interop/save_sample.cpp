// save_sample DIRECTORY COMPAT FLATTENED [SEPARATION_HINT [COPIES [split]]]: writes a checkpoint of
// four ranks through the public save, for the peers to read. With COPIES, that many times four
// ranks hold it and share the writing, with `split` also of one large tensor. test_save_api.py
// knows independently what it must hold. Byte j of the row-major global tensor number n is (j + n)
// mod 251.

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "dist_checkpointing/save/save.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/state/tree.h"
#include "strategies/comm/threads.h"

namespace {

using namespace dckpt;

constexpr int kRanks = 4;

Tensor global_tensor(DType dtype, Shape shape, int number) {
  Tensor tensor = Tensor::empty(dtype, std::move(shape));
  const int period = dtype == DType::kBool ? 2 : 251;
  int next = number % period;
  for (std::byte& byte : tensor.bytes()) {
    byte = static_cast<std::byte>(next);
    next = (next + 1) % period;
  }
  return tensor;
}

/// Returns a part of a tensor that shares its memory, so that most parts are strided.
Tensor part(Tensor tensor, const Shape& offset, const Shape& size) {
  for (std::size_t axis = 0; axis < size.size(); ++axis)
    tensor = tensor.narrow(axis, offset[axis], size[axis]);
  return tensor;
}

/// The state of one rank. Tensors are numbered in the order in which they are added, in the same
/// order on all ranks.
class Sample {
 public:
  explicit Sample(int rank) : rank_(rank), tp_(rank % 2), dp_(rank / 2) {}

  StateDict build() {
    add_regular();
    add_stacked();
    add_uneven();
    add_flattened();
    add_types();
    add_objects();
    add_common();
    return std::move(state_);
  }

 private:
  Tensor next(DType dtype, Shape shape) {
    return global_tensor(dtype, std::move(shape), number_++);
  }

  void put(ShardedTensor shard) {
    const std::string key = shard.key;
    state_["tensors"][key] = std::move(shard);
  }

  void add_regular() {
    put(ShardedTensor::from_rank_offsets(
        "rows", part(next(DType::kFloat32, {8, 6}), {rank_ * 2, 0}, {2, 6}),
        {{.axis = 0, .rank = rank_, .count = 4}}));
    put(ShardedTensor::from_rank_offsets(
        "grid", part(next(DType::kInt64, {4, 6}), {tp_ * 2, dp_ * 3}, {2, 3}),
        {{.axis = 0, .rank = tp_, .count = 2}, {.axis = 1, .rank = dp_, .count = 2}}));
    put(ShardedTensor::whole("replicated", next(DType::kFloat32, {5}), {.replica_id = {0, rank_}}));
    put(ShardedTensor::whole("scalar", next(DType::kFloat64, {}), {.replica_id = rank_}));
    put(ShardedTensor::whole("empty", next(DType::kFloat32, {0, 4}), {.replica_id = rank_}));
  }

  void add_stacked() {
    put(ShardedTensor::from_rank_offsets(
        "layers.weight",
        part(next(DType::kBFloat16, {4, 3, 2}), {rank_, 0, 0}, {1, 3, 2}).view({3, 2}),
        {{.axis = 0, .rank = rank_, .count = 4}}, {.prepend_axis_num = 1}));
    put(ShardedTensor::from_rank_offsets(
        "layers.bias", part(next(DType::kFloat32, {2, 3}), {tp_, 0}, {1, 3}).view({3}),
        {{.axis = 0, .rank = tp_, .count = 2}},
        {.replica_id = {0, 0, dp_}, .prepend_axis_num = 1}));
  }

  void add_uneven() {
    constexpr std::int64_t kBegins[] = {0, 1, 5, 5, 10};  // rank 2 has nothing
    const std::int64_t begin = kBegins[rank_], size = kBegins[rank_ + 1] - begin;
    put(ShardedTensor::from_box("uneven", part(next(DType::kInt32, {10}), {begin}, {size}), {10},
                                {begin}));
    constexpr std::int64_t kRows[] = {0, 2, 5, 6, 7};
    const std::int64_t row = kRows[rank_], rows = kRows[rank_ + 1] - row;
    put(ShardedTensor::from_box(
        "uneven_rows", part(next(DType::kFloat16, {7, 5}), {row, 0}, {rows, 5}), {7, 5}, {row, 0}));
  }

  /// Adds a model tensor cut in two by tp, and its optimizer state flattened and cut unevenly by
  /// dp.
  void add_flattened() {
    put(ShardedTensor::from_rank_offsets(
        "decoder.weight", part(next(DType::kBFloat16, {8, 6}), {tp_ * 4, 0}, {4, 6}),
        {{.axis = 0, .rank = tp_, .count = 2}}, {.replica_id = {0, 0, dp_}}));
    const FlattenedRange range = dp_ == 0 ? FlattenedRange{0, 7} : FlattenedRange{7, 24};
    const Tensor local = part(next(DType::kFloat32, {8, 6}), {tp_ * 4, 0}, {4, 6}).view({24});
    put(ShardedTensor::from_rank_offsets_flat("optimizer.state.exp_avg.decoder.weight",
                                              local.narrow(0, range.begin, range.end - range.begin),
                                              {4, 6}, {{.axis = 0, .rank = tp_, .count = 2}},
                                              range));
  }

  void add_types() {
    for (const DType dtype :
         {DType::kBool,         DType::kUInt8,          DType::kUInt16,     DType::kUInt32,
          DType::kUInt64,       DType::kInt8,           DType::kInt16,      DType::kInt32,
          DType::kInt64,        DType::kFloat16,        DType::kBFloat16,   DType::kFloat32,
          DType::kFloat64,      DType::kComplex32,      DType::kComplex64,  DType::kComplex128,
          DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ,
          DType::kFloat8E8M0FNU}) {
      const int owner = number_ % kRanks;
      put(ShardedTensor::whole("types." + std::string(to_string(dtype)), next(dtype, {3, 5}),
                               {.replica_id = (rank_ - owner + kRanks) % kRanks}));
    }
  }

  void add_objects() {
    const Value random = Value::dict({{"rank", rank_},
                                      {"state", Value::tuple({1, 2.5, Value()})},
                                      {"tensor", global_tensor(DType::kUInt8, {3}, rank_)}});
    state_["rng"] = ShardedObject{
        .key = "rng_state", .data = random, .global_shape = {kRanks}, .global_offset = {rank_}};
    state_["cell"] = ShardedObject{.key = "cells",
                                   .data = std::string("cell ") + std::to_string(rank_),
                                   .global_shape = {2, 2},
                                   .global_offset = {dp_, tp_}};
    state_["same"] =
        ShardedObject{.key = "same", .data = Value::list({"on", "all"}), .replica_id = rank_};
  }

  void add_common() {
    state_["iteration"] = 7;
    state_["args"] = Value::dict({{"lr", 1e-5},
                                  {"name", "näme"},
                                  {"none", Value()},
                                  {"flags", Value::tuple({true, false})}});
    state_["param_groups"] =
        Value::list({Value::dict({{"step", 3}}), Value::dict({{2, "int key"}})});
    state_["big"] = std::uint64_t{1} << 63;
    state_["bytes"] = Value::bytes(to_bytes("\x01\x02"));
    state_["common_tensor"] = global_tensor(DType::kInt16, {2, 2}, 0);
  }

  std::int64_t rank_, tp_, dp_;
  int number_ = 0;
  StateDict state_;
};

/// Returns entries that an unflattened plain DCP directory stores as one object each.
StateDict unflattened(int rank) {
  StateDict state;
  state["model"]["w"] = global_tensor(DType::kFloat32, {3, 4}, 0);
  state["model"]["blocks"] = Value::list({global_tensor(DType::kBFloat16, {5}, 1), "text"});
  state["step"] = 7;
  state["plain"] = global_tensor(DType::kInt32, {6}, 2);
  state["rows"] = ShardedTensor::from_rank_offsets(
      "rows", part(global_tensor(DType::kFloat32, {8, 6}, 3), {rank * 2, 0}, {2, 6}),
      {{.axis = 0, .rank = rank, .count = kRanks}});
  return state;
}

/// Returns the state of a rank that is copy number `copy` of one of the four.
StateDict copy_of(int rank, int copy) {
  return map_leaves(Sample(rank).build(), [&](Value leaf) {
    const auto mark = [&](ReplicaId& id) {
      Shape parts = id.parts();
      parts.insert(parts.begin(), copy);
      id = ReplicaId(std::move(parts));
    };
    if (leaf.is(Value::Kind::kShardedTensor)) mark(leaf.mutable_sharded_tensor().replica_id);
    if (leaf.is(Value::Kind::kShardedObject)) mark(leaf.mutable_sharded_object().replica_id);
    return leaf;
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc > 7) {
    std::fprintf(stderr,
                 "usage: %s DIRECTORY COMPAT boxes|megatron|unflattened [SEPARATION_HINT [COPIES "
                 "[split]]]\n",
                 argv[0]);
    return 2;
  }
  try {
    SaveOptions options;
    options.compat = parse_compat(argv[2]).value();
    options.flattened =
        std::string(argv[3]) == "megatron" ? FlattenedForm::kMegatron : FlattenedForm::kBoxes;
    options.flatten = std::string(argv[3]) != "unflattened";
    if (argc > 4) options.separation_hint = argv[4];
    const int copies = argc > 5 ? std::stoi(argv[5]) : 1;
    options.parallel.enabled = copies > 1;
    options.planner.split_replicas = argc > 6;
    run_ranks(kRanks * copies, [&](Communicator& comm) {
      StateDict state = options.flatten ? copy_of(comm.rank() % kRanks, comm.rank() / kRanks)
                                        : unflattened(comm.rank());
      if (options.planner.split_replicas) {
        state["large"] =
            ShardedTensor::whole("large", global_tensor(DType::kFloat32, {2048, 2080}, 100),
                                 {.replica_id = comm.rank()});
      }
      save(state, argv[1], options, comm);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
