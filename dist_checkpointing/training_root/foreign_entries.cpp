#include "dist_checkpointing/training_root/foreign_entries.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/error.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/storage/hidden_sibling.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

constexpr std::string_view kReport = "dckpt_report.json";    // kReportFile, of a higher layer
constexpr std::string_view kPlans = "dckpt_plans.bin";       // of builds that kept plans in a file
constexpr std::string_view kHiddenPrefix = ".dckpt.";        // lock files
constexpr std::string_view kJournalPrefix = ".conversion-";  // of builds that kept journals
constexpr std::array<std::string_view, 6> kOwnNames{kMetadataFile,  kConfigFile, kCommonFile,
                                                    kIntegrityFile, kReport,     kPlans};

std::string first_component(const std::string& name) {
  return name.substr(0, name.find('/'));
}

/// Returns the names in the metadata; none if the directory cannot be opened.
std::set<std::string> names_in_metadata(const Location& checkpoint) {
  std::set<std::string> names;
  try {
    const auto reader = open_checkpoint(checkpoint);
    const CheckpointInfo& info = reader->info();
    for (const std::string& file : reader->metadata().files) names.insert(first_component(file));
    for (const std::string& file : info.index_files) names.insert(first_component(file));
    if (info.common_file) names.insert(first_component(*info.common_file));
  } catch (const CheckpointError& error) {
    if (error.code() == ErrorCode::kIo) throw;
  }
  return names;
}

/// Returns whether a directory is a tensor or an object of zarr.
bool holds_zarr(const Storage& directory, const std::string& name) {
  const std::vector<FileInfo> entries = directory.list(name);
  return std::ranges::any_of(entries, [](const FileInfo& entry) {
    return entry.name == ".zarray" || entry.name.starts_with("shard_");
  });
}

bool is_own(const Storage& directory, const FileInfo& entry) {
  const std::string& name = entry.name;
  if (entry.kind == FileInfo::Kind::kDirectory)
    return name.starts_with("mp_rank_") || holds_zarr(directory, name);
  return std::ranges::find(kOwnNames, name) != kOwnNames.end() || name.ends_with(".distcp") ||
         name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         parse_hidden_sibling(name).has_value() || name.starts_with(kHiddenPrefix) ||
         name.starts_with(kJournalPrefix);
}

}  // namespace

std::vector<std::string> marker_files() {
  return {kMetadataFile, kConfigFile, "model.safetensors.index.json"};
}

std::vector<std::string> foreign_entries(const Location& checkpoint) {
  const std::shared_ptr<Storage> directory = checkpoint.directory();
  std::vector<std::string> foreign;
  for (const FileInfo& entry : directory->list("")) {
    if (!is_own(*directory, entry)) foreign.push_back(entry.name);
  }
  if (foreign.empty()) return foreign;
  const std::set<std::string> own = names_in_metadata(checkpoint);
  std::erase_if(foreign, [&](const std::string& name) { return own.contains(name); });
  return foreign;
}

}  // namespace dckpt
