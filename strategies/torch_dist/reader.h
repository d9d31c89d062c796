#pragma once

#include <cstdint>
#include <memory>

#include "configs/policy/conventions.h"
#include "mapping/base/enum_names.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// The metadata file of torch_dist and DCP directories.
inline constexpr const char* kMetadataFile = ".metadata";

inline constexpr Conventions kTorchDistConventions{.records = true, .megatron_keys = true};
inline constexpr Conventions kDcpConventions{
    .keys_are_paths = true, .objects_in_lists = false, .records = true};

/// The treatment of an fsdp_dtensor checkpoint that lacks the layers of all pipeline stages but one
/// (see fsdp_dtensor.h).
enum class StageLocal : std::uint8_t {
  kRefuse,
  kKeep,      ///< layers as they are stored
  kRenumber,  ///< layers under their numbers in the model
};
inline constexpr EnumNames<StageLocal, 3> kStageLocalNames{{{StageLocal::kRefuse, "refuse"},
                                                            {StageLocal::kKeep, "keep"},
                                                            {StageLocal::kRenumber, "renumber"}}};

/// The treatment of a record, or common.pt, that is not the one with which .metadata was written.
enum class MixedSaves : std::uint8_t { kRefuse, kAccept };
inline constexpr EnumNames<MixedSaves, 2> kMixedSavesNames{
    {{MixedSaves::kRefuse, "refuse"}, {MixedSaves::kAccept, "accept"}}};

struct TorchDistReadOptions {
  /// If set, a reformulated flattened tensor whose metadata has lost the original shape gets it
  /// from the model tensor that its key ends with ("optimizer.state.exp_avg.X" from "X"), if the
  /// stored size allows it. Applies only to Megatron's checkpoints, and to keys with "optimizer"
  /// before X.
  bool recover_flattened_shapes = true;
  StageLocal stage_local = StageLocal::kRefuse;
  MixedSaves mixed_saves = MixedSaves::kRefuse;
};

/// Opens the root of `storage` as a torch_dist checkpoint (with Megatron's metadata.json) or as a
/// plain DCP directory (without). Throws CheckpointError: (incomplete) without .metadata,
/// (corrupt), (unsupported) for another backend or version.
std::unique_ptr<CheckpointReader> open_torch_dist(std::shared_ptr<Storage> storage,
                                                  const TorchDistReadOptions& options = {});

}  // namespace dckpt
