#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/key_path.h"
#include "mapping/geometry/dtype.h"
#include "mapping/geometry/layout.h"
#include "mapping/geometry/shape.h"

namespace dckpt {

/// How the values of an item are stored in a rank's file.
enum class ItemForm : std::uint8_t {
  kTorch,        ///< torch.save
  kSafetensors,  ///< tensors under their dotted paths
  kJson,
  kRaw,  ///< bytes
};

struct ItemFile {
  std::string name;  ///< relative to the checkpoint
  ItemForm form = ItemForm::kTorch;
};

/// How a tensor is cut. Of several meshes that share no rank, each has all of it: this is the one
/// with the lowest rank.
struct ItemTensor {
  KeyPath path;  ///< inside the item; empty: the item itself
  DType dtype = DType::kFloat32;
  Shape global_shape;
  /// By rank. Ranks that hold the same as another, or nothing, are left out.
  std::map<int, LocalPart> parts;
};

/// An item that can be loaded under another layout.
struct Item {
  std::string name;
  std::vector<ItemTensor> tensors;
  std::vector<ItemFile> files;  ///< by rank
};

/// metadata.pkl of torch_checkpointing.
struct ItemIndex {
  std::string version;  ///< "2.0"; versions 1.0 and without number have another form
  int world_size = 1;
  std::vector<Item> items;
};

/// Ranks of one checkpoint.
inline constexpr int kMaxItemRanks = 1 << 20;

/// "step_3.pt"
std::string default_item_file(const std::string& item, int rank);

/// Reads the pickle; nothing in it is imported or called. Throws CheckpointError naming the key:
/// (corrupt) for what contradicts itself, file names that leave the checkpoint, two entries for one
/// file, and ranks that are missing; (unsupported) for shardings, formats and dtypes that are not
/// known.
ItemIndex read_item_index(ByteView pickle, const std::string& file_name = "metadata.pkl");

}  // namespace dckpt
