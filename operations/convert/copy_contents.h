#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "configs/policy/rename.h"
#include "dist_checkpointing/open/key_filter.h"
#include "mapping/base/bytes.h"
#include "mapping/base/finding.h"
#include "mapping/base/key_path.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "strategies/contract/common_state.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// An object to write: one of the source, bytes that were made for the result, or the stored record
/// of an unusual tensor (not a plain one), in a tensor's place.
struct ObjectSource {
  std::size_t position = 0;
  std::optional<Bytes> bytes{};
  std::optional<StorageInfo> record{};
};

/// The part of a checkpoint that its copy contains, under the names there, with its sources.
struct CopyContents {
  Metadata metadata;                    ///< tensors and objects
  std::vector<std::size_t> tensor_of;   ///< positions in the source
  std::vector<ObjectSource> object_of;  ///< parallel to Metadata::objects
  std::uint64_t left_out = 0;           ///< tensors and objects
  std::uint64_t state_left_out = 0;     ///< those of the optimizer among them
  std::string trainer{};                ///< the trainer that has these keys; empty: not known
  Findings findings{};                  ///< findings about the selection and its changes

  // Set once the common state has the form of the copy (common_form.h):
  Value common;                              ///< none if there is none
  std::optional<CommonState> common_file;    ///< set if it is kept beside the objects
  std::optional<std::size_t> common_object;  ///< its position in `object_of` if it is an object
};

/// Returns the contents that `keys` selects. Throws CheckpointError, also (corrupt) if paths decide
/// what is common state and contradict each other.
CopyContents select_contents(const CheckpointReader& source, const KeyFilter& keys);

/// Throws CheckpointError (corrupt) unless the stored chunks make up the tensors.
void require_coverage(const CopyContents& contents, const std::string& source);

/// Returns the contents under other names. A finding says how many if there are rules. Throws
/// CheckpointError (mismatch) if several keys get the same name.
CopyContents rename_contents(CopyContents contents, std::span<const RenameRule> rules);

/// Returns the contents for a format of tensors alone, without the objects. The findings name
/// everything that the format cannot store, including the common state. Throws CheckpointError
/// (invalid argument) rather than lose a tensor: for objects with tensors, for a common state with
/// tensors unless the keys are `chosen` by patterns, and if no tensor is left.
CopyContents tensors_only(CopyContents contents, const CheckpointReader& source, bool chosen);

/// Returns the contents as a checkpoint: the remaining parts of `source` under their new names,
/// with the contents' common state.
std::unique_ptr<CheckpointReader> reader_of(const CopyContents& contents,
                                            std::unique_ptr<CheckpointReader> source);

/// Gives chunks of one size to tensors that have others, for formats that need them: cut along the
/// first axis alone (layers), or whole. The chunks are then a plan of what to store.
void make_chunks_equal(Metadata& metadata);

/// Joins the chunks of tensors that a map has cut into many small ones, row by row: one per matrix
/// of a stack remains. The chunks are then a plan of what to store.
void join_small_chunks(Metadata& metadata);

}  // namespace dckpt
