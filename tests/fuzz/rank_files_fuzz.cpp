// A torch file as the only one of a checkpoint of torch_checkpointing, and of a local one of
// Megatron. The chunks of what opens can be read, or are refused.

#include <cstddef>
#include <cstdint>

#include "mapping/base/error.h"
#include "strategies/local/local_reader.h"
#include "strategies/storage/memory.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/torch_checkpointing/reader.h"

namespace {

using namespace dckpt;

constexpr std::uint64_t kMaxRead = std::uint64_t{1} << 24;

template <typename Open>
void open_and_read(const char* name, ByteView content, Open open) {
  const auto storage = memory_storage();
  const auto file = storage->create(name);
  file->append(content);
  file->close();
  try {
    const auto reader = open(storage);
    for (std::size_t i = 0; i < reader->metadata().objects.size(); ++i) reader->object(i);
    for (std::size_t i = 0; i < reader->metadata().tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = reader->metadata().tensors[i];
      for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
        if (tensor.places[chunk].length < kMaxRead) read_box(*reader, i, tensor.chunks[chunk]);
      }
    }
  } catch (const CheckpointError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView content(reinterpret_cast<const std::byte*>(data), size);
  open_and_read("m_0.pt", content, open_torch_checkpointing);
  open_and_read("iter_0000001_0_local.pt", content,
                [](const auto& storage) { return open_local(storage); });
  return 0;
}
