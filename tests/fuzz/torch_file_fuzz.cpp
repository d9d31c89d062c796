// torch.save files of any bytes, in the zip and the stream form, and as blobs of one tensor. Loaded
// values must survive saving and loading.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/tensor_blob.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "tests/fuzz/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dckpt::InputFile file(data, size);
  try {
    const dckpt::TensorBlob blob = dckpt::locate_tensor_blob(file, 0, size);
    if (blob.storage_offset + blob.storage_size > size || blob.offset < blob.storage_offset)
      std::abort();
  } catch (const dckpt::CheckpointError&) {
  }
  dckpt::Value value;
  try {
    dckpt::load_torch_file(file, {.lazy = true});
    value = dckpt::load_torch_file(file);
  } catch (const dckpt::CheckpointError&) {
    return 0;
  }
  dckpt::Bytes saved;
  try {
    saved = dckpt::save_torch_file(value);
  } catch (const dckpt::CheckpointError&) {
    return 0;  // some values can be read but not written, such as names with line breaks
  }
  dckpt::load_torch_bytes(saved, "saved again");
  return 0;
}
