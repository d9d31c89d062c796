#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/metadata.h"

namespace DCKPT_API dckpt {

/// The parts of stored chunks that one rank needs: per entry a box of the global tensor, inside one
/// chunk. They are compact, since the ranks of a job exchange all of them.
class WantedParts {
 public:
  WantedParts() = default;
  /// Entry i is item i.
  explicit WantedParts(std::span<const ReadItem> items);

  std::size_t size() const noexcept { return entries_.size(); }
  std::uint32_t tensor(std::size_t i) const noexcept { return entries_[i].tensor; }
  std::uint32_t chunk(std::size_t i) const noexcept { return entries_[i].chunk; }
  ShapeView offsets(std::size_t i) const noexcept {
    return {extents_.data() + entries_[i].at, entries_[i].dims};
  }
  ShapeView sizes(std::size_t i) const noexcept {
    return {extents_.data() + entries_[i].at + entries_[i].dims, entries_[i].dims};
  }
  Box box(std::size_t i) const { return {Shape(offsets(i)), Shape(sizes(i))}; }

  /// Encodes a message for other ranks: small numbers, no keys.
  Bytes encode() const;
  /// Throws CheckpointError (corrupt) for a malformed message and for parts that lie outside the
  /// tensors and chunks of `metadata`.
  static WantedParts decode(ByteView bytes, const Metadata& metadata);

 private:
  struct Entry {
    std::uint32_t tensor = 0;
    std::uint32_t chunk = 0;
    std::uint32_t dims = 0;
    std::size_t at = 0;  ///< position of its offsets, which its sizes follow
  };

  void add(std::uint32_t tensor, std::uint32_t chunk, ShapeView offsets, ShapeView sizes);

  std::vector<Entry> entries_;
  std::vector<std::int64_t> extents_;
};

}  // namespace dckpt
