#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dist_checkpointing/ranks/shared_work.h"
#include "dist_checkpointing/verify/integrity.h"
#include "dist_checkpointing/verify/problems.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// The files that integrity.json lists, compared with what it says about them.
class ListedFiles {
 public:
  /// Reads the manifest, if there is one, and adds its problems to `problems`.
  ListedFiles(const CheckpointReader& reader, Problems& problems);

  /// Returns the sizes of the listed files.
  const std::vector<std::uint64_t>& sizes() const noexcept { return sizes_; }
  /// Returns the bytes that check() reads of each listed file.
  std::vector<std::uint64_t> unread(bool deep) const;
  bool lists(const std::string& file) const { return listed_.contains(file); }
  /// Adds the SHA-256 of a file that was read for its checksums.
  void add_digest(const std::string& file, const std::string& digest) {
    digests_.emplace(file, digest);
  }
  /// Checks that a listed file exists with its size and, if deep, with its digest.
  void check(std::size_t index, bool deep, SharedWork& work, Problems& problems) const;

 private:
  const CheckpointReader& reader_;
  IntegrityManifest manifest_;  // empty if there is none
  std::vector<std::uint64_t> sizes_;
  std::set<std::string> listed_;                // names in the manifest
  std::map<std::string, std::string> digests_;  // for files read for their checksums
};

}  // namespace dckpt
