#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "mapping/base/hash.h"
#include "mapping/base/readable_file.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

// Tensors of a torch file that was loaded lazily (TorchFileOptions::lazy), which hold the position
// of their elements in the file.

namespace dckpt {

/// Returns the bytes from the first to the last element.
std::uint64_t extent_bytes(const Tensor& tensor);

/// Returns the record that consists of exactly these bytes; `records` are in the order of their
/// offsets. A tensor that is only a part of its storage has none.
std::optional<RecordedCrc> exact_record(std::span<const RecordedCrc> records, std::uint64_t offset,
                                        std::uint64_t length);

/// Returns the tensor with its elements read, and compared with its record if it has one. Throws
/// CheckpointError (corrupt).
Tensor read_lazy_tensor(const Tensor& tensor, const ReadableFile& file,
                        std::span<const RecordedCrc> records);

/// Returns `value` with every tensor in it replaced, also inside objects, but not in members of
/// sets and keys of dicts, which are distinguished by their tensors.
Value replace_tensors(const Value& value, const std::function<Tensor(const Tensor&)>& replacement);

}  // namespace dckpt
