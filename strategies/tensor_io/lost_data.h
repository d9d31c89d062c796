#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mapping/planning/metadata.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// The parts of a checkpoint that are lost because data files are missing or too short. Numbers are
/// positions in the metadata.
struct LostData {
  struct Tensor {
    std::uint32_t number = 0;
    std::uint64_t elements = 0;  ///< number of lost elements
  };
  std::vector<std::string> files{};
  std::vector<Tensor> tensors{};
  std::vector<std::uint32_t> objects{};
  bool common_state = false;

  bool empty() const noexcept { return files.empty(); }
  /// Returns for example "data files are missing or too short: '__3_0.distcp'".
  std::string where() const;
};

/// Finds lost data by the sizes of the files that `metadata` names. `metadata` may be a part of the
/// source's.
LostData find_lost_data(const CheckpointReader& source, const Metadata& metadata);

/// Returns a line for each key, with the share of it that is lost.
std::vector<std::string> describe_lost_keys(const LostData& lost, const Metadata& metadata);

/// Throws CheckpointError (incomplete) if bytes of `needed`, which may be a part of the source's
/// metadata, are lost. The message names the files, the keys, the lost share of each, and `why` no
/// data may be missing.
void require_no_lost_data(const CheckpointReader& source, const Metadata& needed,
                          const std::string& why);

}  // namespace dckpt
