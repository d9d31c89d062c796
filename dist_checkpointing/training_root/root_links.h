#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "strategies/storage/storage.h"

namespace dckpt {

/// The links directly in a training root that lead to other directories of it: people make
/// `iter_0000040` or `latest` lead to `iter_0000010`.
class RootLinks {
 public:
  /// A link is taken to lead to every directory of the root that has the same time and the same
  /// listing as its target. Throws CheckpointError (io), also if a target cannot be examined.
  explicit RootLinks(Storage& root);

  /// Returns the names of the links that lead to this directory.
  std::vector<std::string> links_to(const std::string& directory) const;
  /// Returns why retention leaves this name alone, as text for messages: it is no directory, or a
  /// link leads to it. Empty if it may be deleted.
  std::optional<std::string> why_kept(const std::string& name) const;
  /// Makes `is_complete` false for a checkpoint that retention has already counted under another
  /// name (iterations_to_delete() of retention.h), beginning with `saved`. For one pass only.
  std::function<bool(std::uint64_t)> once_each(
      std::uint64_t saved, std::function<bool(std::uint64_t)> is_complete) const;

 private:
  std::string target_of(const std::string& name) const;

  struct Link {
    std::string name, target;
  };
  std::vector<Link> links_;
  std::set<std::string> directories_;
};

}  // namespace dckpt
