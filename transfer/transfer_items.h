#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "mapping/base/problem_list.h"
#include "transfer/transfer_plan.h"

namespace dckpt {

inline constexpr std::uint32_t kNoNumber = UINT32_MAX;

/// An item of a rank.
struct TransferRecord {
  std::uint32_t box;
  std::uint32_t rank;
  std::uint32_t item;
  bool main;
};

/// The items of all ranks that hold, or want.
struct TransferSide {
  const char* verb;                                  ///< "holds" or "wants", for messages
  std::vector<std::vector<TransferRecord>> added{};  ///< by rank; then, after gather():
  std::vector<TransferRecord> records{};             ///< by box
  std::vector<std::size_t> ends{};  ///< by box: of the records of the one before it

  /// Brings the records of each box together, in their order.
  void gather(std::size_t boxes);
  std::span<TransferRecord> of(std::uint32_t box) {
    return std::span(records).subspan(ends[box], ends[box + 1] - ends[box]);
  }
};

/// The different boxes of all tensors, by numbers.
class TransferBoxes {
 public:
  TransferBoxes() = default;
  TransferBoxes(const TransferBoxes&) = delete;
  TransferBoxes& operator=(const TransferBoxes&) = delete;

  std::size_t size() const noexcept { return boxes_.size(); }
  std::uint32_t tensor(std::uint32_t number) const { return boxes_[number].tensor; }
  /// Returns the offsets and then the sizes.
  ShapeView extents(std::uint32_t number) const {
    const Entry& entry = boxes_[number];
    return {extents_.data() + entry.at, 2 * std::size_t{entry.dims}};
  }
  Box box(std::uint32_t number) const {
    const ShapeView both = extents(number);
    return {Shape(both.first(both.size() / 2)), Shape(both.last(both.size() / 2))};
  }

  /// Returns the number of a box if it is that of `last`, the box before it of the same tensor, or
  /// the one that followed `last` before: ranks often come in an order. Else kNoNumber.
  std::uint32_t guess(const Box& box, std::uint32_t last) const {
    if (last == kNoNumber || is(last, box)) return last;
    const std::uint32_t next = boxes_[last].next;
    return next != kNoNumber && is(next, box) ? next : kNoNumber;
  }

  /// Returns the number of a box that fits its tensor; `last` as above.
  std::uint32_t number(std::uint32_t tensor, const Box& box, std::uint32_t last);

 private:
  struct Entry {
    std::uint32_t tensor;
    std::uint32_t dims;
    std::size_t at;                  ///< position in extents_
    std::uint32_t next = kNoNumber;  ///< the box that followed it
  };

  bool is(std::uint32_t number, const Box& box) const {
    const ShapeView both = extents(number);
    const std::size_t dims = both.size() / 2;
    return equal(both.first(dims), box.offsets) && equal(both.last(dims), box.sizes);
  }
  std::size_t hash(std::uint32_t number) const {
    std::uint64_t mixed = boxes_[number].tensor;
    for (const std::int64_t extent : extents(number)) {
      mixed = (mixed ^ static_cast<std::uint64_t>(extent)) * 0x9E3779B97F4A7C15U;
      mixed ^= mixed >> 32U;
    }
    return mixed;
  }

  struct Hash {
    const TransferBoxes* boxes;
    std::size_t operator()(std::uint32_t number) const { return boxes->hash(number); }
  };
  struct Equal {
    const TransferBoxes* boxes;
    bool operator()(std::uint32_t a, std::uint32_t b) const {
      return boxes->tensor(a) == boxes->tensor(b) && equal(boxes->extents(a), boxes->extents(b));
    }
  };

  std::vector<Entry> boxes_;
  std::vector<std::int64_t> extents_;
  std::unordered_set<std::uint32_t, Hash, Equal> numbers_{0, Hash{this}, Equal{this}};
};

/// The items of a transfer, with tensors and boxes as numbers.
class TransferItems {
 public:
  /// Adds problems to `problems`, which must outlive it.
  explicit TransferItems(ProblemList& problems) : problems_(problems) {}

  /// Adds the layout of a rank to a side; ranks come in ascending order. Items that contradict
  /// their tensor are left out, as problems.
  void add(TransferSide& side, std::uint32_t rank, const TransferLayout& layout);

  /// Returns the boxes by tensor, in a tensor by offsets and sizes.
  std::vector<std::uint32_t> ordered_boxes() const;

  TransferSide held{"holds"};
  TransferSide wanted{"wants"};
  TransferBoxes boxes{};
  std::vector<TransferPlan::Tensor> tensors{};

 private:
  /// The first and the last mention of a tensor.
  struct Mention {
    std::uint32_t first_rank = kNoNumber;
    const char* first_verb = nullptr;
    std::uint32_t next = kNoNumber;  ///< the tensor that followed it the last time
    std::uint32_t box = kNoNumber;   ///< its latest box
  };
  struct HashOfKey {
    const std::vector<TransferPlan::Tensor>* tensors;
    std::size_t operator()(std::uint32_t number) const {
      return std::hash<std::string>()((*tensors)[number].key);
    }
  };
  struct EqualKey {
    const std::vector<TransferPlan::Tensor>* tensors;
    bool operator()(std::uint32_t a, std::uint32_t b) const {
      return (*tensors)[a].key == (*tensors)[b].key;
    }
  };

  std::uint32_t number_of(const WriteItem& item, std::uint32_t last);
  bool is_like_first(const WriteItem& item, std::uint32_t number, std::uint32_t rank,
                     const TransferSide& side);

  ProblemList& problems_;
  std::unordered_set<std::uint32_t, HashOfKey, EqualKey> numbers_{0, HashOfKey{&tensors},
                                                                  EqualKey{&tensors}};
  std::vector<Mention> mentions_{};  ///< by tensor
};

}  // namespace dckpt
