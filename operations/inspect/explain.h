#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/api.h"
#include "migration/maps/sides/map_rule.h"
#include "operations/inspect/inspect.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// A tensor or an object that is related to another one.
struct RelatedEntry {
  std::string relation;  ///< "model tensor", "exp_avg", "extra state"
  std::string key;
};

/// The part of a key that a data file holds.
struct FileShare {
  std::string file;
  std::optional<int> rank{};  ///< rank that wrote it, if the file's name tells
  std::size_t chunks = 0;
  std::uint64_t bytes = 0;  ///< as stored
};

/// The location of one key's bytes, its chunks, and related keys.
struct Explanation {
  std::string key;
  bool is_object = false;
  DType dtype = DType::kFloat32;  ///< of a tensor, as are the next fields
  Shape shape;                    ///< shape of the whole tensor
  std::uint64_t bytes = 0;        ///< size of its elements; of an object as stored
  bool flattened = false;         ///< see TensorSummary
  Shape stored_shape;
  /// Pieces along each axis of the stored shape, if the chunks are the cells of a grid.
  std::optional<Shape> grid{};
  std::vector<ChunkSummary> chunks;  ///< for an object, one without a box
  std::vector<FileShare> files;      ///< in the order of their names
  std::vector<RelatedEntry> related;
  std::optional<MapRule> rule{};  ///< set with a map: the rule that it applies to the tensor
};

/// Explains a tensor's key, or an object's unique key. Reads metadata only. Throws CheckpointError
/// (invalid argument) for a key that is not there, naming the nearest ones.
[[nodiscard]] Explanation explain(const CheckpointReader& reader, std::string_view key);

/// Explains with `options.map` a key of the checkpoint or one that the map makes, including the
/// rule.
[[nodiscard]] Explanation explain(const Location& location, const OpenOptions& options,
                                  std::string_view key);

}  // namespace dckpt
