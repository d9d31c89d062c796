#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dist_checkpointing/load/tensor_request.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// Tells when all elements of a destination have been read. Safe to use from several threads.
class Arrivals {
 public:
  /// `complete` is called once for each destination, in the thread that reads its last element; all
  /// must outlive it. Without `complete` nothing is counted.
  Arrivals(const TensorRequest& request, const Metadata& metadata,
           std::function<void(std::uint32_t destination)> complete);

  explicit operator bool() const noexcept { return static_cast<bool>(complete_); }

  /// So many bytes, as they are stored, are in the destination.
  void delivered(std::uint32_t destination, std::uint64_t bytes);
  /// All of these items are in their destinations, and nobody has told.
  void delivered(std::span<const ReadItem> items);
  /// Completes what is padded after reading, and what has no elements.
  void finish();

 private:
  std::uint64_t bytes_of(const ReadItem& item) const;

  const Metadata& metadata_;
  std::function<void(std::uint32_t)> complete_;
  std::vector<std::atomic<std::uint64_t>> left_;  ///< bytes of each destination
  std::vector<std::uint32_t> late_;               ///< destinations for finish()
};

}  // namespace dckpt
