#pragma once

#include <cstddef>
#include <memory>

#include "mapping/state/callback_tensor.h"

namespace dckpt {

/// The elements of a tensor that callback_tensor() made: `whole.data()` is the address of the
/// first.
struct CallbackElements {
  Tensor whole;
  ElementCallbacks callbacks;
};

/// Returns the elements that have `bytes` bytes at an address, and keeps the callbacks alive.
/// Throws CheckpointError (invalid argument) if no callback tensor has them.
std::shared_ptr<const CallbackElements> find_callback_elements(const std::byte* address,
                                                               std::size_t bytes);

}  // namespace dckpt
