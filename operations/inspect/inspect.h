#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/open/key_filter.h"
#include "dist_checkpointing/verify/data_files.h"
#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"
#include "operations/inspect/modelopt.h"
#include "operations/inspect/run_facts.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// A stored piece of a tensor: its box in the stored tensor, and the file range of its bytes.
struct ChunkSummary {
  Box box;
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

struct TensorSummary {
  std::string key;
  DType dtype = DType::kFloat32;
  Shape shape;              ///< shape of the whole tensor
  std::uint64_t bytes = 0;  ///< size of its elements
  std::size_t chunk_count = 0;
  bool flattened = false;  ///< stored as flattened ranges, reformulated as Megatron does; chunk
                           ///< boxes are in `stored_shape`
  Shape stored_shape;
  std::vector<ChunkSummary> chunks;  ///< filled if InspectOptions::chunks
};

struct ObjectSummary {
  std::string key;
  std::uint64_t bytes = 0;  ///< as stored
};

struct FileSummary {
  std::string name;  ///< relative to the checkpoint
  std::uint64_t bytes = 0;
  /// Bytes of a data file that belong to no record: removed keys, padding. For formats whose data
  /// files are sequences of records (torch_dist, dcp).
  std::optional<std::uint64_t> unused{};
  std::int64_t modified = 0;  ///< as FileInfo::modified
};

/// Returns every regular file below a storage's root. Throws CheckpointError: (unsupported) for
/// directories that are nested too deep, (io).
std::vector<FileSummary> list_files(const Storage& storage);

/// Tensors and objects of one kind of content.
struct GroupTotal {
  std::size_t tensors = 0;
  std::size_t objects = 0;
  std::uint64_t elements = 0;  ///< elements of the tensors
  std::uint64_t bytes = 0;     ///< size of elements, and of objects as stored

  bool empty() const noexcept { return tensors + objects == 0; }
};

enum class ContentGroup : std::uint8_t {
  kWeights,     ///< tensors of no other group
  kOptimizer,   ///< see is_optimizer_key()
  kRng,         ///< states of random number generators
  kExtraState,  ///< Transformer Engine's "*._extra_state"
  kOther,       ///< objects of no other group
};
inline constexpr EnumNames<ContentGroup, 5> kContentGroupNames{
    {{ContentGroup::kWeights, "weights"},
     {ContentGroup::kOptimizer, "optimizer"},
     {ContentGroup::kRng, "RNG state"},
     {ContentGroup::kExtraState, "extra state"},
     {ContentGroup::kOther, "other objects"}}};
/// Returns the group of a tensor's key or an object's unique key.
ContentGroup content_group(std::string_view key, bool is_object);

/// The optimizer's state, if any is stored.
struct OptimizerSummary {
  std::string name{};                 ///< in the spelling of the run's args: "adam"
  std::vector<std::string> states{};  ///< names of its tensors: "exp_avg", "fp32_param"
  std::string sharding{};  ///< Megatron's name for it, also if only the common state has it
  /// Parallel sizes that a run resuming it may change, as text for messages: "TP, PP, EP, DP", "DP
  /// only", "no, because …"; empty if its form is unknown.
  std::string reshardable{};
};

/// Releases that can load a checkpoint, as text for messages: "Megatron-Core 0.8 to 0.15, under any
/// layout"; empty if none is known or nothing is stored.
struct Readers {
  std::string model{};
  std::string optimizer{};
};

struct CheckpointSummary {
  CheckpointInfo info;
  std::vector<TensorSummary> tensors;
  std::vector<ObjectSummary> objects;
  /// Every regular file below the checkpoint, even if it does not belong to it; for a single file
  /// (CheckpointInfo::single_file), only that file.
  std::vector<FileSummary> files;
  DataFiles data_files;
  /// Data files that nothing in the metadata refers to; for formats whose data files are sequences
  /// of records (torch_dist, dcp).
  std::vector<std::string> unreferenced;
  Value common;  ///< none if the format has no common state
  std::array<GroupTotal, kContentGroupNames.size()> groups{};  ///< by ContentGroup
  bool has_optimizer = false;  ///< any key is an optimizer key, selected or not
  OptimizerSummary optimizer;
  RunFacts run;
  std::optional<ModelOptState> modelopt;
  Readers readers;

  const GroupTotal& group(ContentGroup which) const {
    return groups.at(static_cast<std::size_t>(which));
  }
};

struct InspectOptions {
  KeyFilter keys{};  ///< selects tensors and objects; totals count only these
  bool chunks = false;
};

/// Returns the contents of a checkpoint, from its metadata and its directory; reads no tensor.
/// Throws CheckpointError if the common state or the directory cannot be read.
[[nodiscard]] CheckpointSummary inspect(const CheckpointReader& reader,
                                        const InspectOptions& options = {});

}  // namespace dckpt
