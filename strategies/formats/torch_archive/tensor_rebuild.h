#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mapping/state/value.h"

namespace dckpt {

/// Torch spells a tensor in a pickle as a call of torch._utils._rebuild_tensor_v2 or _v3 with a
/// storage, which the pickle refers to by a persistent id.

/// Returns "FloatStorage" for float32; "UntypedStorage" for types without a class of their own
/// (float8, uint16, …). Throws kUnsupported for a type that torch does not have.
std::string_view storage_class(DType dtype);
/// Returns the element type of a storage class; uint8 for "UntypedStorage". Empty for an unknown
/// name.
std::optional<DType> storage_dtype(std::string_view class_name) noexcept;

/// The persistent id of a storage: ('storage', <class>, key, location, numel).
struct StorageId {
  std::string type;  ///< class name
  DType dtype = DType::kUInt8;
  std::string key;
  std::string location;
  std::int64_t numel = 0;

  std::uint64_t nbytes() const noexcept {
    return static_cast<std::uint64_t>(numel) * item_size(dtype);
  }
};

/// Throws CheckpointError (corrupt) if `id` is not a storage id. The bytes of the storage fit in
/// int64.
StorageId parse_storage_id(const Value& id);
Value make_storage_id(const TorchStorage& storage, const std::string& key);

/// Returns the tensor that a call makes; empty if the object is something else, or has parts that a
/// plain tensor lacks (hooks, conjugation), and is to be kept. Every element lies in the storage.
/// Throws CheckpointError (corrupt) for calls that torch refuses, (unsupported) for absurd
/// repetitions.
std::optional<Tensor> rebuild_tensor(const Opaque& object);

/// Returns the call that makes this tensor, with its own elements only, row-major.
Value reduce_tensor(const Tensor& tensor);

/// Returns a part of a 1-D tensor, which shares the elements. The caller must have checked the
/// range.
Tensor slice_storage(const Tensor& elements, DType dtype, std::int64_t offset, Shape shape,
                     Shape strides);

}  // namespace dckpt
