#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mapping/geometry/box.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace dckpt::bench {

/// A global tensor. Its element at row-major position i has the value (i + ordinal) mod 251, which
/// bfloat16 represents exactly.
struct TensorSpec {
  std::string key;
  Shape shape;
  std::int64_t ordinal = 0;
  DType dtype = DType::kBFloat16;        ///< or float32
  std::optional<std::size_t> tp_axis{};  ///< axis cut by tensor parallelism; whole tensors without

  std::uint64_t nbytes() const noexcept {
    return static_cast<std::uint64_t>(numel(shape)) * item_size(dtype);
  }
};

/// Tensors that some ranks save and others load. The other systems run the same workloads by the
/// same names, so sizes, keys and values are fixed (README.md).
struct Workload {
  std::string name;
  std::string about;
  int writers = 1;
  int readers = 1;
  std::optional<std::size_t> save_axis{};  ///< axis cut into equal parts; whole tensors without
  std::optional<std::size_t> load_axis{};
  int tensor_parallel = 0;  ///< if not 0: rank = replica · tensor_parallel + piece, work shared
                            ///< among replicas; the axes above are ignored
  /// If not 0, ranks hold flattened fragments, as in a distributed optimizer. The tensors of each
  /// optimizer state form one buffer, cut over the ranks at multiples of this many elements.
  std::int64_t flat_alignment = 0;
  std::size_t flat_states = 1;
  std::vector<TensorSpec> tensors;

  bool reshards() const noexcept { return save_axis != load_axis || writers != readers; }
  std::uint64_t nbytes() const noexcept;
};

std::vector<Workload> workloads();

/// One rank's part of a workload: the tensors' memory, and its sharded state dict.
class RankState {
 public:
  enum class Content { kValues, kZeros };  ///< either way, all memory has been written to

  RankState(const Workload& workload, std::optional<std::size_t> axis, int rank, int ranks,
            Content content);

  /// Returns a copy that shares the memory. A load turns the leaves of its argument into plain
  /// tensors, so each load takes a new copy.
  StateDict state() const { return state_; }
  std::uint64_t nbytes() const noexcept { return nbytes_; }
  /// Makes this process map all pages of the memory, which processes share.
  void touch() const;
  /// Throws std::runtime_error unless the first, the middle and the last tensor hold the workload's
  /// values.
  void check() const;

 private:
  struct Part {
    const TensorSpec* spec;
    Box box;
    std::optional<FlattenedRange> range;  ///< range of the elements of the box
    Tensor data;
  };
  void hold(Part part, Content content);
  void add_pieces(const Workload& workload, std::optional<std::size_t> axis, int rank, int ranks,
                  Content content);
  void add_fragments(const Workload& workload, int rank, int ranks, Content content);

  std::vector<Part> parts_;
  StateDict state_;
  std::uint64_t nbytes_ = 0;
};

}  // namespace dckpt::bench
