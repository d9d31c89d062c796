#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "strategies/storage/location.h"

namespace dckpt {

/// What people and trainers keep to find a checkpoint of a training root again, such as the best
/// one: links that lead to it or into it (`iter_0000040`, `latest`, `best/loss`), and files of at
/// most 1 KiB that hold its name (`best.json`). They are found in the root, in folders of it that
/// are not checkpoints (two levels deep), and beside the root. The tracker does not count, and
/// neither do hidden files.
class RootLinks {
 public:
  /// Throws CheckpointError (io).
  explicit RootLinks(const Location& root);

  /// Returns the names of the links that lead to this directory, or into it.
  std::vector<std::string> links_to(const std::string& directory) const;
  /// Returns why retention leaves this name alone, as text for messages: it is no directory, or a
  /// link leads to it, or a file holds its name. Empty if it may be deleted.
  std::optional<std::string> why_kept(const std::string& name) const;
  /// Makes `is_sound` false for a checkpoint that retention has already counted under another name
  /// (iterations_to_delete() of retention.h). For one pass only.
  std::function<bool(std::uint64_t)> once_each(std::function<bool(std::uint64_t)> is_sound) const;

 private:
  struct Link {
    std::string name, target;
    bool is_file = false;
  };

  void look_into(Storage& directory, const std::string& prefix, int levels);
  void add_link(const Storage& directory, const std::string& link, const std::string& shown);
  void add_names(const Storage& directory, const std::string& file, const std::string& shown);
  std::string target_of(const std::string& name) const;

  std::string home_;  ///< the root's resolved name
  std::vector<Link> links_;
  std::set<std::string, std::less<>> directories_;
};

}  // namespace dckpt
