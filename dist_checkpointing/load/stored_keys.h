#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "configs/options.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// Names of what a checkpoint holds, as rules rename them, with their positions in the metadata. Not for several threads at once.
class StoredKeys {
 public:
  /// Throws CheckpointError (mismatch) if the rules give several stored keys the same name.
  StoredKeys(const Metadata& metadata, std::span<const RenameRule> rules);

  /// Positions in Metadata::tensors and Metadata::objects. Objects of Megatron have unique keys, with their place in the grid.
  std::optional<std::uint32_t> tensor(const std::string& key) const { return position(tensors_, key); }
  std::optional<std::uint32_t> object(const std::string& unique_key) const { return position(objects_, unique_key); }

  /// Keys as Megatron compares them: of tensors, and of objects without their grid.
  std::set<std::string> all() const;

  /// A name that is not stored, quoted, with the stored one that is most like it.
  std::string describe_unknown(const std::string& key) const;

 private:
  using Index = std::unordered_map<std::string, std::uint32_t>;

  static std::optional<std::uint32_t> position(const Index& index, const std::string& key);

  Index tensors_;
  Index objects_;
  std::set<std::string> object_keys_;
  mutable std::vector<std::string> names_;  // of both; filled when a name is looked for
};

}  // namespace dckpt
