#pragma once

#include <cstdint>
#include <functional>

#include "mapping/base/progress.h"
#include "strategies/contract/reader.h"

namespace dckpt {

enum class TensorFileFormat : std::uint8_t { kNpy, kSafetensors };

struct TensorFileOptions {
  std::uint64_t memory = std::uint64_t{64} << 20;  ///< bytes of the tensor in memory at a time
  int threads = 2;
  Progress progress{};
};

/// Writes one stored tensor as a file of its own, assembled in its global shape, passing the bytes
/// to `sink` in order. A .npy file holds just the array; a .safetensors file holds it under its
/// key. Throws CheckpointError: (unsupported) before the first byte if the file format has no such
/// element type (numpy has no bfloat16 and no float8), and as reading the tensor does.
void write_tensor_file(const CheckpointReader& reader, std::size_t tensor, TensorFileFormat format,
                       const std::function<void(ByteView)>& sink,
                       const TensorFileOptions& options = {});

}  // namespace dckpt
