#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// The data files that a checkpoint's metadata names, compared with the files in its storage.
struct DataFiles {
  struct Truncated {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint64_t needed = 0;  ///< end of the last chunk or object that is stored in it
  };

  std::size_t needed = 0;                ///< files that hold chunks or objects
  std::vector<std::string> missing{};    ///< in the order of the metadata, as all lists here
  std::vector<std::string> irregular{};  ///< links, directories, devices
  std::vector<Truncated> truncated{};

  bool complete() const noexcept {
    return missing.empty() && irregular.empty() && truncated.empty();
  }
};

/// Queries the storage once per file and reads no file. Throws CheckpointError (io).
DataFiles check_data_files(const CheckpointReader& reader);

/// Returns a text for messages: "2 of 16 data files are missing: 'a' and 'b'; …". A single file is
/// named without the count. Empty if nothing is wrong.
std::string describe(const DataFiles& files);

}  // namespace dckpt
