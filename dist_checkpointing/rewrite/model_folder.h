#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/convert_target.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// What of a model's folder goes with its tensors: config.json, the tokenizer, whatever else lies
/// there, except weights, indexes, hidden files and folders.
struct ModelFolder {
  std::shared_ptr<const Storage> storage;  ///< null if there is none
  std::vector<std::string> files;
  std::uint64_t bytes = 0;  ///< of all files
};

/// Larger files are left where they are.
inline constexpr std::uint64_t kMaxModelFile = std::uint64_t{128} << 20;

/// That of ConvertOptions::model_files, or else of the source; none if the target is no model's
/// folder. What the source's files say about the model becomes an option of the target's strategy,
/// unless it has that option. Says in `remarks` what goes along and what does not. Throws
/// CheckpointError (invalid argument) for an option that would have no effect, (io).
ModelFolder model_folder(const CheckpointReader& source, ConvertTarget& target,
                         const ConvertOptions& options, std::vector<std::string>& remarks);

}  // namespace dckpt
