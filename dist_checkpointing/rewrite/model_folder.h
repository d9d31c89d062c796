#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/convert_target.h"
#include "mapping/base/finding.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// The files copied along with tensors. A model's folder gets those of another one:
/// config.json, the tokenizer, and everything else except weights, indexes, hidden files and
/// folders. Megatron's formats and DCP directories get ModelOpt's state (inspect/modelopt.h).
struct ModelFolder {
  std::shared_ptr<const Storage> storage;  ///< null if there is none
  std::vector<std::string> files;
  std::uint64_t bytes = 0;  ///< size of all files
  Findings findings{};
};

/// Larger files are left where they are.
inline constexpr std::uint64_t kMaxModelFile = std::uint64_t{128} << 20;

/// Returns the files to copy. A model's folder is that of ConvertOptions::model_files, or else the
/// source. Facts about the model in the source's files become an option of the target's strategy,
/// unless that option is already set. The findings list the copied and omitted files. Throws
/// CheckpointError (invalid argument) for an option that would have no effect, (io).
ModelFolder model_folder(const CheckpointReader& source, ConvertTarget& target,
                         const ConvertOptions& options);

}  // namespace dckpt
