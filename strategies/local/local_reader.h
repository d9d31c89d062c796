#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Returns whether directories among the entries may be those of the ranks in a session of
/// Megatron's local checkpoints, or files among them those of one rank.
bool may_be_local_checkpoint(std::span<const FileInfo> entries);

/// Returns whether local files are in the directory or in ranks' directories in it; other files may
/// be beside them.
bool is_local_checkpoint(const Storage& directory);

/// Opens Megatron's "local" non-persistent checkpoints, as NVRx's LocalCheckpointManager leaves
/// them on the nodes:
///
///     0/iter_0000010_0_local.pt          DIRECTORY_RANK/iter_ITERATION_RANK_local.pt
///     0/iter_0000010_1_local.pt          copies of other ranks' files may lie there, too
///     1/iter_0000010_1_local.pt
///
/// Each file holds an MCoreTensorAwareStateDict: the common state, and the rank's sharded tensors
/// and objects, or those of them that it has to write. Together they are a checkpoint under
/// Megatron's keys. `iteration` defaults to the newest one of which every rank's file is there, if
/// need be as a copy. The number of an iteration's ranks is in its args (world_size); without args,
/// it is the number that the files of all iterations name.
///
/// Reads the pickles, but not the tensors' bytes. Throws CheckpointError: (incomplete) if no
/// iteration is complete or the chosen one is not, (corrupt), (unsupported) as load_torch_file does
/// and for a state dict of another class or whose tensors were taken out.
std::unique_ptr<CheckpointReader> open_local(std::shared_ptr<const Storage> storage,
                                             std::optional<std::uint64_t> iteration = std::nullopt);

}  // namespace dckpt
