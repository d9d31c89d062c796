#include "strategies/parallel/tensor_batch.h"

#include <utility>

#include "mapping/base/error.h"
#include "mapping/planning/chunk_geometry.h"

namespace dckpt {
namespace {

// Slabs begin at multiples of this, so that elements are aligned.
constexpr std::size_t kAlignment = 64;

}  // namespace

void TensorBatch::add_item(const ReadItem& item, const Tensor& destination) {
  auto& items = is_in_device_memory(destination) ? device_items_ : items_;
  items.push_back(item);
  items.back().destination = static_cast<std::uint32_t>(destinations_.size());
  destinations_.push_back(destination);
}

void TensorBatch::add_slab(std::uint32_t number, const LoadDistribution::Slab& slab,
                           const Metadata& metadata) {
  const TensorStorageMetadata& tensor = metadata.tensors[slab.tensor];
  auto source = ChunkGeometry(tensor, slab.chunk).find(slab.box);
  if (!source) {
    throw_error(ErrorCode::kCorrupt, {.key = tensor.key},
                "ranks want a part of a chunk that the chunk does not hold: do all ranks "
                "run the same build?");
  }
  slabs_.push_back(number);
  slab_at_.emplace(number, destinations_.size());
  items_.push_back({.tensor = slab.tensor,
                    .chunk = slab.chunk,
                    .destination = static_cast<std::uint32_t>(destinations_.size()),
                    .sizes = slab.box.sizes,
                    .source = std::move(*source),
                    .target = {0, row_major_strides(slab.box.sizes)},
                    .offsets = slab.box.offsets});
  destinations_.push_back(Tensor::meta(tensor.properties.dtype, slab.box.sizes));
}

ReadStats TensorBatch::read(const CheckpointReader& reader, Bytes& memory,
                            const ReadOptions& options, DeviceDestinations* devices) {
  std::size_t size = 0;
  std::vector<std::size_t> offsets;
  for (const std::uint32_t number : slabs_) {
    offsets.push_back(size);
    size += (slab(number).nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (memory.size() < size) memory = Bytes(size);
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    Tensor& slab = destinations_[slab_at_.at(slabs_[i])];
    slab = Tensor::wrap(slab.dtype(), slab.shape(), memory.data() + offsets[i]);
  }
  ReadStats stats = read_tensors(reader, items_, destinations_, options);
  if (!device_items_.empty()) stats += devices->read(reader, device_items_, destinations_, options);
  return stats;
}

}  // namespace dckpt
