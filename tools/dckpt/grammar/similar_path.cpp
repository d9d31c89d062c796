#include "tools/dckpt/grammar/similar_path.h"

#include <filesystem>
#include <vector>

#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/text.h"

namespace dckpt::tool {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostEntries = 10'000;  // entries of a folder that are examined

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder.empty() ? fs::path(".") : folder, error);
  for (; !error && entries != fs::directory_iterator() && names.size() < kMostEntries;
       entries.increment(error))
    names.push_back(entries->path().filename().string());
  return names;
}

/// Returns the entry that may have been meant by `name`.
std::optional<std::string> similar_name(const fs::path& folder, const std::string& name) {
  const std::vector<std::string> names = names_in(folder);
  if (const std::optional<IterationName> iteration = parse_iteration_name(name)) {
    const std::string directory = iteration->directory();
    if (is_there(folder / directory)) return directory;
  }
  return nearest(name, names);
}

}  // namespace

std::optional<std::string> similar_path(const std::string& path) {
  if (path.empty() || path.find("://") != std::string::npos || is_there(path)) return std::nullopt;
  fs::path found;
  for (const fs::path& part : fs::path(path)) {
    if (part.empty() || is_there(found / part)) {
      found /= part;
      continue;
    }
    const std::optional<std::string> close = similar_name(found, part.string());
    if (!close) return std::nullopt;
    found /= *close;
  }
  return found.string();
}

}  // namespace dckpt::tool
