#include "dist_checkpointing/open/foreign_root.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/open_target.h"

namespace dckpt {
namespace {

constexpr std::size_t kMaxDirectories = 300;
constexpr std::size_t kMaxDepth = 4;
constexpr std::size_t kShownCheckpoints = 8;
constexpr std::size_t kMaxShownPath = 4096;  // longest path that is copied into a message

/// A layout, recognized by names that are all in one directory.
struct Layout {
  const char* framework;
  std::array<const char*, 2> names;
  const char* what_to_do = "";   ///< advice if there are no readable checkpoints
  const char* checkpoints = "";  ///< its word for checkpoints, with a trailing blank
};

// More specific layouts come first.
constexpr std::array kLayouts = {
    Layout{"Orbax",
           {"*", "_CHECKPOINT_METADATA"},
           "JAX arrays in OCDBT or zarr3 are not read; load them with Orbax and save them as "
           "safetensors"},
    Layout{"Orbax",
           {"*", "manifest.ocdbt"},
           "JAX arrays in OCDBT are not read; load them with Orbax and save them as safetensors"},
    Layout{"DeepSpeed",
           {"*", "*_optim_states.pt"},
           "its ranks' files are not joined; DeepSpeed's zero_to_fp32.py makes a file of the "
           "weights, which is read"},
    Layout{"DeepSpeed",
           {"*", "*_model_states.pt"},
           "its ranks' files are not joined; DeepSpeed's zero_to_fp32.py makes a file of the "
           "weights, which is read"},
    Layout{"accelerate", {"*", "pytorch_model_fsdp_0"}},
    Layout{"accelerate", {"*", "random_states_0.pkl"}},
    Layout{"NeMo 2", {"context", "weights"}},
    Layout{"NeMo Automodel", {"dataloader", "rng"}},
    Layout{"ByteCheckpoint", {"model", "extra_state"}},
    Layout{"ByteCheckpoint", {"model", "loader"}},
    Layout{"verl", {"global_step_*", "latest_checkpointed_iteration.txt"}},
    Layout{"verl", {"*", "actor"}},
    Layout{"torchtitan", {"*", "step-[0-9]*"}},
    Layout{"NVRx local checkpoints", {"*", "iter_*_local.pt"}, "", "the sessions "},
};

/// Links of NeMo Automodel, or files where there are no links, that name one of its checkpoints.
constexpr std::array kPointers = {"LATEST", "LOWEST_VAL"};
constexpr std::uint64_t kMaxPointerBytes = 4096;

/// Returns the checkpoint that a pointer names; empty if there is no pointer, or if it leads
/// nowhere.
std::string named_by(const Storage& storage, const std::string& pointer) {
  const auto entry = storage.stat(pointer);
  if (!entry || entry->kind == FileInfo::Kind::kDirectory) return "";
  std::string name = resolved(storage, pointer);
  if (entry->kind == FileInfo::Kind::kRegular) {
    name = as_text(read_file(*storage.open(pointer), kMaxPointerBytes));
    name.erase(name.find_last_not_of(" \t\r\n/") + 1);
  }
  name = name.substr(name.rfind('/') + 1);
  return name == pointer ? "" : name;
}

class ForeignRootDescriber {
 public:
  explicit ForeignRootDescriber(const Location& root) : root_(root) {
    find_pointers();
    open_.push_back({root, "", 0});
    for (std::size_t count = 0; !open_.empty() && count < kMaxDirectories; ++count) {
      const Directory next = std::move(open_.front());
      open_.pop_front();
      try {
        look_into(next);
      } catch (const CheckpointError&) {  // a directory that cannot be listed
      }
    }
    // The state of data loaders and random generators can be read, too, but nobody looks for it.
    std::stable_partition(checkpoints_.begin(), checkpoints_.end(), [](const std::string& path) {
      return path.ends_with("/model") || path == "model";
    });
  }

  std::string text() const {
    std::string message;
    if (layout_ < kLayouts.size())
      message = str_format("it is a folder of {}", kLayouts[layout_].framework);
    if (!checkpoints_.empty())
      message +=
          str_format("{} {}{}; name {}{}", message.empty() ? "it is a folder around" : ", around",
                     layout_ < kLayouts.size() ? kLayouts[layout_].checkpoints : "",
                     quoted_list(checkpoints_, kShownCheckpoints),
                     checkpoints_.size() == 1 ? "" : "one of them, such as ",
                     quote((root_ / checkpoints_.front()).display(), kMaxShownPath));
    else if (layout_ < kLayouts.size())
      message += str_format(": {}", *kLayouts[layout_].what_to_do != '\0'
                                        ? kLayouts[layout_].what_to_do
                                        : "no checkpoint that can be read is in it");
    return message.empty() ? message : message + pointers_;
  }

 private:
  struct Directory {
    Location location;
    std::string path;
    std::size_t depth = 0;
    bool is_part = false;  ///< part of a checkpoint
  };

  void find_pointers() try {
    const std::shared_ptr<Storage> storage = root_.directory();
    for (const char* const pointer : kPointers) {
      if (!storage->stat(pointer)) continue;
      const std::string name = named_by(*storage, pointer);
      const bool is_there = !name.empty() && (root_ / name).is_directory();
      pointers_ += name.empty() ? str_format("; {} leads nowhere", pointer)
                                : str_format("; {} names {}{}", pointer, quote(name),
                                             is_there ? "" : ", which does not exist");
      if (newest_.empty() && is_there) newest_ = name;
    }
  } catch (const CheckpointError&) {  // it cannot be read, or holds no name
  }

  /// Adds a checkpoint, those that the first pointer names before others.
  void add_checkpoint(const std::string& path) {
    const bool is_newest = !newest_.empty() && path.starts_with(newest_ + "/");
    checkpoints_.insert(is_newest ? checkpoints_.begin() + newest_count_++ : checkpoints_.end(),
                        path);
  }

  void look_into(const Directory& directory) {
    const std::shared_ptr<Storage> storage = directory.location.directory();
    std::vector<FileInfo> entries = storage->list("");
    std::ranges::sort(entries, {}, &FileInfo::name);
    for (std::size_t i = 0; i < kLayouts.size(); ++i) {
      if (std::ranges::all_of(kLayouts[i].names, [&](const char* name) {
            return std::ranges::any_of(
                entries, [&](const FileInfo& entry) { return glob_match(name, entry.name); });
          }))
        layout_ = std::min(layout_, i);
    }
    if (directory.is_part) return;
    const bool has_config =
        std::ranges::find(entries, kConfigFile, &FileInfo::name) != entries.end();
    const auto strategy = std::ranges::find_if(
        load_strategies(), [&](const auto& entry) { return recognizes(entry, *storage, entries); });
    const bool is_known = has_config || strategy != load_strategies().end();
    const bool is_found = is_known && directory.depth > 0;
    if (is_found) add_checkpoint(directory.path);
    // A checkpoint that is recognized by its deeper content shows its layout there.
    if (directory.depth == kMaxDepth || (is_found && (has_config || !strategy->holds))) return;
    for (const FileInfo& entry : entries) {
      if (entry.kind != FileInfo::Kind::kDirectory || entry.name.starts_with('.')) continue;
      open_.push_back({directory.location / entry.name,
                       directory.path + (directory.path.empty() ? "" : "/") + entry.name,
                       directory.depth + 1, is_found});
    }
  }

  Location root_;
  std::deque<Directory> open_;
  std::string pointers_;             // a clause for each pointer
  std::string newest_;               // what the first pointer names
  std::ptrdiff_t newest_count_ = 0;  // of the checkpoints in it
  std::vector<std::string> checkpoints_;
  std::size_t layout_ = kLayouts.size();
};

}  // namespace

std::string describe_foreign_root(const Location& directory) {
  return ForeignRootDescriber(directory).text();
}

}  // namespace dckpt
