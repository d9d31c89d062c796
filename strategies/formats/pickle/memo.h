#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "strategies/formats/pickle/graph.h"
#include "strategies/formats/pickle/pod_array.h"

namespace dckpt::pickle {

/// The values that PUT stored. Indices are any 32-bit numbers. Those that a pickler counts up are
/// in an array and strays in a tree, so that memory follows the number of entries and not the
/// largest index.
class Memo {
 public:
  using Id = Graph::Id;

  /// Returns kNil if nothing was stored there.
  Id find(std::uint32_t index) const {
    if (index < dense_.size() && dense_[index] != Graph::kNil) return dense_[index];
    return find_stray(index);
  }

  void store(std::uint32_t index, Id id) {
    if (index == dense_.size() && strays_.empty()) {
      dense_.push_back(id);
      ++size_;
      return;
    }
    if (find(index) == Graph::kNil) ++size_;
    const std::size_t reach = 2 * dense_.size() + kFirstDense;
    if (index >= dense_.size() && index < reach) {
      const std::size_t missing = index + 1 - dense_.size();
      std::fill_n(dense_.extend(missing), missing, Graph::kNil);
    }
    (index < dense_.size() ? dense_[index] : strays_[index]) = id;
  }

  /// Returns whether all indices so far were counted up, as MEMOIZE does. The following three
  /// functions require it.
  bool is_counted_up() const noexcept { return strays_.empty() && size_ == dense_.size(); }
  void count_up(Id id) {
    dense_.push_back(id);
    ++size_;
  }
  void replace(std::uint32_t index, Id id) noexcept { dense_[index] = id; }
  void shrink(std::uint32_t size) noexcept {
    dense_.shrink(size);
    size_ = size;
  }

  /// The number of different indices in use, which is the index at which MEMOIZE stores.
  std::uint32_t size() const noexcept { return size_; }

 private:
  static constexpr std::size_t kFirstDense = 256;

  Id find_stray(std::uint32_t index) const {
    const auto stray = strays_.find(index);
    return stray == strays_.end() ? Graph::kNil : stray->second;
  }

  PodArray<Id> dense_;
  std::map<std::uint32_t, Id> strays_;
  std::uint32_t size_ = 0;
};

}  // namespace dckpt::pickle
