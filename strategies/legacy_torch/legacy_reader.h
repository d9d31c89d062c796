#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Opens a checkpoint of Megatron's oldest format, "torch", for reading, or any file that
/// torch.save wrote:
///
///     mp_rank_00/model_optim_rng.pt          one folder per model-parallel rank:
///                                            mp_rank_<tp>[_<pp>][_<ep>]
///     mp_rank_00/distrib_optim.pt            and any other .pt files there
///
/// Every tensor in the nested state is a tensor of the checkpoint, of one chunk, under its path:
/// "model.language_model.embedding.weight". With several ranks, each of which holds its own part,
/// the key begins with the folder: "mp_rank_00_001/model.…". Tensors in files other than
/// model_optim_rng.pt have the file's stem in front: "distrib_optim.0.(torch.bfloat16,
/// torch.float32).param". The common state is the rest (see extract_tensors): the file's own for a
/// single file, else a dict of them by the files' relative names. There are no objects.
///
/// `file` selects only this file, anywhere below the storage's root. Reads the pickles, but not the
/// tensors' bytes. Throws CheckpointError: (incomplete) without a rank folder or without files in
/// one; (corrupt), (unsupported) as load_torch_file does, and if two tensors have the same path; as
/// check_rank_grid does for folders that are missing, misplaced or copies.
std::unique_ptr<CheckpointReader> open_legacy_torch(std::shared_ptr<const Storage> storage,
                                                    const std::optional<std::string>& file = {});

/// The files of a model of Hugging Face that torch.save wrote, "pytorch_model.bin" or several.
struct TorchModelFiles {
  std::vector<std::string> files;
  std::optional<std::string> index_file{};
  /// The index's content: key → file.
  std::vector<std::pair<std::string, std::string>> weight_map{};
  std::vector<std::string> adapter_files{};  ///< CheckpointInfo::adapter_files
};

/// Opens the files as one checkpoint. Tensors keep their names, each in one file; everything else
/// in the files is the common state, as above. Throws CheckpointError as open_legacy_torch does,
/// and (corrupt) if an index and its files disagree.
std::unique_ptr<CheckpointReader> open_torch_model(std::shared_ptr<const Storage> storage,
                                                   const TorchModelFiles& model);

/// Returns whether a folder has the name of a model-parallel rank's folder: "mp_rank_00",
/// "mp_rank_00_001", "mp_rank_00_001_002".
bool is_rank_folder(const std::string& name);

}  // namespace dckpt
