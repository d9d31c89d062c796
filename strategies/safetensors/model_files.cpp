#include "strategies/safetensors/model_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/readable_file.h"
#include "strategies/formats/safetensors/header.h"
#include "strategies/storage/late_list.h"

namespace dckpt {
namespace {

constexpr const char* kTorchCheckpointing = "metadata.pkl";  // its tensors may lie in safetensors
constexpr std::string_view kCount = "-of-";
constexpr std::size_t kDigits = 5;

bool is_regular(const FileInfo& entry) {
  return entry.kind == FileInfo::Kind::kRegular;
}

std::optional<std::string> find_index(const Storage& storage, std::span<const FileInfo> entries,
                                      const ModelNames& names) {
  std::vector<std::string> found;
  for (const FileInfo& entry : entries) {
    if (entry.name.ends_with(names.index_suffix)) found.push_back(entry.name);
  }
  if (found.empty()) return std::nullopt;
  if (found.size() == 1) return found.front();
  if (std::ranges::find(found, names.usual_index) != found.end())
    return std::string(names.usual_index);
  throw_error(ErrorCode::kMismatch, {.file = storage.display_path("")},
              "the folder holds several models: {}; name the index of one", quoted_list(found));
}

/// Throws unless the index's files are there.
void require_files(const Storage& storage, const ModelFiles& model) {
  std::set<std::string> missing;
  for (const std::string& file : model.files) {
    if (!storage.stat(file)) missing.insert(file);
  }
  if (missing.empty()) return;
  std::vector<std::string> keys;
  for (const auto& [key, file] : model.index.weight_map) {
    if (missing.contains(file)) keys.push_back(key);
  }
  throw_error(ErrorCode::kIncomplete, {.file = storage.display_path(*model.index_file)},
              "of the {} that the index names, {} missing: {}, with {} of its {}: "
              "{}",
              counted(model.files.size(), "file"), missing.size() == 1 ? "one is" : "some are",
              quoted_list(std::vector(missing.begin(), missing.end())), grouped(keys.size()),
              counted(model.index.weight_map.size(), "tensor"), quoted_list(keys));
}

/// A numbered name, "model-00002-of-00005.safetensors": the second of five. DCP's ranks put
/// "shard-00001-" before.
struct CountedName {
  std::string series;  ///< the common part of all five
  std::uint64_t number = 0;
  std::uint64_t count = 0;
};
std::optional<CountedName> counted_name(std::string_view name, const ModelNames& names) {
  name.remove_suffix(names.suffix.size());
  if (name.size() < 2 * kDigits + kCount.size() + 1) return std::nullopt;
  const std::string_view count = name.substr(name.size() - kDigits);
  const std::size_t of = name.size() - kDigits - kCount.size();
  const std::size_t at = of - kDigits;
  if (name.substr(of, kCount.size()) != kCount || name[at - 1] != '-') return std::nullopt;
  const auto number = parse_u64(name.substr(at, kDigits));
  const auto total = parse_u64(count);
  if (!number || !total) return std::nullopt;
  std::string_view stem = name.substr(0, at - 1);
  constexpr std::string_view kShard = "shard-";
  if (stem.starts_with(kShard) && stem.size() > kShard.size() + kDigits)
    stem.remove_prefix(kShard.size() + kDigits + 1);
  return CountedName{std::string(stem) + std::string(kCount) + std::string(count), *number, *total};
}

/// Throws unless all numbered files are there. Without an index only the files' names tell.
void require_counted_files(const Storage& storage, std::span<const std::string> files,
                           const ModelNames& names) {
  struct Series {
    std::set<std::uint64_t> numbers;
    std::uint64_t count = 0;
    std::string example;
  };
  std::map<std::string, Series> all;
  for (const std::string& file : files) {
    const auto name = counted_name(file, names);
    if (!name) continue;
    Series& series = all[name->series];
    series.numbers.insert(name->number);
    series.count = name->count;
    series.example = file;
  }
  for (const auto& [name, series] : all) {
    if (series.numbers.size() >= series.count) continue;
    std::uint64_t first = 1;
    while (series.numbers.contains(first)) ++first;
    throw_error(ErrorCode::kIncomplete, {.file = storage.display_path("")},
                "files like {} are numbered up to {}, but number {} is missing",
                quote(series.example), series.count, first);
  }
}

void read_index(const Storage& storage, ModelFiles& model) {
  const auto file = storage.open(*model.index_file);
  model.index = parse_safetensors_index(read_file(*file, kMaxSafetensorsIndex), file->name());
  std::set<std::string> files;
  for (const auto& [key, name] : model.index.weight_map) files.insert(name);
  model.files.assign(files.begin(), files.end());
  require_files(storage, model);
}

}  // namespace

ModelFiles find_model_files(const Storage& storage, const std::optional<std::string>& file,
                            const ModelNames& names) {
  ModelFiles model;
  if (file && !file->ends_with(names.index_suffix)) {
    model.files.push_back(*file);
    return model;
  }
  const std::vector<FileInfo> entries = list_with(storage, {names.usual_index});
  model.index_file = file ? file : find_index(storage, entries, names);
  if (model.index_file) {
    read_index(storage, model);
    return model;
  }
  for (const FileInfo& entry : entries) {
    if (!entry.name.starts_with(names.prefix) || !entry.name.ends_with(names.suffix)) continue;
    if (!is_regular(entry))
      throw_error(ErrorCode::kCorrupt, {.file = storage.display_path(entry.name)},
                  "is not a regular file");
    model.files.push_back(entry.name);
  }
  if (model.files.empty())
    throw_error(ErrorCode::kIncomplete, {.file = storage.display_path("")},
                "the folder holds no {}*{}", names.prefix, names.suffix);
  if (model.files.size() > 1) std::erase(model.files, kAdapterFile);
  require_counted_files(storage, model.files, names);
  return model;
}

bool holds_torch_model(std::span<const FileInfo> entries) {
  return !holds_safetensors(entries) && std::ranges::any_of(entries, [](const FileInfo& entry) {
    return entry.name.starts_with(kTorchModelNames.prefix) &&
           (entry.name.ends_with(kTorchModelNames.suffix) ||
            entry.name.ends_with(kTorchModelNames.index_suffix));
  });
}

std::vector<std::string> adapter_files(const Storage& folder) {
  std::vector<std::string> files;
  for (const char* const name : {kAdapterConfigFile, kAdapterFile, kTorchAdapterFile}) {
    if (folder.stat(name)) files.emplace_back(name);
  }
  return files;
}

bool is_safetensors_file(const ReadableFile& file) {
  return file.name().ends_with(kSafetensorsSuffix) ||
         file.name().ends_with(kSafetensorsIndexSuffix) || looks_like_safetensors(file);
}

bool holds_safetensors(std::span<const FileInfo> entries) {
  return std::ranges::none_of(
             entries, [](const FileInfo& entry) { return entry.name == kTorchCheckpointing; }) &&
         std::ranges::any_of(entries, [](const FileInfo& entry) {
           return entry.name.ends_with(kSafetensorsSuffix) ||
                  entry.name.ends_with(kSafetensorsIndexSuffix);
         });
}

}  // namespace dckpt
