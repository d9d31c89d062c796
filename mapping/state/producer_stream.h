#pragma once

#include "mapping/base/api.h"
#include "mapping/state/tensor.h"

namespace DCKPT_API dckpt {

/// Returns the stream on which the calling thread's kernels fill tensors of a device: a
/// cudaStream_t, null for the default stream. May throw.
using ProducerStream = void* (*)(const Device& device);

/// Libraries that keep a current stream register a function that returns it (from_torch does). The
/// last one counts; at first it is null: kernels run in the default stream.
void set_producer_stream(ProducerStream ask) noexcept;
ProducerStream producer_stream() noexcept;

}  // namespace dckpt
