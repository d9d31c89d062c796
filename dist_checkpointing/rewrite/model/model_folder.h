#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dist_checkpointing/rewrite/convert_options.h"
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

/// A model's folder is that of ConvertTarget::model_files, or else the source. What the source's
/// files say about the model becomes an option of the target's strategy, unless it has that option.
/// The findings say what goes along and what does not. Throws CheckpointError (invalid argument)
/// for an option that would have no effect, (io).
ModelFolder model_folder(const CheckpointReader& source, ChosenTarget& target,
                         const ConvertOptions& options);

}  // namespace dckpt
