#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mapping/base/finding.h"
#include "migration/maps/numbers/map_numbers.h"
#include "operations/convert/conversion_request.h"
#include "operations/convert/convert_target.h"
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
/// The findings say what goes along and what does not, and where config.json, which gets the
/// entries `config`, and the tensors `written` disagree. Throws CheckpointError (io).
ModelFolder model_folder(const CheckpointReader& source, const Metadata& written,
                         const std::vector<ConfigEntry>& config, ChosenTarget& target,
                         const ConversionRequest& request);

/// Reports the files in the source's folder, and those `beside` it, that are neither read nor
/// copied nor reported already: an optimizer, a framework's own state, weights in another format.
void name_files_left(const CheckpointReader& source, ModelFolder& folder,
                     const std::vector<std::string>& beside);

}  // namespace dckpt
