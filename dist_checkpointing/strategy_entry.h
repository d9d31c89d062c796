#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "configs/capabilities.h"
#include "configs/conventions.h"
#include "configs/options.h"
#include "mapping/base/api.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/views/view.h"

namespace DCKPT_API dckpt {

/// A backend that can save checkpoints.
struct SaveStrategyEntry {
  std::string name;  ///< what policies call it: save.strategy
  int version = 1;
  std::string about;  ///< one line
  Capabilities capabilities{};
  Conventions conventions{};
  /// Name of the strategy that serves Compat::kDcp in its place; empty: it does so itself, if it
  /// can (Capabilities::compat).
  std::string plain_dcp{};
  /// Makes the strategy for a save. Its own options are in SaveOptions::strategy.options;
  /// read_options() turns them into a struct and reports mistakes.
  std::function<std::unique_ptr<SaveStrategy>(const SaveOptions& options)> make{};
  /// What of a checkpoint a conversion stores, as a reader that shows it so, with what there
  /// is to say of that. For strategies that hold a model in a form of their own, which no save
  /// makes. Empty: the checkpoint as it is.
  std::function<View(std::unique_ptr<CheckpointReader> model, const SaveOptions& options)>
      arrange{};
  /// What write_data() would return for a rank's plan; `nbytes` of an object is about what it will
  /// have. Empty: nobody can tell before it is written.
  std::function<WrittenItems(const SaveOptions& options, int rank, const SavePlan& plan)> measure{};
};

/// How to open a checkpoint.
struct OpenHints {
  /// What load.backend asks for; of a strategy that was detected, nothing but the defaults.
  StrategySpec strategy{.name = std::string(kAutoStrategy)};
  bool recover_flattened_shapes = true;
  /// The file that the user named, if it was a file; single-file formats read only this one.
  std::optional<std::string> file{};
  /// Which of the iterations in one directory; see LoadStrategyEntry::holds_iterations.
  std::optional<std::uint64_t> iteration{};
};

/// A backend that can load checkpoints.
struct LoadStrategyEntry {
  std::string name;             ///< "torch_dist"; also the backend's name in metadata.json
  std::vector<int> versions{};  ///< backend versions in metadata.json that it reads; empty: the
                                ///< format has no metadata.json
  std::string about;            ///< one line
  Capabilities capabilities{};
  /// Whether a directory without metadata.json looks like this format, judged by its entries; a
  /// single file that the user names is the only one. Empty: it always has one, or, without
  /// versions, the strategy is opened by name only (load.strategy), whatever is there.
  std::function<bool(std::span<const FileInfo> entries)> matches{};
  /// Judges a directory that matches by what lies deeper, for formats whose names alone could be
  /// anyone's. Empty: the names decide.
  std::function<bool(const Storage& directory)> holds{};
  /// A directory can hold several iterations, of which OpenHints::iteration chooses one.
  bool holds_iterations = false;
  /// Reads the strategy's own options, with read_options(), and throws for mistakes, so that a
  /// policy is checked before there is a checkpoint. Empty: it has none.
  std::function<void(const StrategySpec&)> check_options{};
  /// Its options are in OpenHints::strategy.options.
  std::function<std::unique_ptr<CheckpointReader>(std::shared_ptr<Storage>, const OpenHints&)>
      open{};
};

}  // namespace dckpt
