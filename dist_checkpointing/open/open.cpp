#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/open/planned_view.h"

#include <algorithm>
#include <array>

#include "configs/policy/option_rules.h"
#include "configs/policy/policy.h"
#include "dist_checkpointing/open/foreign_root.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/registry/map_support.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/late_list.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;

/// Returns whether the files themselves, not directories, belong to several iterations.
bool holds_iterations(const Location& location) {
  const std::shared_ptr<Storage> directory = location.directory();
  const std::vector<FileInfo> entries = directory->list("");
  return std::ranges::any_of(load_strategies(), [&](const LoadStrategyEntry& strategy) {
    return strategy.holds_iterations && recognizes(strategy, *directory, entries);
  });
}

Location resolve_root(const Location& root, const OpenOptions& options) {
  const std::optional<std::string> name =
      options.iteration ? options.iteration->directory() : read_tracker(*root.directory());
  if (!name) return root;
  if (const Location checkpoint = root / *name; checkpoint.is_directory()) return checkpoint;
  if (options.iteration && *name != kReleaseDirectory && holds_iterations(root)) return root;
  std::string message =
      options.iteration
          ? str_format("there is no {} in this directory", quote(*name))
          : str_format("{} names {}, which does not exist; choose another with --iteration",
                       tracker_file(*root.directory()), quote(*name));
  const std::vector<std::uint64_t> iterations = list_iterations(root);
  const std::string foreign = iterations.empty() ? describe_foreign_root(root) : "";
  throw_error(ErrorCode::kIncomplete, {.file = root.display()}, "{}; {}", message,
              foreign.empty() ? "it has " + describe_iterations(iterations) : foreign);
}

/// Returns whether a file belongs to a checkpoint directory; a user who names it means the
/// directory.
bool is_part_of_directory(const Location& file) {
  const std::string& name = file.name();
  return name == ".metadata" || name == kConfigFile || name == kIntegrityFile ||
         name == kTrackerFile || name.ends_with(".distcp") ||
         (name == kCommonFile && file.storage()->stat_target(kConfigFile));
}

/// Returns whether a file has weights written by torch.save, under names that do not tell whether
/// they are one model.
bool is_torch_model(const FileInfo& entry) {
  const std::string& name = entry.name;
  const bool is_named_so =
      name.starts_with("model") || name.starts_with("consolidated.");  // Meta's
  return is_named_so && (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth"));
}

[[noreturn]] void throw_unrecognized(std::span<const FileInfo> entries, const Location& location) {
  const bool has_data = std::any_of(entries.begin(), entries.end(), [](const FileInfo& entry) {
    return entry.name.ends_with(".distcp");
  });
  const bool has_iterations =
      std::any_of(entries.begin(), entries.end(),
                  [](const FileInfo& entry) { return entry.name.starts_with("iter_"); });
  std::vector<std::string> torch_models;
  for (const FileInfo& entry : entries) {
    if (is_torch_model(entry)) torch_models.push_back(entry.name);
  }
  std::string message = "is not a distributed checkpoint: ";
  const std::string foreign =
      has_data || has_iterations ? std::string() : describe_foreign_root(location);
  if (entries.empty()) {
    message += "the directory is empty";
  } else if (has_data) {
    message +=
        "it holds data files (*.distcp), but neither .metadata nor metadata.json; the save was "
        "interrupted before it finished";
  } else if (has_iterations) {
    message += str_format(
        "it holds iterations (iter_*), but no {}; choose one with --iteration, or name its "
        "directory",
        kTrackerFile);
  } else if (!foreign.empty()) {
    message += foreign;
  } else if (!torch_models.empty()) {
    message += str_format(
        "the model's weights are in {}, as torch.save writes them; name such a file itself, or "
        "have transformers write safetensors (save_pretrained)",
        quoted_list(torch_models));
  } else {
    message +=
        "there is no metadata.json, .metadata, mp_rank_*, RANK/iter_*_local.pt or *.safetensors in "
        "it";
  }
  if (const std::string missing = missing_formats(); !missing.empty() && !has_data)
    message += "; " + missing;
  throw_error(ErrorCode::kIncomplete, {.file = location.display()}, "{} {}",
              quote(location.display()), message);
}

[[noreturn]] void throw_other_format(const Location& location, const std::string& found,
                                     const StrategySpec& asked) {
  throw_error(ErrorCode::kMismatch, {.file = location.display()},
              "the checkpoint has the format {}, but load.strategy asks for {}{}; name what is "
              "there, or say 'auto', which takes it",
              found, quote(asked.name),
              asked.version ? " version " + std::to_string(*asked.version) : "");
}

/// Returns the requested strategy if it is opened only by name, since it may read another format's
/// files or wrap that format's reader; otherwise null.
const LoadStrategyEntry* opened_by_name(const StrategySpec& asked) {
  if (asked.name == kAutoStrategy) return nullptr;
  const LoadStrategyEntry& strategy = find_load_strategy(asked.name, asked.version);
  if (strategy.matches || !strategy.versions.empty()) return nullptr;
  return &find_load_strategy(asked);  // checks the options
}

/// Returns the strategy that metadata.json names. If it was requested, the entry of the stored
/// version checks its options.
const LoadStrategyEntry& named_strategy(const Location& location, const StrategySpec& asked) {
  const auto file = location.directory()->open(kConfigFile);
  const CheckpointingConfig config =
      read_checkpointing_config(read_file(*file, kMaxConfigBytes), file->name());
  const int version = config.sharded_backend_version;
  const bool forced = asked.name != kAutoStrategy;
  if (forced &&
      (asked.name != config.sharded_backend || asked.version.value_or(version) != version))
    throw_other_format(location,
                       str_format("{} version {}", quote(config.sharded_backend), version), asked);
  const LoadStrategyEntry& found =
      with_context({.file = file->name()}, [&]() -> const LoadStrategyEntry& {
        return find_load_strategy(config.sharded_backend, version);
      });
  return forced ? find_load_strategy({asked.name, version, asked.options}) : found;
}

/// Detects the strategy of a directory without metadata.json. Returns null if none recognizes the
/// files, and throws if another one than the requested one does.
const LoadStrategyEntry* matching_strategy(const Location& location, const StrategySpec& asked) {
  const std::shared_ptr<Storage> directory = location.directory();
  std::vector<std::string_view> marks;
  for (const LoadStrategyEntry& strategy : load_strategies())
    marks.insert(marks.end(), strategy.marks.begin(), strategy.marks.end());
  const std::vector<FileInfo> entries = list_with(*directory, marks);
  const auto matches = [&](const LoadStrategyEntry& strategy) {
    return recognizes(strategy, *directory, entries);
  };
  const LoadStrategyEntry* const forced =
      asked.name == kAutoStrategy ? nullptr : &find_load_strategy(asked);
  if (forced != nullptr && matches(*forced)) return forced;
  const auto found = std::ranges::find_if(load_strategies(), matches);
  if (found == load_strategies().end()) return nullptr;
  if (forced != nullptr) throw_other_format(location, quote(found->name), asked);
  return &*found;
}

/// Returns the strategy that reads a single file: the requested registered one, the one that
/// matches its name, or one of dckpt's own by the file itself.
const LoadStrategyEntry& file_strategy(const Location& file, const StrategySpec& asked) {
  const bool forced = asked.name != kAutoStrategy;
  if (forced && !is_builtin(find_load_strategy(asked))) return find_load_strategy(asked);
  const std::optional<FileInfo> found = file.stat();
  if (!found) {
    throw_error(ErrorCode::kIncomplete, {.file = file.display()},
                "the checkpoint is gone: another job has removed it in the meantime");
  }
  const std::array entries = {*found};
  const auto registered =
      std::ranges::find_if(load_strategies(), [&](const LoadStrategyEntry& strategy) {
        return strategy.matches && !is_builtin(strategy) && strategy.matches(entries);
      });
  if (!forced && registered != load_strategies().end()) return *registered;
  const std::unique_ptr<ReadableFile> opened = file.storage()->open(file.name());
  const auto by_content =
      std::ranges::find_if(load_strategies(), [&](const LoadStrategyEntry& strategy) {
        return strategy.reads_file && strategy.reads_file(*opened);
      });
  if (by_content == load_strategies().end())
    throw_error(ErrorCode::kUnsupported, {.file = file.display()},
                "no strategy reads this single file; " + missing_formats());
  const LoadStrategyEntry& strategy = *by_content;
  if (forced && asked.name != strategy.name)
    throw_error(ErrorCode::kMismatch, {.file = file.display()},
                "a single file like this one is read as {}, but load.strategy asks for {}; name "
                "the checkpoint's directory, or say 'auto'",
                quote(strategy.name), quote(asked.name));
  return forced ? find_load_strategy(asked) : strategy;
}

}  // namespace

Location resolve_checkpoint(const Location& location, const OpenOptions& options) try {
  const std::optional<FileInfo> found = location.stat();
  const std::string path = location.display();
  if (!found) {
    throw_error(ErrorCode::kIo, {.file = path}, "Checkpoint directory {} does not exist",
                quote(path));
  }
  if (found->kind == FileInfo::Kind::kDirectory) return resolve_root(location, options);
  if (found->kind != FileInfo::Kind::kRegular) {
    throw_error(ErrorCode::kCorrupt, {.file = path}, "neither a directory nor a regular file");
  }
  if (is_part_of_directory(location)) return resolve_root(Location(location.storage()), options);
  if (options.iteration) {
    throw_error(ErrorCode::kInvalidArgument, {.file = path},
                quote(options.iteration->directory()) +
                    " cannot be chosen in a single file; name a training root");
  }
  return location;
} catch (...) {
  throw_checkpoint_error();
}

namespace {

std::unique_ptr<CheckpointReader> open_stored(const Location& location,
                                              const OpenOptions& options) {
  const bool forced = options.strategy.name != kAutoStrategy;
  if (forced) find_load_strategy(options.strategy.name, options.strategy.version);
  const Location resolved = resolve_checkpoint(location, options);
  OpenHints hints{.strategy = options.strategy,
                  .recover_flattened_shapes = options.recover_flattened_shapes};
  const LoadStrategyEntry* const by_name = opened_by_name(options.strategy);
  if (!resolved.is_directory()) {
    hints.file = resolved.name();
    const LoadStrategyEntry& strategy =
        by_name != nullptr ? *by_name : file_strategy(resolved, options.strategy);
    return with_context({.file = resolved.display()},
                        [&] { return strategy.open(resolved.storage(), hints); });
  }
  const std::shared_ptr<Storage> storage = resolved.directory();
  const auto recognized = [&] {
    return storage->stat(kConfigFile) ? &named_strategy(resolved, options.strategy)
                                      : matching_strategy(resolved, options.strategy);
  };
  const LoadStrategyEntry* const strategy = by_name != nullptr ? by_name : recognized();
  if (strategy == nullptr) throw_unrecognized(storage->list(""), resolved);
  if (strategy->holds_iterations && options.iteration)
    hints.iteration = parse_iteration_directory(options.iteration->directory());
  try {
    return with_context({.file = resolved.display()},
                        [&] { return strategy->open(storage, hints); });
  } catch (const CheckpointError&) {
    // A complete checkpoint of another format must not be reported as an incomplete one of this
    // format.
    if (by_name != nullptr) recognized();
    throw;
  }
}

}  // namespace

std::unique_ptr<CheckpointReader> open_checkpoint(const Location& location,
                                                  const OpenOptions& options) try {
  require_rules(Call::kLoad, {.load = {.strategy = options.strategy, .map = options.map}}, nullptr);
  auto reader = open_stored(location, options);
  return with_context({.file = location.display()}, [&] {
    std::string text;
    reader = with_planner(std::move(reader), options.planner, location);
    return with_map(std::move(reader), options.map, MapUse::kLook, text);
  });
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
