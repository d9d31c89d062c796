// metadata.pkl of torch_checkpointing. Shards of accepted metadata are inside their tensors, and
// files inside the checkpoint.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "strategies/torch_checkpointing/index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  ItemIndex index;
  try {
    index = read_item_index({reinterpret_cast<const std::byte*>(data), size});
  } catch (const CheckpointError&) {
    return 0;
  }
  for (const Item& item : index.items) {
    if (item.files.size() != static_cast<std::size_t>(index.world_size)) std::abort();
    for (const ItemFile& file : item.files) name_components(file.name);
    for (const ItemTensor& tensor : item.tensors) {
      for (const auto& [rank, part] : tensor.parts) {
        if (rank < 0 || rank >= index.world_size) std::abort();
        for (const LocalPiece& piece : part.pieces) {
          const Box local{piece.local_offsets, piece.box.sizes};
          if (!fits(piece.box, tensor.global_shape) || !fits(local, part.shape)) std::abort();
        }
      }
    }
  }
  return 0;
}
