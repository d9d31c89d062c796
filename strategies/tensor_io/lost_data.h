#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mapping/planning/metadata.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// What of a checkpoint is lost because data files are missing or too short. Numbers are positions
/// in the metadata.
struct LostData {
  struct Tensor {
    std::uint32_t number = 0;
    std::uint64_t elements = 0;  ///< that are lost
  };
  std::vector<std::string> files{};
  std::vector<Tensor> tensors{};
  std::vector<std::uint32_t> objects{};
  bool common_state = false;

  bool empty() const noexcept { return files.empty(); }
  /// "data files are missing or too short: '__3_0.distcp'"
  std::string where() const;
};

/// Looks at the sizes of the files that `metadata`, which may be a part of the source's, names.
LostData find_lost_data(const CheckpointReader& source, const Metadata& metadata);

/// A line for each key, with the share of it that is lost.
std::vector<std::string> describe_lost_keys(const LostData& lost, const Metadata& metadata);

/// Throws CheckpointError (incomplete), which names the files, the keys with the share that is lost
/// of each, and `why` none may be, if bytes of `needed` are lost, which may be a part of the
/// source's metadata.
void require_no_lost_data(const CheckpointReader& source, const Metadata& needed,
                          const std::string& why);

}  // namespace dckpt
