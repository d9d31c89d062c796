#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist_checkpointing/open/key_filter.h"
#include "mapping/base/finding.h"
#include "migration/maps/numbers/map_numbers.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/copy_contents.h"
#include "operations/convert/model/model_folder.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A checkpoint on its way from a source to the plan of its copy.
struct Draft {
  std::unique_ptr<CheckpointReader> reader;  ///< as the steps so far show it
  KeyFilter keys;                            ///< what is selected of it, in its keys
  Metadata source_keys;                      ///< other keys that patterns may name: before a map
  ChosenTarget target;
  CopyContents contents;            ///< what is selected, in the names and the form of the target
  std::vector<ConfigEntry> config;  ///< entries that config.json must have, by the map
  std::vector<std::string> beside;  ///< files of the same state beside the checkpoint's folder
  ModelFolder folder;
  std::uint64_t memory = 0;  ///< in bytes, for the copy
  Findings findings{};       ///< of the step that is taken
};

/// Takes the applicable steps from the source to the planned contents, in their order; each shows
/// the checkpoint in another form. Each step is added to `report`. Throws CheckpointError as the
/// steps do.
void take_steps(Draft& draft, const ConvertOptions& options, ConvertReport& report);

/// Adds a step and its findings, unless it does nothing and finds nothing.
void add_step(ConvertReport& report, std::string name, std::string does, Findings findings);

}  // namespace dckpt
