// A torch file as the only file of a torch_checkpointing checkpoint, of a local checkpoint of
// Megatron, and of Megatron's rank folders, joined and split again. The chunks of a checkpoint that
// opens can be read, or are refused.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "migration/rank_folders/join_ranks.h"
#include "migration/rank_folders/split_ranks.h"
#include "strategies/legacy_torch/legacy_reader.h"
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
  if (const std::string folder = parent_name(name); !folder.empty())
    storage->make_directory(folder);
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
  open_and_read("mp_rank_00/model_optim_rng.pt", content, [](const auto& storage) {
    return split_ranks(
               join_ranks(open_legacy_torch(storage)),
               {.pipeline_model_parallel_size = 2, .transformer_impl = TransformerImpl::kLocal})
        .reader;
  });
  return 0;
}
