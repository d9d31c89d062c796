#pragma once

#include <functional>
#include <optional>
#include <stop_token>

#include "mapping/base/api.h"
#include "mapping/base/phase.h"
#include "mapping/base/progress.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

struct Metadata;
struct FileInfo;

/// Callbacks and data of a trainer for its saves. Every rank passes the same, except for `progress`
/// and `cancel`.
struct SaveHooks {
  /// Applied first, to a copy of each rank's state (tensors are shared, not copied), for example to
  /// remove, rename or wrap entries.
  std::function<StateDict(StateDict state)> preprocess{};
  /// Applied to a copy of each rank's common state before it is compared with rank 0's, to remove
  /// entries that may differ. Does not change what is saved.
  std::function<StateDict(StateDict common)> before_comparison{};
  /// Describes the contents of the state. It is stored in the common state, and
  /// load_content_metadata() returns it. An empty dict is not the same as none.
  std::optional<Value> content_metadata{};
  /// Called on rank 0 before anything is written, with the metadata of all ranks' planned data, and
  /// with the common state unless it is an object or there is none. If it throws, the save is
  /// refused on all ranks with its error.
  std::function<void(const Metadata& planned, const Value* common)> accept{};
  /// Called on rank 0 with the directory that the save is about to replace, in a storage that can
  /// rename. If it throws, the save is refused on all ranks with its error.
  std::function<void(const FileInfo& old)> may_replace{};
  /// Called about twice a second while data is written, in the saving thread, with the bytes of all
  /// ranks: done and total. Optional on each rank.
  Progress progress{};
  /// Receives the phases of this rank's part of the save, in place of or beside set_phase_sink().
  PhaseSink phases{};
  /// A stop requested on any rank cancels the save on all: they throw CheckpointError (cancelled),
  /// and nothing is left of the save. Once it has been published, the request has no effect and the
  /// save succeeds. The request persists: later saves with the same token are cancelled too.
  std::stop_token cancel{};
};

}  // namespace dckpt
