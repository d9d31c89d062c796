#include "tools/dckpt/render/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <vector>

#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/training_root/foreign_entries.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "mapping/base/error.h"
#include "mapping/base/local_path.h"
#include "strategies/formats/safetensors/index.h"
#include "strategies/registry/registry.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kRootFiles{kTrackerFile, kBridgeTrackerFile, kRootLock};
constexpr int kLevels = 3;  // of folders in a checkpoint

/// Returns whether no checkpoint has a file of this kind.
bool is_never_stored(const std::string& name) {
  return name.ends_with(".html") || name.ends_with(".npy");
}

/// Returns whether a file of safetensors may have been extracted: a model's has another name.
bool may_be_extracted(const std::string& name) {
  return name.ends_with(kSafetensorsSuffix) && name != "model.safetensors" &&
         name != "adapter_model.safetensors" && name.find("-of-") == std::string::npos;
}

bool is_checkpoint(const Location& directory) try {
  const std::shared_ptr<Storage> storage = directory.directory();
  std::vector<FileInfo> entries = storage->list("");
  const auto has = [&](const std::string& name) {
    return std::ranges::find(entries, name, &FileInfo::name) != entries.end();
  };
  const std::vector<std::string> markers = marker_files();
  if (std::ranges::any_of(markers, has)) return true;
  if (!has("config.json") && !has("adapter_config.json"))
    std::erase_if(entries, [](const FileInfo& entry) { return may_be_extracted(entry.name); });
  return std::ranges::any_of(load_strategies(), [&](const LoadStrategyEntry& strategy) {
    return recognizes(strategy, *storage, entries);
  });
} catch (const CheckpointError&) {
  return false;
}

/// Returns whether a save has written this entry of a checkpoint.
bool is_own(const Location& checkpoint, const std::string& entry) try {
  const std::vector<std::string> foreign = foreign_entries(checkpoint);
  return std::ranges::find(foreign, entry) == foreign.end();
} catch (const CheckpointError&) {
  return true;
}

/// Returns whether something other than a regular file exists there: a device, a pipe.
bool is_special(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status);
}

}  // namespace

OutputFile::OutputFile(const std::string& name) : target_(local_path(name)) {
  if (name == "-") return;
  const bool special = is_special(target_);
  written_ = special ? target_ : fs::path(str_format("{}.partial-{}", target_.string(), getpid()));
  const int descriptor =
      open(written_.c_str(),
           special ? O_WRONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  file_ = descriptor < 0 ? nullptr : fdopen(descriptor, "wb");
  if (file_ == nullptr) fail("cannot create the output file");
}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (written_ != target_) unlink(written_.c_str());
}

void OutputFile::fail(const std::string& attempted) const {
  throw_error(ErrorCode::kIo, {.file = target_.string()}, "{}: {}", attempted,
              std::strerror(errno));
}

void OutputFile::write(ByteView bytes) {
  if (file_ == nullptr) return print_bytes(bytes.data(), bytes.size());
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
    fail("cannot write the output file");
}

void OutputFile::commit() {
  if (file_ == nullptr) return flush_output();
  if (std::fflush(file_) != 0 || (written_ != target_ && fsync(fileno(file_)) != 0))
    fail("cannot write the output file");
  if (written_ != target_ && std::rename(written_.c_str(), target_.c_str()) != 0)
    fail("cannot put the output file in its place");
  std::fclose(file_);
  file_ = nullptr;
}

void require_replaceable(const std::string& output) {
  if (output == "-") return;
  const Location target(local_path(output));
  const auto refuse = [&](const std::string& why) {
    throw_error(ErrorCode::kInvalidArgument, {.file = output},
                "the output would replace {}; choose another name", why);
  };
  if (std::ranges::find(kRootFiles, target.name()) != kRootFiles.end())
    refuse("a file of a training root");
  if (!target.storage()->stat(target.name()) || is_never_stored(target.name())) return;
  const fs::path path = fs::absolute(local_path(output)).lexically_normal();
  std::string inside;
  fs::path directory = path.parent_path();
  for (int level = 0; level < kLevels && directory.has_relative_path(); ++level) {
    const Location above(directory);
    if (is_checkpoint(above) && (level == 0 || is_own(above, inside)))
      refuse(str_format("a file of the checkpoint {}", quote(above.display())));
    inside = directory.filename().string();
    directory = directory.parent_path();
  }
}

void require_outside(const std::string& output, const std::string& read) {
  std::error_code error;  // names that lead nowhere are outside
  const fs::path target = fs::weakly_canonical(local_path(output), error);
  const fs::path source = fs::weakly_canonical(local_path(read), error);
  if (output == "-" || error || std::ranges::mismatch(source, target).in1 != source.end()) return;
  throw_error(ErrorCode::kInvalidArgument, {.file = output},
              "the output would be among the files of {}, which is read; "
              "choose a name outside",
              quote(read));
}

}  // namespace dckpt::tool
