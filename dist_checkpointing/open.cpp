#include "dist_checkpointing/open.h"

#include <algorithm>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/local_path.h"
#include "mapping/base/text.h"
#include "strategies/contract/registry.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/storage/posix.h"

namespace dckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;

bool names_directory(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

fs::path resolve_root(const fs::path& root, const OpenOptions& options) {
  const std::optional<std::string> name =
      options.iteration ? options.iteration->directory() : read_tracker(*posix_storage(root));
  if (!name) return root;
  if (names_directory(root / *name)) return root / *name;
  std::string message = options.iteration
                            ? "there is no " + dckpt::quoted(*name) + " in this directory"
                            : std::string(kTrackerFile) + " names " + dckpt::quoted(*name) +
                                  ", which does not exist; choose another with --iteration";
  throw CheckpointError(ErrorCode::kIncomplete,
                        message + "; there are " + describe_iterations(list_iterations(root)),
                        {.file = root.string()});
}

/// Files that belong to a checkpoint directory; a user who names one of them means the directory.
bool is_part_of_directory(const fs::path& file) {
  const std::string name = file.filename().string();
  return name == ".metadata" || name == kConfigFile || name == kIntegrityFile ||
         name.ends_with(".distcp") ||
         ((name == "common.pt" || name == kTrackerFile) &&
          (fs::exists(file.parent_path() / kConfigFile) || name == kTrackerFile));
}

[[noreturn]] void throw_safetensors(const fs::path& path, const std::string& what) {
  throw CheckpointError(ErrorCode::kUnsupported,
                        what + ": safetensors are written (dckpt extract), but not read",
                        {.file = path.string()});
}

/// A safetensors file starts with the length of its header and the header, which is JSON.
bool is_safetensors(const ReadableFile& file) {
  constexpr std::size_t kLengthBytes = 8;
  if (file.name().ends_with(".safetensors")) return true;
  if (file.size() <= kLengthBytes) return false;
  Bytes start(kLengthBytes + 1);
  file.read(0, start);
  return load_le<std::uint64_t>(start, 0) <= file.size() - kLengthBytes &&
         as_text(start).back() == '{';
}

/// Formats of others, told apart from checkpoints that are not complete.
void refuse_foreign(std::span<const FileInfo> entries, const fs::path& path) {
  for (const FileInfo& entry : entries) {
    if (entry.name.ends_with(".safetensors") || entry.name.ends_with(".safetensors.index.json")) {
      throw_safetensors(path, "the directory holds " + dckpt::quoted(entry.name));
    }
    if (entry.name == "metadata.pkl") {
      throw CheckpointError(ErrorCode::kUnsupported,
                            "the directory holds 'metadata.pkl', a checkpoint of "
                            "torch_checkpointing, which is not read",
                            {.file = path.string()});
    }
  }
}

[[noreturn]] void throw_unrecognised(std::span<const FileInfo> entries, const fs::path& path) {
  const bool has_data = std::any_of(entries.begin(), entries.end(), [](const FileInfo& entry) {
    return entry.name.ends_with(".distcp");
  });
  const bool has_iterations =
      std::any_of(entries.begin(), entries.end(),
                  [](const FileInfo& entry) { return entry.name.starts_with("iter_"); });
  std::string message = "is not a distributed checkpoint: ";
  if (entries.empty()) {
    message += "the directory is empty";
  } else if (has_data) {
    message +=
        "it holds data files (*.distcp), but neither .metadata nor metadata.json; the save was "
        "interrupted before it finished";
  } else if (has_iterations) {
    message += "it holds iterations (iter_*), but no " + std::string(kTrackerFile) +
               "; choose one with --iteration, or name its directory";
  } else {
    message += "there is no metadata.json, .metadata or mp_rank_* in it";
  }
  throw CheckpointError(ErrorCode::kIncomplete, dckpt::quoted(path.string()) + " " + message,
                        {.file = path.string()});
}

}  // namespace

fs::path resolve_checkpoint(const fs::path& given, const OpenOptions& options) try {
  const fs::path path = local_path(given);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    throw CheckpointError(
        ErrorCode::kIo, "Checkpoint directory " + dckpt::quoted(path.string()) + " does not exist",
        {.file = path.string()});
  }
  if (error)
    throw CheckpointError(ErrorCode::kIo, "cannot look at the checkpoint: " + error.message(),
                          {.file = path.string()});
  if (status.type() == fs::file_type::directory) return resolve_root(path, options);
  if (status.type() != fs::file_type::regular) {
    throw CheckpointError(ErrorCode::kCorrupt, "neither a directory nor a regular file",
                          {.file = path.string()});
  }
  if (is_part_of_directory(path))
    return resolve_root(path.has_parent_path() ? path.parent_path() : fs::path("."), options);
  if (options.iteration) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          dckpt::quoted(options.iteration->directory()) +
                              " cannot be chosen in a single file; name a training root",
                          {.file = path.string()});
  }
  return path;
} catch (...) {
  throw_checkpoint_error();
}

std::unique_ptr<CheckpointReader> open_checkpoint(const fs::path& path,
                                                  const OpenOptions& options) try {
  const fs::path resolved = resolve_checkpoint(path, options);
  OpenHints hints;
  hints.recover_flattened_shapes = options.recover_flattened_shapes;
  if (!names_directory(resolved)) {
    hints.file = resolved.filename().string();
    const auto storage =
        posix_storage(resolved.has_parent_path() ? resolved.parent_path() : fs::path("."));
    if (is_safetensors(*storage->open(*hints.file)))
      throw_safetensors(resolved, "the file is a safetensors file");
    return with_context({.file = resolved.string()},
                        [&] { return find_load_strategy("torch").open(storage, hints); });
  }
  const std::shared_ptr<Storage> storage = posix_storage(resolved);
  if (storage->stat(kConfigFile)) {
    const auto file = storage->open(kConfigFile);
    const CheckpointingConfig config =
        read_checkpointing_config(read_file(*file, kMaxConfigBytes), file->name());
    const LoadStrategyEntry& strategy =
        with_context({.file = file->name()}, [&]() -> const LoadStrategyEntry& {
          return find_load_strategy(config.sharded_backend, config.sharded_backend_version);
        });
    return strategy.open(storage, hints);
  }
  const std::vector<FileInfo> entries = storage->list("");
  for (const LoadStrategyEntry& strategy : load_strategies()) {
    if (strategy.recognises && strategy.recognises(entries)) return strategy.open(storage, hints);
  }
  refuse_foreign(entries, resolved);
  throw_unrecognised(entries, resolved);
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
