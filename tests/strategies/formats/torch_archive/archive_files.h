#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>

#include "mapping/base/bytes.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/storage.h"

namespace dckpt::testing {

/// Returns the bytes as an open file with the name "memory:archive.pt".
inline std::unique_ptr<ReadableFile> file_of(ByteView bytes) {
  const std::shared_ptr<Storage> storage = memory_storage();
  const std::unique_ptr<WritableFile> file = storage->create("archive.pt");
  file->append(bytes);
  file->close();
  return storage->open("archive.pt");
}

inline Bytes read_path(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot open " + path.string());
  const std::string text((std::istreambuf_iterator<char>(stream)),
                         std::istreambuf_iterator<char>());
  return to_bytes(text);
}

inline void write_path(const std::filesystem::path& path, ByteView bytes) {
  std::ofstream(path, std::ios::binary)
      .write(as_text(bytes).data(), static_cast<std::streamsize>(bytes.size()));
}

/// Returns a file that real torch wrote; see tests/data/README.md.
inline Bytes torch_file(const std::string& name) {
  return read_path(std::filesystem::path(DCKPT_TEST_DATA) / "torch_files" / name);
}

}  // namespace dckpt::testing
