#include "operations/inspect/inspect.h"

#include <algorithm>
#include <unordered_map>

#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "operations/inspect/compatible_readers.h"

namespace dckpt {
namespace {

constexpr std::size_t kMaxDirectoryDepth = 64;

void add_files(const Storage& storage, const std::string& directory, std::size_t depth,
               std::vector<FileSummary>& files) {
  if (depth > kMaxDirectoryDepth)
    throw_error(ErrorCode::kUnsupported, {.file = storage.display_path(directory)},
                "directories are nested too deep to be listed");
  for (const FileInfo& entry : storage.list(directory)) {
    const std::string name =
        directory.empty() ? entry.name : str_format("{}/{}", directory, entry.name);
    if (entry.kind == FileInfo::Kind::kRegular)
      files.push_back({.name = name, .bytes = entry.size, .modified = entry.modified});
    if (entry.kind == FileInfo::Kind::kDirectory) add_files(storage, name, depth + 1, files);
  }
}

TensorSummary summarize(const Metadata& metadata, const TensorStorageMetadata& tensor,
                        bool with_chunks) {
  TensorSummary summary{.key = tensor.key,
                        .dtype = tensor.properties.dtype,
                        .shape = tensor.global_shape(),
                        .bytes = tensor.nbytes(),
                        .chunk_count = tensor.chunks.size(),
                        .flattened = tensor.flattened_shape.has_value(),
                        .stored_shape = tensor.size};
  if (!with_chunks) return summary;
  summary.chunks.reserve(tensor.chunks.size());
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    const StorageInfo& place = tensor.places[i];
    summary.chunks.push_back(
        {tensor.chunks[i], metadata.files[place.file], place.offset, place.length});
  }
  return summary;
}

std::vector<FileSummary> file_summaries(const CheckpointReader& reader) {
  const std::optional<std::string>& single = reader.info().single_file;
  if (!single) return list_files(reader.storage());
  return {{*single, reader.storage().open(*single)->size()}};
}

/// Sets FileSummary::unused and CheckpointSummary::unreferenced.
void count_unused(const CheckpointReader& reader, CheckpointSummary& summary) {
  const CheckpointInfo& info = reader.info();
  if (!info.conventions.records) return;
  const Metadata& metadata = reader.metadata();
  std::vector<std::uint64_t> used(metadata.files.size());
  const auto use = [&](const auto& place) { used[place.file] += place.length; };
  for (const auto& tensor : metadata.tensors) std::ranges::for_each(tensor.places, use);
  for (const auto& object : metadata.objects) use(object.place);
  std::ranges::for_each(info.common_places, use);
  std::unordered_map<std::string_view, std::uint64_t> used_of;
  for (std::size_t i = 0; i < used.size(); ++i) used_of[metadata.files[i]] += used[i];
  for (FileSummary& file : summary.files) {
    const auto found = used_of.find(file.name);
    if (found == used_of.end() && !file.name.ends_with(".distcp")) continue;
    if (found == used_of.end()) summary.unreferenced.push_back(file.name);
    const std::uint64_t taken = found == used_of.end() ? 0 : found->second;
    file.unused = file.bytes - std::min(file.bytes, taken);
  }
}

void count_tensor(GroupTotal& total, const TensorSummary& tensor) {
  ++total.tensors;
  total.elements += static_cast<std::uint64_t>(numel(tensor.shape));
  total.bytes += tensor.bytes;
}

}  // namespace

std::vector<FileSummary> list_files(const Storage& storage) {
  std::vector<FileSummary> files;
  add_files(storage, "", 0, files);
  return files;
}

ContentGroup content_group(std::string_view key, bool is_object) {
  const std::string_view name = key.substr(0, key.find('/'));
  const std::size_t dot = name.find('.');
  if (is_optimizer_key(key)) return ContentGroup::kOptimizer;
  if (name.substr(0, dot) == "rng_state" || name.substr(0, dot) == "rng") return ContentGroup::kRng;
  if (name.ends_with(kExtraStateSuffix)) return ContentGroup::kExtraState;
  return is_object ? ContentGroup::kOther : ContentGroup::kWeights;
}

CheckpointSummary inspect(const CheckpointReader& reader, const InspectOptions& options) try {
  const Metadata& metadata = reader.metadata();
  options.keys.check({&metadata});
  CheckpointSummary summary{.info = reader.info(), .common = reader.common_state()};
  const auto total_of = [&](ContentGroup group) -> GroupTotal& {
    return summary.groups.at(static_cast<std::size_t>(group));
  };
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (!options.keys(tensor.key)) continue;
    const TensorSummary& added =
        summary.tensors.emplace_back(summarize(metadata, tensor, options.chunks));
    count_tensor(total_of(content_group(tensor.key, false)), added);
  }
  for (const BytesStorageMetadata& object : metadata.objects) {
    if (!options.keys.object(object.key)) continue;
    summary.objects.push_back({object.key, object.place.length});
    GroupTotal& total = total_of(content_group(object.key, true));
    ++total.objects;
    total.bytes += object.place.length;
  }
  summary.has_optimizer = holds_optimizer(metadata);
  const CheckpointInfo& info = summary.info;
  const StoredForm form{info.conventions, info.common_file.has_value(), metadata, summary.common,
                        info.readers};
  summary.run = run_facts(reader);
  summary.modelopt = modelopt_state(reader);
  summary.readers = readers_of(form);
  summary.optimizer.sharding = optimizer_sharding(summary.common);
  if (summary.has_optimizer) {
    summary.optimizer.name = summary.run.optimizer;
    summary.optimizer.states = optimizer_states(metadata);
    summary.optimizer.reshardable = describe_resharding(form);
  }
  summary.files = file_summaries(reader);
  summary.data_files = check_data_files(reader);
  if (!summary.data_files.complete()) {
    for (std::string* const readers : {&summary.readers.model, &summary.readers.optimizer})
      if (!readers->empty())
        *readers =
            "nothing as it is, as data files are missing or cut (dckpt convert "
            "--allow-partial keeps the keys that are whole)";
  }
  count_unused(reader, summary);
  return summary;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
