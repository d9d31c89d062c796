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

/// The form in which the values of an item are stored in a rank's file.
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

/// A tensor, and how it is cut. If several meshes that share no rank each have all of it, this is
/// the one with the lowest rank.
struct ItemTensor {
  KeyPath path;  ///< inside the item; empty: the item itself
  DType dtype = DType::kFloat32;
  Shape global_shape;
  /// The parts by rank, without ranks that hold nothing or the same as another.
  std::map<int, LocalPart> parts;
};

/// An item that can be loaded under another layout.
struct Item {
  std::string name;
  std::vector<ItemTensor> tensors;
  std::vector<ItemFile> files;  ///< by rank
};

/// The content of metadata.pkl of torch_checkpointing.
struct ItemIndex {
  std::string version;  ///< "2.0"; versions 1.0 and without number have another form
  int world_size = 1;
  std::vector<Item> items;
};

/// The limit of the ranks of one checkpoint.
inline constexpr int kMaxItemRanks = 1 << 20;

/// Returns the name of an item's file: "step_3.pt".
std::string default_item_file(const std::string& item, int rank);

/// Reads the pickle; nothing in it is imported or called. Throws CheckpointError naming the key:
/// (corrupt) for what contradicts itself, file names that leave the checkpoint, two entries for one
/// file, and ranks that are missing; (unsupported) for shardings, formats and dtypes that are not
/// known.
ItemIndex read_item_index(ByteView pickle, const std::string& file_name = "metadata.pkl");

}  // namespace dckpt
