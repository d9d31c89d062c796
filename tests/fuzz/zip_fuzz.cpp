// Archives of any bytes: opened, every member read and checked.

#include <cstddef>
#include <cstdint>

#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/zip_reader.h"
#include "tests/fuzz/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dckpt::InputFile file(data, size);
  try {
    const dckpt::ZipArchive archive(file, 0, file.size());
    for (const dckpt::ZipMember& member : archive.members()) {
      try {
        archive.read(member, size);
        archive.check(member);
      } catch (const dckpt::CheckpointError&) {
      }
    }
  } catch (const dckpt::CheckpointError&) {
  }
  return 0;
}
