#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "configs/policy/capabilities.h"
#include "configs/policy/conventions.h"
#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "mapping/base/readable_file.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/contract/view.h"

namespace DCKPT_API dckpt {

/// A backend that can save checkpoints.
struct SaveStrategyEntry {
  std::string name;  ///< name in policies: save.strategy
  int version = 1;
  std::string about;  ///< one line
  Capabilities capabilities{};
  Conventions conventions{};
  /// Name of the strategy that serves Compat::kDcp in its place. If empty, it does so itself, if it
  /// can (Capabilities::compat).
  std::string plain_dcp{};
  /// Makes the strategy for a save. Its own options are in SaveOptions::strategy.options;
  /// read_options() turns them into a struct and reports mistakes.
  std::function<std::unique_ptr<SaveStrategy>(const SaveOptions& options)> make{};
  /// Returns the part of a checkpoint that a conversion stores, as a reader with findings. For
  /// strategies that keep a model in a form of their own, which no save makes. If empty,
  /// conversions store the checkpoint unchanged.
  std::function<View(std::unique_ptr<CheckpointReader> model, const SaveOptions& options)>
      arrange{};
  /// Returns what write_data() would return for a rank's plan; `nbytes` of an object is an
  /// estimate. If empty, the result is unknown before writing.
  std::function<WrittenItems(const SaveOptions& options, int rank, const SavePlan& plan)> measure{};
};

/// Settings for opening a checkpoint.
struct OpenHints {
  /// The strategy of load.backend; only the defaults if the strategy was detected.
  StrategySpec strategy{.name = std::string(kAutoStrategy)};
  bool recover_flattened_shapes = true;
  /// The file that the user named, if it was a file; single-file formats read only this one.
  std::optional<std::string> file{};
  /// The iteration in a directory that holds several; see LoadStrategyEntry::holds_iterations.
  std::optional<std::uint64_t> iteration{};
};

/// A backend that can load checkpoints.
struct LoadStrategyEntry {
  std::string name;             ///< such as "torch_dist"; also the backend's name in metadata.json
  std::vector<int> versions{};  ///< backend versions in metadata.json that it reads; empty if the
                                ///< format has no metadata.json
  std::string about;            ///< one line
  Capabilities capabilities{};
  /// Returns whether a directory without metadata.json looks like this format, judged by its
  /// entries; if the user names a single file, that file is the only entry. Empty if the format
  /// always has metadata.json, or, without versions, if the strategy is opened only by name
  /// (load.strategy), whatever the directory contains.
  std::function<bool(std::span<const FileInfo> entries)> matches{};
  /// Names in a directory that tell this format. They are looked for by name too, as a storage
  /// without rename may list them late.
  std::vector<std::string> marks{};
  /// Returns whether this format reads a single file that a user names without naming a format.
  /// Empty if the format has no single files. The first strategy that accepts the file opens it.
  std::function<bool(const ReadableFile& file)> reads_file{};
  /// Judges a directory that matches by its deeper content, for formats whose names alone are
  /// ambiguous. If empty, the names decide.
  std::function<bool(const Storage& directory)> holds{};
  /// True if a directory can hold several iterations, of which OpenHints::iteration chooses one.
  bool holds_iterations = false;
  /// Reads the strategy's own options with read_options() and throws for mistakes, so that a policy
  /// is checked before there is a checkpoint. Empty if it has no options.
  std::function<void(const StrategySpec&)> check_options{};
  /// Opens a checkpoint. The strategy's own options are in OpenHints::strategy.options.
  std::function<std::unique_ptr<CheckpointReader>(std::shared_ptr<Storage>, const OpenHints&)>
      open{};
};

/// What a format registers, in the order of detection.
struct StrategyEntries {
  std::vector<SaveStrategyEntry> save{};
  std::vector<LoadStrategyEntry> load{};
};

}  // namespace dckpt
