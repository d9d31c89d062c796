#include "strategies/legacy_torch/foreign_file.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace dckpt {
namespace {

/// A file of an unsupported format, recognized by its bytes at one offset.
struct ForeignFile {
  std::uint64_t offset = 0;
  std::string_view bytes;
  const char* what;
};

constexpr std::array kForeignFiles = {
    ForeignFile{0, "GGUF",
                "this is a GGUF file of llama.cpp, whose quantized blocks are not read; convert "
                "the safetensors that it was made of"},
    ForeignFile{0, "\x89HDF",
                "this is an HDF5 file, as Keras has them, which is not read; load it there and "
                "save the weights as safetensors"},
    ForeignFile{257, "ustar",
                "this is a tar archive, as NeMo 1 has them (.nemo), which is not read; unpack it "
                "(tar -xf) and name the weights inside (model_weights.ckpt, or the folder "
                "model_weights)"},
};

}  // namespace

std::string describe_foreign_file(const ReadableFile& file) {
  for (const ForeignFile& foreign : kForeignFiles) {
    if (file.size() < foreign.offset + foreign.bytes.size()) continue;
    Bytes found(foreign.bytes.size());
    file.read(foreign.offset, found);
    if (as_text(found) == foreign.bytes) return foreign.what;
  }
  return "";
}

}  // namespace dckpt
