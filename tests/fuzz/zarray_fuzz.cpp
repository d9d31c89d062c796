// The description of a zarr array, and the file names beside it.

#include <cstdint>
#include <string_view>

#include "mapping/base/error.h"
#include "strategies/zarr/array_metadata.h"
#include "strategies/zarr/object_name.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const dckpt::ZarrArray array = dckpt::read_zarray(dckpt::as_bytes(text), ".zarray");
    const dckpt::Shape grid = array.grid();
    const std::string again = dckpt::write_zarray(array);
    if (dckpt::read_zarray(dckpt::as_bytes(again), ".zarray").chunk != array.chunk)
      __builtin_trap();
    if (dckpt::checked_numel(grid).value_or(0) > 0) array.chunk_box(dckpt::Shape(grid.size(), 0));
  } catch (const dckpt::CheckpointError&) {
  }
  for (const std::size_t dims : {0, 1, 3}) dckpt::parse_zarr_chunk_name(text, dims);
  dckpt::parse_zarr_object_name(text);
  return 0;
}
