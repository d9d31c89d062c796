#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "mapping/geometry/strided_copy.h"
#include "strategies/device/copy_stream.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// Fills destinations in device memory: reads batches of small boxes into host memory and copies
/// each from there while the next batch is read. Allocates no device memory.
class DeviceDestinations {
 public:
  /// The thread that called load must construct it, so that copies begin after its kernels. Throws
  /// CheckpointError as CopyStream does.
  explicit DeviceDestinations(std::span<const Tensor> destinations);

  /// Reads the items, whose destinations are all in device memory, with as many rings of two pieces
  /// as `options.threads`. The pieces are page-locked memory of the devices and not part of
  /// `options.staging`. Returns when the elements are in place. `destinations` as for read_tensors.
  ReadStats read(const CheckpointReader& reader, std::span<const ReadItem> items,
                 std::span<const Tensor> destinations, const ReadOptions& options);
  /// Ignores tensors that are not in device memory.
  void fill_zero(std::span<const Tensor> destinations);
  /// Returns when the kernels of the producers have ended. The destinations may be written after
  /// that.
  void wait_for_producers() const { streams_.finish(); }

 private:
  friend class BoxCopies;
  CopyStreams streams_;
};

/// Copies boxes between host memory and tensors, on devices or not, and waits for many copies
/// together: small ones share a piece of page-locked memory. Used by one thread, which must not
/// wait for anything else before it has called finish(). Throws CheckpointError as StagedPiece
/// does.
class BoxCopies {
 public:
  /// `devices` has the devices of the tensors and must outlive this object; null if all tensors are
  /// in CPU memory.
  explicit BoxCopies(const DeviceDestinations* devices) : devices_(devices) {}

  /// Copies enqueued later find the elements in `to`. The caller may reuse the memory at `from`.
  void put(ShapeView sizes, const std::byte* from, const StridedView& from_view, const Tensor& to,
           const StridedView& to_view);
  /// The elements are in `to` when finish() has returned.
  void get(ShapeView sizes, const Tensor& from, const StridedView& from_view, std::byte* to,
           const StridedView& to_view);
  /// Acts like put() if `from` is in CPU memory or on the same device as `to`, else like get().
  void copy(ShapeView sizes, const Tensor& from, const StridedView& from_view, const Tensor& to,
            const StridedView& to_view);
  /// Returns when everything is in place.
  void finish();

 private:
  /// A box that was copied from a device into the piece and still has to be copied to `to`.
  struct Arrival {
    Shape sizes;
    std::size_t item_size;
    const std::byte* from;
    std::byte* to;
    StridedView view;
  };

  /// Returns room in the piece for copies from or to `tensor`.
  std::byte* room(const Tensor& tensor, std::size_t bytes);
  void drain();

  const DeviceDestinations* devices_;
  std::optional<StagedPiece> piece_{};
  const CopyStream* stream_ = nullptr;  ///< the stream of piece_
  std::size_t filled_ = 0;
  std::vector<Arrival> arrivals_{};
};

inline bool is_in_device_memory(const Tensor& tensor) {
  return tensor.device().kind != Device::Kind::kCpu;
}

}  // namespace dckpt
