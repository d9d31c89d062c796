#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/hash.h"
#include "mapping/base/readable_file.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "strategies/contract/reader.h"
#include "strategies/legacy_torch/rank_grid.h"

namespace dckpt {

/// The files of rank folders as open_legacy_torch shows them, with their ranks and their content
/// besides tensors. The reader must outlive it.
class RankFiles {
 public:
  struct File {
    std::string stem;
    ModelParallelRank rank;
    bool is_main = false;
  };

  explicit RankFiles(const CheckpointReader& ranks);

  const CheckpointReader& reader() const { return ranks_; }
  const Metadata& metadata() const { return metadata_; }
  /// The files of the metadata, in the same order.
  const std::vector<File>& files() const { return files_; }
  const File& file_of(std::uint32_t tensor) const;
  /// The number of ranks of each kind.
  const ModelParallelRank& sizes() const { return sizes_; }
  /// True if folders have two numbers, whose meaning only args tell.
  bool ambiguous_folders() const { return ambiguous_folders_; }

  /// The position of the file with the common state, and the args; null if there are none.
  std::size_t main() const { return main_; }
  const Value* args() const { return args_; }
  /// Returns whether args set a flag.
  bool flag(const char* name) const;

  /// Returns a file's state without its tensors.
  const Value& state(std::size_t file) const;
  /// Returns a tensor's path inside its file, without folder and stem.
  std::string_view path_in_file(std::uint32_t tensor) const;

  /// A file's state, with tensors that have not been read.
  struct Loaded {
    std::unique_ptr<ReadableFile> file;
    std::vector<RecordedCrc> records{};
    Value state{};

    /// Returns `part` of the state with its tensors read.
    Value with_tensors(const Value& part) const;
  };
  Loaded load(std::size_t file) const;

 private:
  const CheckpointReader& ranks_;
  const Metadata& metadata_;
  const Value states_;
  std::vector<File> files_;
  ModelParallelRank sizes_{1, 1, 1};
  bool ambiguous_folders_ = false;
  std::size_t main_ = 0;
  const Value* args_ = nullptr;
};

}  // namespace dckpt
