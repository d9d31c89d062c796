#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "operations/page/page_data.h"

// The part of a page's JSON that grows with the checkpoint: tensors, objects and files as columns.

namespace dckpt {

/// The limit of names; the end of longer ones is cut off.
inline constexpr std::size_t kLongestShown = 2000;

/// Returns a name with everything visible that steers text.
std::string visible(std::string_view name);

/// The tensors in the order of their keys, in which the page lists them.
class SortedTensors {
 public:
  explicit SortedTensors(const Metadata& metadata);

  std::size_t size() const { return order_.size(); }
  const TensorStorageMetadata& at(std::size_t place) const { return tensors_[order_[place]]; }
  /// Returns 1 + the place of a key; 0 if there is no such tensor.
  std::uint64_t place_after(std::string_view key) const {
    const auto found = place_of_.find(key);
    return found == place_of_.end() ? 0 : found->second + 1;
  }
  /// Returns the place, or none.
  Value place_of(std::string_view key) const {
    const std::uint64_t place = place_after(key);
    return place == 0 ? Value() : Value(place - 1);
  }

 private:
  const std::vector<TensorStorageMetadata>& tensors_;
  std::vector<std::size_t> order_;
  std::unordered_map<std::string_view, std::size_t> place_of_;
};

/// Returns "tensors": a column for each property, and the tables to which the columns refer.
Value tensors_of(const SortedTensors& tensors);
Value objects_of(const Metadata& metadata);
/// Returns "files": the data files that the metadata names, in its order, then the others.
Value files_of(const PageData& page);

}  // namespace dckpt
