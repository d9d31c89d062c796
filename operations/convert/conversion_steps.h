#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/open/key_filter.h"
#include "mapping/base/finding.h"
#include "migration/maps/mapped_reader.h"
#include "migration/maps/numbers/map_numbers.h"
#include "operations/convert/conversion_request.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/copy_contents.h"
#include "operations/convert/model/model_folder.h"
#include "operations/convert/source/adapter_to_merge.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/view.h"

namespace dckpt {

/// A checkpoint on its way from a source to the plan of its copy.
struct Draft {
  Route route;                               ///< the source, and where the copy goes
  std::unique_ptr<CheckpointReader> reader;  ///< as the steps so far show it
  KeyFilter keys{};                          ///< what is selected of it, in its keys
  Metadata source_keys{};                    ///< other keys that patterns may name: before a map
  std::optional<AdapterToMerge> adapter{};   ///< that has yet to be merged
  std::string usual_format{};         ///< the format that a map's keys suggest; empty: the source's
  std::string trainer{};              ///< the trainer whose keys a map has made; empty: no other
  std::function<RoundTrip()> back{};  ///< goes back through the map; empty unless that is checked
  RoundTrip trip{};                   ///< while it is checked
  ChosenTarget target{};
  CopyContents contents{};            ///< what is selected, in the names and the form of the target
  std::vector<ConfigEntry> config{};  ///< entries that config.json must have, by the map
  std::vector<std::string> beside{};  ///< files of the same state beside the checkpoint's folder
  ModelFolder folder{};
  std::uint64_t memory = 0;  ///< the part of ConvertLimits::memory that is left for the copy
  Progress progress{};       ///< of the copy, which continues that of a round trip
  Findings findings{};       ///< of the step that is taken
};

/// Replaces what the draft shows, and keeps the findings.
void show(Draft& draft, View view);

/// Take the applicable steps in their order; each shows the checkpoint in another form, and none is
/// taken twice. Those of the source combine what was opened with other models and give keys other
/// names by a map; on request, more steps go back through that map and compare. Those of the
/// target, once it is chosen, make the planned contents. Each step is added to `report`. Throw
/// CheckpointError as the steps do.
void take_source_steps(Draft& draft, const ConversionRequest& request, ConvertReport& report);
void take_target_steps(Draft& draft, const ConversionRequest& request, ConvertReport& report);

/// Adds a step and its findings, unless it does nothing and finds nothing.
void add_step(ConvertReport& report, std::string name, std::string does, Findings findings);

}  // namespace dckpt
