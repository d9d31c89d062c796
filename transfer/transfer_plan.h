#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/geometry/box.h"
#include "mapping/geometry/dtype.h"
#include "mapping/planning/save/local_plan.h"

namespace DCKPT_API dckpt {

/// The tensors that one rank holds, or wants: what plan_local_save makes of its TensorShards in the
/// form FlattenedForm::kBoxes, in which a flattened range is one item per box. Objects are ignored.
using TransferLayout = SavePlan;

/// A plan that moves tensors from the ranks that hold them in one layout to the ranks that want
/// them in another. Ranks are those of one job, in which a rank may hold, want, both or neither.
struct TransferPlan {
  struct Tensor {
    std::string key;
    DType dtype = DType::kFloat32;
    Shape shape;  ///< of the whole tensor
  };
  /// A part of a tensor that travels as a whole, from one place to each of some others.
  struct Part {
    std::uint32_t tensor = 0;  ///< position in `tensors`
    Box box;                   ///< in the whole tensor; has elements
    std::uint64_t bytes = 0;
    /// The range [first_move, first_move + move_count) of `moves`.
    std::uint64_t first_move = 0;
    std::uint32_t move_count = 0;
  };
  /// Between two items, which are positions in the layouts of these ranks; inside one rank it is a
  /// copy in memory.
  struct Move {
    std::uint32_t from = 0;  ///< rank
    std::uint32_t from_item = 0;
    std::uint32_t to = 0;
    std::uint32_t to_item = 0;
  };

  std::uint32_t ranks = 0;
  std::vector<Tensor> tensors;  ///< all that a rank holds or wants, in the order of their mention
  std::vector<Part> parts;      ///< by tensor; in one item of a rank, they are disjoint
  std::vector<Move> moves;
  std::vector<std::uint64_t> sent_bytes;      ///< by rank, without copies in its own memory
  std::vector<std::uint64_t> received_bytes;  ///< the same

  std::span<const Move> moves_of(const Part& part) const noexcept {
    return {moves.data() + part.first_move, part.move_count};
  }
};

/// Plans a transfer from layouts that are added one at a time, so that only small records of them
/// are kept. Work and memory grow with the number of items and moves, n log n.
class TransferPlanner {
 public:
  explicit TransferPlanner(std::uint32_t ranks);
  ~TransferPlanner();
  TransferPlanner(const TransferPlanner&) = delete;
  TransferPlanner& operator=(const TransferPlanner&) = delete;

  /// Each is called once per rank that has something, in ascending order of ranks. Throws
  /// CheckpointError (invalid argument) for other ranks and for reformulated items.
  void add_source(std::uint32_t rank, const TransferLayout& layout);
  void add_target(std::uint32_t rank, const TransferLayout& layout);

  /// Every element of every wanted item is moved there exactly once. A rank that holds it takes it
  /// from its own memory; otherwise one of the ranks that hold the same box sends it: parts with
  /// few holders are assigned first, large ones before small ones, each move to the holder with the
  /// fewest bytes so far, the lowest among equals; parts are cut where the balance gains from it.
  /// Only main replicas, and replicas with the same box as one, are sources. The plan depends on
  /// nothing but the layouts. Throws CheckpointError (mismatch) that lists every key and rank with
  /// another dtype or shape than the first one has, main replicas with common elements, and wanted
  /// elements that no main replica holds.
  TransferPlan finish() &&;

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

/// Does the same at once. Position r of each is the layout of rank r; if one is shorter, the other
/// ranks hold, or want, nothing.
TransferPlan make_transfer_plan(std::span<const TransferLayout> from,
                                std::span<const TransferLayout> to);

}  // namespace dckpt
