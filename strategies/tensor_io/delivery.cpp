#include "strategies/tensor_io/delivery.h"

#include "mapping/geometry/cast.h"
#include "mapping/geometry/strided_copy.h"

namespace dckpt {

bool Delivery::takes_reads(const ReadItem& item) const {
  return destinations_[item.destination].dtype() == stored(item);
}

MutableByteView Delivery::memory(const ReadItem& item, std::int64_t target,
                                 std::uint64_t bytes) const {
  return {destinations_[item.destination].mutable_data() +
              static_cast<std::uint64_t>(target) * item_size(stored(item)),
          bytes};
}

void Delivery::copy(const ReadItem& item, const std::byte* source) const {
  const DType dtype = stored(item);
  const Tensor& destination = destinations_[item.destination];
  if (destination.dtype() == dtype)
    strided_copy(item.sizes, item_size(dtype), source, item.source, destination.mutable_data(),
                 item.target);
  else
    strided_cast(item.sizes, dtype, source, item.source, destination.dtype(),
                 destination.mutable_data(), item.target);
}

void Delivery::put(const ReadItem& item, const std::byte* source) {
  copy(item, source);
  arrived(item);
}

void Delivery::arrived(const ReadItem& item) {
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(numel(item.sizes)) * item_size(stored(item));
  if (delivered_) delivered_(item.destination, bytes);
  bytes_ += bytes;
  if (progress_ != nullptr) progress_->add(bytes);
}

}  // namespace dckpt
