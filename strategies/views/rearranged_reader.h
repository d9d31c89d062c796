#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/finding.h"
#include "mapping/planning/rearrange.h"
#include "mapping/state/value.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/view.h"

namespace dckpt {

/// An object of a rearranged checkpoint: one of the source, or a value made for it.
struct RearrangedObject {
  std::string key;               ///< unique key: as it is stored
  std::size_t position = 0;      ///< position in the source's metadata
  std::optional<Value> value{};  ///< takes the place of the source's object
};

/// The contents of a checkpoint under other keys and shapes.
struct RearrangedContents {
  std::vector<RearrangedTensor> tensors;
  std::vector<RearrangedObject> objects{};
  /// Replaces the source's common state: a dict, or none for nothing.
  std::optional<Value> common{};
  std::optional<Conventions> conventions{};  ///< replace the source's
  /// The paths of keys where keys are paths, as in Metadata.
  std::vector<std::pair<std::string, KeyPath>> paths{};
};

/// Returns the checkpoint `source` under other keys and shapes, as a reader like any other, so it
/// can be loaded, converted, compared and verified. Throws as rearrange() does.
std::unique_ptr<CheckpointReader> rearranged_reader(std::unique_ptr<CheckpointReader> source,
                                                    RearrangedContents contents);

/// Contents for rearranged_view(), and findings about how they were chosen.
struct Rearrangement {
  RearrangedContents contents;
  Findings findings{};
};
View rearranged_view(std::unique_ptr<CheckpointReader> source, Rearrangement made);

}  // namespace dckpt
