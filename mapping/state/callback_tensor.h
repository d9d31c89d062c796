#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/state/tensor.h"

namespace DCKPT_API dckpt {

/// The functions through which saves and loads reach elements that no pointer reaches: those of a
/// tiled accelerator, of an offloaded or a remote tensor. Elements are passed as bytes in row-major
/// order, in pieces of whole elements and at most 4 MiB, and `offset` is the place of the first
/// byte of a piece in that order.
///
/// Each returns the number of bytes that it has moved. Any number but the size of the piece fails
/// the save or load on all ranks, and so do an exception and a call that takes longer than the
/// timeout (register_callbacks() in <dckpt/strategy.h>). Then nothing is published, and the
/// functions are not called again for this save or load.
///
/// They are called from threads of the library: for one save or load from one thread at a time, but
/// several saves and loads may call them at once. A save in the background calls `read` until its
/// snapshot is complete (PendingSave::wait_staged()).
struct ElementCallbacks {
  std::function<std::size_t(std::uint64_t offset, MutableByteView to)> read{};  ///< for saves
  std::function<std::size_t(std::uint64_t offset, ByteView from)> write{};      ///< for loads
};

/// Returns a tensor whose elements are reached through `callbacks` alone. Its handles, narrow() and
/// view() work as those of other tensors; copies share the callbacks, which live as long as one of
/// them. data() is an address that tells such tensors apart and must not be accessed. Throws
/// CheckpointError (invalid argument) on a shape that is negative or too large, or if both
/// functions are missing.
Tensor callback_tensor(DType dtype, Shape shape, ElementCallbacks callbacks);

}  // namespace dckpt
