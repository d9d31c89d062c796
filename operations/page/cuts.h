#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "mapping/planning/metadata.h"
#include "operations/page/columns.h"

namespace dckpt {

/// The ways in which the tensors of a checkpoint are cut. Tensors that are cut the same way share
/// an entry: a grid as the sizes of its pieces along each axis, anything else as a list of boxes.
class CutTable {
 public:
  struct Cut {
    std::uint64_t number = 0;
    std::vector<std::uint32_t> order{};  ///< positions of the chunks in the order of the entry
  };
  Cut add(const TensorStorageMetadata& tensor);
  /// Returns the number of tensors whose boxes were left out to keep the page small.
  std::size_t left_out() const noexcept { return left_out_; }
  /// Returns the entries as one column. Each is its number of axes, the shape, and its kind:
  /// 0, the number of chunks: their boxes were left out; 1, for each axis the number of pieces and
  /// their sizes; 2, the number of chunks, and for each the offset along each axis and the distance
  /// of its end from that of the tensor.
  Value to_value() const { return entries_.to_value(); }

 private:
  std::unordered_map<std::string, std::uint64_t> numbers_;
  NumberColumn entries_;
  std::size_t left_out_ = 0;
};

}  // namespace dckpt
