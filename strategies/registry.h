#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strategies/reader.h"

namespace dckpt {

/// What an opening strategy may be told.
struct OpenHints {
  bool recover_flattened_shapes = true;
  /// The file named by the user, when it was a file; formats of single files read only this one.
  std::optional<std::string> file{};
};

/// A format that checkpoints can be read from, and perhaps written to.
struct Format {
  std::string name;                 ///< "torch_dist"; also the backend's name in metadata.json
  std::string about;                ///< one line
  std::vector<int> versions{};      ///< backend versions in metadata.json that it reads; empty: the format has no metadata.json
  bool writes = false;
  /// Whether a directory without metadata.json looks like this format, from its entries; empty for formats that always have one.
  std::function<bool(std::span<const FileInfo> entries)> recognises{};
  std::function<std::unique_ptr<CheckpointReader>(std::shared_ptr<Storage>, const OpenHints&)> open;
};

/// Adds a format; one of the same name is replaced. Call before other threads read checkpoints.
void register_format(Format format);

/// The built-in formats and those registered since, in the order in which directories are tried.
std::span<const Format> registered_formats();

/// Throws CheckpointError (unsupported) that lists what exists and suggests the nearest name.
const Format& find_format(const std::string& name, std::optional<int> version = std::nullopt);

}  // namespace dckpt
