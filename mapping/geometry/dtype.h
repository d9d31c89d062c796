#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Element types that a checkpoint can hold: torch's, and two that only safetensors has. Values are
/// not stored anywhere.
enum class DType : std::uint8_t {
  kBool,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex32,
  kComplex64,
  kComplex128,
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
  kFloat4E2M1FNx2,  ///< two 4-bit elements a byte; shapes count bytes, as in torch
  kFloat6E2M3FNx4,  ///< four 6-bit elements in three bytes; shapes count these; not in torch
  kFloat6E3M2FNx4,  ///< the same with another exponent
  kQInt8,
  kQUInt8,
  kQInt32,  ///< quantized storages: bytes only, their scales are stored elsewhere
};

/// Returns the bytes of one element.
std::size_t item_size(DType dtype) noexcept;

/// Returns the number of values that one element packs: 2 or 4, or else 1.
int packed_values(DType dtype) noexcept;

/// Returns whether torch has the type. Formats of torch refuse others.
bool is_torch_dtype(DType dtype) noexcept;

/// Returns torch's name without the prefix: "float32", "bfloat16", "float8_e4m3fn", …
std::string_view to_string(DType dtype) noexcept;

/// Parses a name that to_string returns; also accepts a "torch." prefix and torch's aliases (half,
/// float, double, long, int, short).
std::optional<DType> parse_dtype(std::string_view name) noexcept;

}  // namespace dckpt
