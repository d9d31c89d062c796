#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/error.h"
#include "mapping/geometry/box.h"
#include "mapping/state/tensor.h"

namespace DCKPT_API dckpt {

/// The number of a copy of a shard, or a tuple of numbers. All zero: the main replica, which is
/// saved.
class ReplicaId {
 public:
  ReplicaId(std::int64_t id = 0) : parts_(1, id) {}
  ReplicaId(std::initializer_list<std::int64_t> parts) : parts_(parts), is_tuple_(true) {}
  explicit ReplicaId(Shape parts) : parts_(std::move(parts)), is_tuple_(true) {}

  bool is_main() const noexcept;
  bool is_tuple() const noexcept { return is_tuple_; }
  const Shape& parts() const noexcept { return parts_; }
  friend bool operator==(const ReplicaId&, const ReplicaId&) = default;

 private:
  Shape parts_;
  bool is_tuple_ = false;
};

/// Returns "0" or "(0, 1)".
std::string to_string(const ReplicaId& id);

/// Piece `rank` of `count` equal pieces along global axis `axis` (prepended axes included).
struct RankOffset {
  std::int64_t axis = 0;
  std::int64_t rank = 0;
  std::int64_t count = 1;
};

/// Row-major elements [begin, end) of the flattened local tensor.
struct FlattenedRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const FlattenedRange&, const FlattenedRange&) = default;
};

struct ShardedTensorOptions {
  ReplicaId replica_id{};
  std::int64_t prepend_axis_num = 0;
  bool allow_shape_mismatch = false;
};

/// The part of a global tensor that one rank holds, in Megatron's terms. A load allocates `data`
/// where it is missing or meta. validate() checks the invariant.
struct ShardedTensor {
  std::string key;
  std::optional<Tensor> data{};
  DType dtype = DType::kFloat32;
  Shape local_shape;    ///< of the whole local tensor, even if flattened, without prepended axes
  Shape global_shape;   ///< with prepended axes
  Shape global_offset;  ///< position of local element 0 in the global tensor
  std::optional<Shape>
      axis_fragmentations{};  ///< pieces per global axis of a regular grid; empty if irregular
  ReplicaId replica_id{};
  /// Number of leading global axes that the local tensor lacks (extent 1 there).
  std::int64_t prepend_axis_num = 0;
  bool allow_shape_mismatch = false;
  /// If set, `data` is 1-D with exactly these elements.
  std::optional<FlattenedRange> flattened_range{};

  using Options = ShardedTensorOptions;

  /// Makes a regular piece: the global extent is local extent × count along the given axes and the
  /// local extent along the others; prepended axes have extent `count` (1 if not given).
  static ShardedTensor from_rank_offsets(std::string key, Tensor data,
                                         std::span<const RankOffset> rank_offsets, Options options);
  static ShardedTensor from_rank_offsets(std::string key, Tensor data,
                                         std::initializer_list<RankOffset> rank_offsets = {},
                                         Options options = {});

  /// Makes the same for a flattened piece: `data` is 1-D and holds [range) of a local tensor of
  /// `local_shape`.
  static ShardedTensor from_rank_offsets_flat(std::string key, Tensor data, Shape local_shape,
                                              std::span<const RankOffset> rank_offsets,
                                              FlattenedRange range, Options options);
  static ShardedTensor from_rank_offsets_flat(std::string key, Tensor data, Shape local_shape,
                                              std::initializer_list<RankOffset> rank_offsets,
                                              FlattenedRange range, Options options = {});

  /// Makes a piece at any offset, possibly uneven. It is taken as part of a regular grid if its
  /// offset and the global shape are multiples of its shape. This depends on this piece alone:
  /// ranks with other pieces may find another grid, or none, and still form one tensor together.
  /// Only Megatron's form of flattened tensors needs a common grid.
  static ShardedTensor from_box(std::string key, Tensor data, Shape global_shape,
                                Shape global_offset, Options options = {});

  /// Makes elements [range) of the flattened box (global_offset, local_shape); `data` is 1-D.
  static ShardedTensor from_flat_range(std::string key, Tensor data, Shape local_shape,
                                       Shape global_shape, Shape global_offset,
                                       FlattenedRange range, Options options = {});

  /// Makes the whole tensor, not sharded.
  static ShardedTensor whole(std::string key, Tensor data, Options options = {});

  /// Throws CheckpointError (invalid argument) with Megatron's message if the fields contradict
  /// each other or the data.
  void validate() const;

  /// Returns the box of the local tensor in the global one, with prepended axes (extent 1).
  Box global_box() const;
  /// Returns the coordinates of the local tensor in the grid of pieces (regular grids only).
  Shape chunk_coordinates() const;
  /// Returns the elements of `data` as Tensor::data<T>() does, read-only if T or the shard is
  /// const; errors name the key. Throws CheckpointError (invalid argument) if there are none yet.
  template <typename T>
  T* local_data() {
    return with_context({.key = key}, [&] {
      return data.value_or(Tensor::meta(dtype, data_shape())).template data<T>();
    });
  }
  template <typename T>
  const T* local_data() const {
    return with_context({.key = key}, [&] {
      const Tensor local = data.value_or(Tensor::meta(dtype, data_shape()));
      return local.template data<T>();
    });
  }
  /// The number of elements that `data` has or would have.
  std::int64_t numel() const noexcept;
  /// The shape that `data` has or would have: 1-D for flattened ranges.
  Shape data_shape() const;

  /// Cuts down the global tensor along with the local one, as if every rank kept the same part
  /// (Megatron's narrow). Flattened pieces can only be narrowed along axis 0 and may vanish (empty
  /// result).
  std::vector<ShardedTensor> narrow(std::int64_t axis, std::int64_t start,
                                    std::int64_t length) const;

  /// Returns the same shard without its data.
  ShardedTensor without_data() const;
};

/// Returns text for messages: "ShardedTensor 'a.b': float32 (4, 7) at (0, 0) of (8, 7)", and the
/// other fields that decide its place.
std::string to_string(const ShardedTensor& shard);

}  // namespace dckpt
