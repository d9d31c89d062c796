#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "mapping/geometry/strided_copy.h"
#include "strategies/device/copy_stream.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// Fills destinations in device memory: batches of small boxes are read into host memory, and
/// copied from there while the next batch is read. No memory of the device is allocated.
class DeviceDestinations {
 public:
  /// To be made by the thread that called load: copies begin after its kernels. Throws
  /// CheckpointError as CopyStream does.
  explicit DeviceDestinations(std::span<const Tensor> destinations);

  /// Reads the items, whose destinations are all in device memory, with as many rings of two pieces
  /// as `options.threads`; memory is the devices', not `options.staging`. Returns when the elements
  /// are in place. `destinations` as for read_tensors.
  ReadStats read(const CheckpointReader& reader, std::span<const ReadItem> items,
                 std::span<const Tensor> destinations, const ReadOptions& options);
  /// Those that are not in device memory are left as they are.
  void fill_zero(std::span<const Tensor> destinations);
  /// Returns when the producers' kernels have ended, behind which the destinations may be written.
  void wait_for_producers() const { streams_.finish(); }

 private:
  friend class BoxCopies;
  CopyStreams streams_;
};

/// Copies boxes between host memory and tensors, on devices or not, and waits for many together:
/// small ones share a piece of page-locked memory. One thread, which waits for nothing else before
/// it has called finish(). Throws CheckpointError as StagedPiece does.
class BoxCopies {
 public:
  /// `devices` has those of the tensors, and must outlive it; null if all are in CPU memory.
  explicit BoxCopies(const DeviceDestinations* devices) : devices_(devices) {}

  /// Later copies find the elements in `to`. The memory at `from` is not needed any more.
  void put(ShapeView sizes, const std::byte* from, const StridedView& from_view, const Tensor& to,
           const StridedView& to_view);
  /// The elements are there when finish() has returned.
  void get(ShapeView sizes, const Tensor& from, const StridedView& from_view, std::byte* to,
           const StridedView& to_view);
  /// Like put() if `from` is in CPU memory, or on the same device as `to`, else like get().
  void copy(ShapeView sizes, const Tensor& from, const StridedView& from_view, const Tensor& to,
            const StridedView& to_view);
  /// Returns when everything is in place.
  void finish();

 private:
  /// On its way from a device: goes to its place from the piece.
  struct Arrival {
    Shape sizes;
    std::size_t item_size;
    const std::byte* from;
    std::byte* to;
    StridedView view;
  };

  /// Room in the piece for copies from or to `tensor`.
  std::byte* room(const Tensor& tensor, std::size_t bytes);
  void drain();

  const DeviceDestinations* devices_;
  std::optional<StagedPiece> piece_{};
  const CopyStream* stream_ = nullptr;  ///< of the piece
  std::size_t filled_ = 0;
  std::vector<Arrival> arrivals_{};
};

inline bool is_in_device_memory(const Tensor& tensor) {
  return tensor.device().kind != Device::Kind::kCpu;
}

}  // namespace dckpt
