#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "mapping/planning/load_plan.h"
#include "mapping/state/tensor.h"
#include "strategies/reader.h"

namespace dckpt {

struct ReadOptions {
  int threads = 2;
  /// Upper bound of temporary memory over all threads, in bytes.
  std::uint64_t staging = std::uint64_t{64} << 20;
  /// Other ranks may want, and read, what lies between the wanted bytes: it is read over only as far as it makes up a twentieth of what is wanted. Otherwise it is
  /// wherever that saves requests.
  bool shared = false;
  /// Called now and then with the bytes delivered so far, from any thread, one call at a time.
  std::function<void(std::uint64_t bytes)> progress{};
};

/// Counts of one read, for reports.
struct ReadStats {
  std::uint64_t bytes_wanted = 0;   ///< delivered into destinations
  std::uint64_t bytes_read = 0;     ///< asked from files
};

/// Fills the destinations (CPU tensors of the stored dtype, laid out as the plan was told) from the checkpoint: only the byte ranges wanted,
/// straight into place where they are contiguous. Throws CheckpointError; then the destinations are partly filled.
ReadStats read_tensors(const CheckpointReader& reader, std::span<const ReadItem> items, std::span<const Tensor> destinations, const ReadOptions& options = {});

/// Throws CheckpointError (invalid argument) unless all destinations of the items are CPU tensors of the stored dtype, with data.
void check_destinations(const CheckpointReader& reader, std::span<const ReadItem> items, std::span<const Tensor> destinations);

/// One box of a stored tensor, in its global shape, as a new tensor.
Tensor read_box(const CheckpointReader& reader, std::size_t tensor, const Box& box, const ReadOptions& options = {});

}  // namespace dckpt
