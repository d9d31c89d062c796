#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "mapping/base/bytes.h"
#include "mapping/geometry/box.h"
#include "mapping/geometry/dtype.h"

namespace dckpt {

/// A zarr v2 array as Megatron writes it: a directory with a JSON file `.zarray`
///
///     {"chunks": [1, 48, 32], "compressor": null, "dtype": "bfloat16", "fill_value": null, "filters": null,
///      "order": "C", "shape": [2, 96, 32], "zarr_format": 2}
///
/// and one file per chunk, named by its position in the grid of chunks ("1.0.0"; "0" for an array
/// without axes), which holds the raw little-endian elements row-major. Chunks at the end of an
/// axis are stored in full size even if the array ends before. dtype is numpy's spelling ("<f4");
/// bfloat16 is tensorstore's name, and an interrupted save leaves "<V2" in its place.
struct ZarrArray {
  Shape shape;
  /// Extents of a stored chunk, at least 1 except where the array itself has extent 0.
  Shape chunk;
  DType dtype = DType::kFloat32;

  std::uint64_t chunk_bytes() const noexcept {
    return static_cast<std::uint64_t>(numel(chunk)) * item_size(dtype);
  }
  /// Returns the number of chunks per axis.
  Shape grid() const;
  /// Returns the part of the array that the chunk at this position of the grid holds.
  Box chunk_box(ShapeView position) const;
};

inline constexpr const char* kZarrayFile = ".zarray";
inline constexpr std::uint64_t kMaxZarrayBytes = 64 << 10;

/// Parses a .zarray file; `file_name` names it in messages. Throws CheckpointError: (corrupt) for
/// broken JSON, missing fields, and extents that are negative, do not fit together or overflow;
/// (unsupported) for compressors, filters, Fortran order, big-endian and other element types, and
/// other formats than 2.
ZarrArray read_zarray(ByteView json, const std::string& file_name);

/// The inverse of read_zarray(), as one line.
std::string write_zarray(const ZarrArray& array);

/// Returns the name of a dtype in zarr; empty if zarr has no such elements.
std::optional<std::string_view> zarr_dtype_name(DType dtype) noexcept;

/// Returns the name of a chunk: "1.0.2", or "0" for no axes.
std::string zarr_chunk_name(ShapeView position);
/// The inverse of zarr_chunk_name() for `dims` axes; empty for any name that it does not write.
std::optional<Shape> parse_zarr_chunk_name(std::string_view name, std::size_t dims);

}  // namespace dckpt
