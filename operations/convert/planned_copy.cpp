#include "operations/convert/planned_copy.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "mapping/megatron/optimizer_keys.h"
#include "migration/optimizer/optimizer_sharding.h"
#include "operations/convert/reshard.h"
#include "operations/inspect/compatible_readers.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/memory.h"
#include "strategies/torch_dist/save_strategy.h"

namespace dckpt {
namespace {

/// Throws CheckpointError (unsupported) for contents that the target would have to leave out.
void require_capabilities(const SaveStrategyEntry& format, const CopyContents& contents) {
  const auto refuse = [&](const std::string& what) {
    throw_error(ErrorCode::kUnsupported, "the format {} does not store {}", quote(format.name),
                what);
  };
  if (!format.capabilities.objects && !contents.metadata.objects.empty())
    refuse("objects; leave them out, the first is " + quote(contents.metadata.objects.front().key));
  if (!format.capabilities.common_state && contents.common_file &&
      contents.common_file->value().size() > 0)
    refuse("values that are not sharded, and the source has a common state");
}

/// Returns the chunk of a source tensor that is exactly the item; none if there is none.
std::optional<std::size_t> whole_chunk(const TensorStorageMetadata& tensor, const WriteItem& item) {
  if (tensor.flattened_shape || item.flattened_shape) return std::nullopt;
  for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
    if (equal(tensor.chunks.offsets(chunk), item.chunk.offsets) &&
        equal(tensor.chunks.sizes(chunk), item.chunk.sizes))
      return chunk;
  }
  return std::nullopt;
}

/// Returns whether the record of a chunk is not a plain tensor: a subclass, a quantized tensor, a
/// conjugate view.
bool is_no_tensor(const CheckpointReader& reader, std::size_t tensor, std::size_t chunk) {
  try {
    const StorageInfo& place = reader.metadata().tensors[tensor].places[chunk];
    reader.locate(tensor, chunk, *reader.storage().open(reader.metadata().files[place.file]));
    return false;
  } catch (const CheckpointError& error) {
    return error.code() == ErrorCode::kUnsupported;
  }
}

}  // namespace

void require_resumable_optimizer(const CopyContents& contents, const ChosenTarget& target) {
  const std::string sharding = optimizer_sharding(contents.common);
  if (!target.format->conventions.megatron_keys ||
      sharding != name_of(kOptimizerShardingNames, OptimizerSharding::kFullyShardedModelSpace) ||
      std::ranges::none_of(contents.metadata.tensors, [](const TensorStorageMetadata& tensor) {
        return tensor.flattened_shape && is_optimizer_key(tensor.key);
      }))
    return;
  const bool newest = target.save.compat == Compat::kMegatron019;
  if (!newest && target.save.flattened == FlattenedForm::kMegatron) return;
  if (!target.format->capabilities.flattened_form && !newest) return;  // zarr, which has no other
  throw_error(
      ErrorCode::kInvalidArgument,
      "Megatron-Core 0.8 to 0.15 resume from the source's flattened optimizer state, and no "
      "release would from {}; --optimizer fully_reshardable makes what {} and newer resume "
      "from, and without {} it stays what 0.8 to 0.15 do (--exclude 'optimizer.*' takes the "
      "model alone)",
      newest ? "it with a common state that is an object" : "its boxes", newest ? "0.19" : "0.15",
      newest ? "--compat megatron-0.19" : "--flattened boxes");
}

PlannedCopy plan_copy(CopyContents contents, ChosenTarget target, ModelFolder folder,
                      std::optional<int> ranks) {
  if (!target.format->capabilities.cut_tensors) ranks = 1;
  if (target.format->capabilities.equal_chunks) make_chunks_equal(contents.metadata);
  std::vector<SavePlan> local = plan_reshard(contents.metadata, {ranks, target.save.flattened});
  if (contents.common_object) {
    WriteItem item;
    item.kind = WriteItem::Kind::kObject;
    item.key = kCommonStateKey;
    item.source = static_cast<std::uint32_t>(*contents.common_object);
    item.nbytes = contents.object_of[*contents.common_object].bytes->size();
    local.front().push_back(std::move(item));
  }
  require_capabilities(*target.format, contents);
  if (local.size() > 1) target.save.io.threads = 1;  // ranks share the threads, else files of one
  PlannedCopy copy{.contents = std::move(contents),
                   .target = target,
                   .folder = std::move(folder),
                   .strategy = make_save_strategy(target.save),
                   .items = {},
                   // Objects of one key can come from any format; chunks were already checked.
                   .plan = plan_global_save(local, {.kind = PlannerKind::kDcp, .validate = false})};
  for (std::size_t rank = 0; rank < local.size(); ++rank) {
    SavePlan items = std::exchange(local[rank], {});
    const std::vector<AssignedItem> written = std::exchange(copy.plan.items[rank], {});
    SavePlan& of_rank = copy.items.emplace_back();
    of_rank.reserve(written.size());
    // DCP's planner cuts no item.
    for (const AssignedItem& whole : written) of_rank.push_back(std::move(items[whole.item]));
  }
  return copy;
}

bool keep_records(PlannedCopy& copy, const CheckpointReader& reader) {
  if (!reader.info().conventions.records || !copy.target.format->conventions.records) return false;
  CopyContents& contents = copy.contents;
  std::vector<std::string> kept;
  for (SavePlan& items : copy.items) {
    for (WriteItem& item : items) {
      if (item.kind != WriteItem::Kind::kTensor) continue;
      const TensorStorageMetadata& tensor = contents.metadata.tensors[item.source];
      const std::size_t position = contents.tensor_of[item.source];
      const auto chunk = whole_chunk(tensor, item);
      if (!chunk || tensor.places[*chunk].codec != StorageCodec::kPlain ||
          !is_no_tensor(reader, position, *chunk))
        continue;
      if (kept.empty() || kept.back() != item.key) kept.push_back(item.key);
      item.kind = WriteItem::Kind::kObject;
      item.source = static_cast<std::uint32_t>(contents.object_of.size());
      item.nbytes = tensor.places[*chunk].length;
      contents.object_of.push_back({.record = tensor.places[*chunk]});
    }
  }
  if (kept.empty()) return false;
  contents.findings.push_back(
      {FindingCode::kFormKept,
       str_format(
           "copied as they are stored, which is not as plain tensors: {}; only trainers with "
           "their classes load them",
           quoted_list(kept)),
       kept});
  return true;
}

std::uint64_t bytes_of(const std::vector<SavePlan>& ranks) {
  std::uint64_t bytes = 0;
  for (const SavePlan& items : ranks) {
    for (const WriteItem& item : items) bytes += item.nbytes;
  }
  return bytes;
}

Metadata metadata_of(const GlobalPlan& plan, std::vector<WrittenItems> written) {
  std::vector<std::vector<StorageInfo>> places;
  std::vector<std::vector<std::string>> files;
  for (WrittenItems& by_rank : written) {
    places.push_back(std::move(by_rank.places));
    files.push_back(std::move(by_rank.files));
  }
  return written_metadata(plan, places, files);
}

Findings describe(const PlannedCopy& copy, const Metadata& source, ConvertReport& report) {
  Findings findings;
  const Metadata& metadata = copy.plan.metadata;
  report.tensors = metadata.tensors.size();
  report.objects = copy.contents.metadata.objects.size();
  report.ranks = static_cast<int>(copy.items.size());
  for (const SavePlan& items : copy.items) {
    report.held_after.push_back(0);
    for (const WriteItem& item : items) report.held_after.back() += item.nbytes;
  }
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    report.chunks_after += tensor.chunks.size();
    report.bytes += tensor.nbytes();
  }
  const auto flattened = std::ranges::count_if(
      source.tensors,
      [](const TensorStorageMetadata& tensor) { return tensor.flattened_shape.has_value(); });
  if (flattened > 0 && copy.target.save.flattened == FlattenedForm::kBoxes) {
    findings.push_back({FindingCode::kFormChanged,
                        grouped(static_cast<std::uint64_t>(flattened)) +
                            " flattened tensors became ordinary ones of their original shapes"});
  }
  const StoredForm form{.conventions = copy.target.format->conventions,
                        .common_file = copy.contents.common_file.has_value(),
                        .metadata = metadata,
                        .common = copy.contents.common,
                        .readers = copy.contents.trainer,
                        .state_left_out = copy.contents.state_left_out};
  for (std::string& sentence : describe_readers(form))
    findings.push_back({FindingCode::kReaders, std::move(sentence)});
  const auto unknown =
      std::ranges::find(report.findings, FindingCode::kKeysUnknown, &Finding::code);
  if (unknown != report.findings.end() && !findings.empty())
    findings.front().message +=
        str_format("; Megatron-Core's own modules have no {}", quoted_list(unknown->keys));
  return findings;
}

void measure(const PlannedCopy& copy, ConvertReport& report) {
  const auto& [contents, target, folder, strategy, items, plan] = copy;
  if (target.format->measure) {
    std::vector<WrittenItems> written;
    for (std::size_t rank = 0; rank < items.size(); ++rank) {
      written.push_back(target.format->measure(target.save, static_cast<int>(rank), items[rank]));
      for (const StorageInfo& place : written.back().places) report.disk_bytes += place.length;
      report.files += written.back().files.size();
    }
    const Metadata metadata = metadata_of(plan, std::move(written));
    const auto counters = std::make_shared<StorageCounters>();
    const auto files = counting_storage(memory_storage(), counters);
    for (const std::string& name : metadata.files) {
      if (const std::string parent = parent_name(name); !parent.empty())
        files->make_directory(parent);
      files->create(name)->close();
    }
    strategy->write_index(*files, "", metadata, nullptr);
    report.disk_bytes += counters->bytes_written;
    if (const auto marker = strategy->marker(*files, metadata, nullptr))
      report.disk_bytes += marker->content.size();
  } else {
    report.disk_bytes = report.bytes;
    for (const BytesStorageMetadata& object : contents.metadata.objects)
      report.disk_bytes += object.place.length;
  }
  if (contents.common_file) report.disk_bytes += contents.common_file->archive().size();
  report.disk_bytes += folder.bytes;
}

}  // namespace dckpt
