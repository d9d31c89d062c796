#include "dist_checkpointing/open.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/registry.h"
#include "strategies/storage/posix.h"

namespace dckpt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTrackerFile = "latest_checkpointed_iteration.txt";
constexpr std::uint64_t kMaxTrackerBytes = 4096;
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxIteration = 1'000'000'000'000;

std::string iteration_directory(std::uint64_t iteration) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "iter_%07llu", static_cast<unsigned long long>(iteration));
  return name.data();
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\f\v";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

bool names_directory(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// The directory that a tracker file names: "release", or an iteration.
std::string tracked_directory(const Storage& root) {
  const auto file = root.open(kTrackerFile);
  const Bytes content = read_file(*file, kMaxTrackerBytes);
  const std::string_view text = stripped(as_text(content));
  if (text == "release") return "release";
  const auto iteration = parse_u64(text);
  if (!iteration || *iteration > kMaxIteration) {
    throw CheckpointError(ErrorCode::kCorrupt, "Invalid metadata file: the tracker holds " + dckpt::quoted(text, 60) + " instead of an iteration or 'release'; name the checkpoint's own directory, or mend the file",
                          {.file = file->name()});
  }
  return iteration_directory(*iteration);
}

fs::path resolve_root(const fs::path& root, const OpenOptions& options) {
  const auto storage = posix_storage(root);
  if (!options.iteration && !storage->stat(kTrackerFile)) return root;
  const std::string name = options.iteration ? iteration_directory(*options.iteration) : tracked_directory(*storage);
  if (!names_directory(root / name)) {
    throw CheckpointError(ErrorCode::kIncomplete,
                          options.iteration ? "there is no " + dckpt::quoted(name) + " in this directory"
                                            : std::string(kTrackerFile) + " names " + dckpt::quoted(name) + ", which does not exist; choose another with --iteration",
                          {.file = root.string()});
  }
  return root / name;
}

/// Files that belong to a checkpoint directory; a user who names one of them means the directory.
bool is_part_of_directory(const fs::path& file) {
  const std::string name = file.filename().string();
  return name == ".metadata" || name == kConfigFile || name == kIntegrityFile || name.ends_with(".distcp") ||
         ((name == "common.pt" || name == kTrackerFile) && (fs::exists(file.parent_path() / kConfigFile) || name == kTrackerFile));
}

[[noreturn]] void throw_unrecognised(std::span<const FileInfo> entries, const fs::path& path) {
  const bool has_data = std::any_of(entries.begin(), entries.end(), [](const FileInfo& entry) { return entry.name.ends_with(".distcp"); });
  const bool has_iterations = std::any_of(entries.begin(), entries.end(), [](const FileInfo& entry) { return entry.name.starts_with("iter_"); });
  std::string message = "is not a distributed checkpoint: ";
  if (entries.empty()) {
    message += "the directory is empty";
  } else if (has_data) {
    message += "it holds data files (*.distcp), but neither .metadata nor metadata.json; the save was interrupted before it finished";
  } else if (has_iterations) {
    message += "it holds iterations (iter_*), but no " + std::string(kTrackerFile) + "; choose one with --iteration, or name its directory";
  } else {
    message += "there is no metadata.json, .metadata or mp_rank_* in it";
  }
  throw CheckpointError(ErrorCode::kIncomplete, dckpt::quoted(path.string()) + " " + message, {.file = path.string()});
}

}  // namespace

fs::path resolve_checkpoint(const fs::path& path, const OpenOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    throw CheckpointError(ErrorCode::kIo, "Checkpoint directory " + dckpt::quoted(path.string()) + " does not exist", {.file = path.string()});
  }
  if (error) throw CheckpointError(ErrorCode::kIo, "cannot look at the checkpoint: " + error.message(), {.file = path.string()});
  if (status.type() == fs::file_type::directory) return resolve_root(path, options);
  if (status.type() != fs::file_type::regular) {
    throw CheckpointError(ErrorCode::kCorrupt, "neither a directory nor a regular file", {.file = path.string()});
  }
  if (is_part_of_directory(path)) return resolve_root(path.has_parent_path() ? path.parent_path() : fs::path("."), options);
  return path;
}

std::unique_ptr<CheckpointReader> open_checkpoint(const fs::path& path, const OpenOptions& options) {
  const fs::path resolved = resolve_checkpoint(path, options);
  OpenHints hints;
  hints.recover_flattened_shapes = options.recover_flattened_shapes;
  if (!names_directory(resolved)) {
    hints.file = resolved.filename().string();
    const auto storage = posix_storage(resolved.has_parent_path() ? resolved.parent_path() : fs::path("."));
    return with_context({.file = resolved.string()}, [&] { return find_format("torch").open(storage, hints); });
  }
  const std::shared_ptr<Storage> storage = posix_storage(resolved);
  if (storage->stat(kConfigFile)) {
    const auto file = storage->open(kConfigFile);
    const CheckpointingConfig config = read_checkpointing_config(read_file(*file, kMaxConfigBytes), file->name());
    const Format& format = with_context({.file = file->name()}, [&]() -> const Format& { return find_format(config.sharded_backend, config.sharded_backend_version); });
    return format.open(storage, hints);
  }
  const std::vector<FileInfo> entries = storage->list("");
  for (const Format& format : registered_formats()) {
    if (format.recognises && format.recognises(entries)) return format.open(storage, hints);
  }
  throw_unrecognised(entries, resolved);
}

}  // namespace dckpt
