#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "mapping/planning/load/distribution.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/reader.h"
#include "strategies/tensor_io/device_destinations.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// The data that a rank reads in one go: items straight into their destinations, and slabs into
/// memory of the batch, which stays until the batch is cleared.
class TensorBatch {
 public:
  void add_item(const ReadItem& item, const Tensor& destination);
  /// Throws CheckpointError (corrupt) if the chunk does not hold the slab.
  void add_slab(std::uint32_t number, const LoadDistribution::Slab& slab, const Metadata& metadata);
  const std::vector<std::uint32_t>& slabs() const noexcept { return slabs_; }

  /// Reads the batch. `memory` is used for the slabs, grown if it is too small, and must be left
  /// alone until the batch is cleared. `devices` are those of the destinations, if there are any.
  /// Throws CheckpointError.
  ReadStats read(const CheckpointReader& reader, Bytes& memory, const ReadOptions& options,
                 DeviceDestinations* devices);

  /// Returns a slab that has been read: the elements of its box, row-major.
  const Tensor& slab(std::uint32_t number) const { return destinations_[slab_at_.at(number)]; }

  void clear() { *this = {}; }

 private:
  std::vector<ReadItem> items_;
  std::vector<ReadItem> device_items_;  ///< with destinations in device memory
  std::vector<Tensor> destinations_;
  std::vector<std::uint32_t> slabs_;
  std::unordered_map<std::uint32_t, std::size_t> slab_at_;  ///< number → destination
};

}  // namespace dckpt
