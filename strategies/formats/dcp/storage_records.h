#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mapping/planning/metadata.h"
#include "strategies/formats/dcp/metadata_graph.h"

namespace dckpt::dcp {

/// The keys of state_dict_metadata, in its order.
class StoredKeys {
 public:
  /// The meaning of a key: a position in the tensors or in the objects.
  struct Entry {
    std::string_view key;  ///< points into the graph
    bool is_tensor = false;
    std::uint32_t position = 0;
  };

  void reserve(std::size_t count);
  /// Throws CheckpointError (corrupt) for a repeated key, (unsupported) for too many keys with one
  /// hash.
  void add(const Entry& entry);
  std::size_t size() const noexcept { return entries_.size(); }
  /// Returns null if the key is unknown.
  const Entry* find(std::string_view key) const;
  /// Returns the entry after `entry`, or the first for null; null if there is none.
  const Entry* next_after(const Entry* entry) const noexcept;

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, std::uint32_t> position_;
};

/// Reads key, value, … of storage_data, {MetadataIndex(key, offset, index):
/// _StorageInfo(relative_path, offset, length)}, into the places and files of `metadata`.
void read_storage_records(const MetadataGraph& graph, std::span<const MetadataGraph::Id> items,
                          const StoredKeys& keys, Metadata& metadata);

}  // namespace dckpt::dcp
