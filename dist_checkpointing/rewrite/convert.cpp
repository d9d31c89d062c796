#include "dist_checkpointing/rewrite/convert.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "dist_checkpointing/inspect/inspect.h"
#include "dist_checkpointing/inspect/optimizer_form.h"
#include "dist_checkpointing/inspect/run_facts.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/rewrite/common_form.h"
#include "dist_checkpointing/rewrite/conversion_source.h"
#include "dist_checkpointing/rewrite/convert_target.h"
#include "dist_checkpointing/rewrite/copy_contents.h"
#include "dist_checkpointing/rewrite/copy_source.h"
#include "dist_checkpointing/rewrite/interrupted.h"
#include "dist_checkpointing/rewrite/missing_data.h"
#include "dist_checkpointing/rewrite/model_folder.h"
#include "dist_checkpointing/rewrite/planned_copy.h"
#include "dist_checkpointing/rewrite/source_check.h"
#include "dist_checkpointing/rewrite/write_copy.h"
#include "dist_checkpointing/training_root/target.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/planning/rearrange.h"
#include "strategies/contract/registry.h"

namespace dckpt {
namespace {

bool holds_buckets(const Metadata& metadata) {
  return std::ranges::any_of(metadata.tensors, [](const TensorStorageMetadata& tensor) {
    return is_optimizer_key(tensor.key) && tensor.key.find(".bucket_idx_") != std::string::npos;
  });
}

/// The model's tensors that `keys` leaves out.
std::vector<std::string> weights_left_out(const KeyFilter& keys, const Metadata& metadata) {
  std::vector<std::string> left_out;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (!is_optimizer_key(tensor.key) && !keys(tensor.key)) left_out.push_back(tensor.key);
  }
  return left_out;
}

/// By data file; parts that are made while reading are in none.
std::vector<HeldBytes> held_by_files(const Metadata& metadata) {
  std::vector<HeldBytes> held(metadata.files.size());
  for (std::size_t i = 0; i < held.size(); ++i) held[i].file = metadata.files[i];
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    for (std::size_t i = 0; i < tensor.places.size(); ++i)
      held[tensor.places[i].file].bytes +=
          static_cast<std::uint64_t>(numel(tensor.chunks.sizes(i))) *
          item_size(tensor.properties.dtype);
  }
  for (const BytesStorageMetadata& object : metadata.objects)
    held[object.place.file].bytes += object.place.length;
  std::erase_if(held, [](const HeldBytes& file) { return !is_stored_file(file.file); });
  return held;
}

/// Megatron 0.8 to 0.15 resume from flattened state beside a common.pt, and from nothing else.
void require_resumable(const CopyContents& contents, const ConvertTarget& target,
                       const ConvertOptions& options) {
  const std::string sharding = optimizer_sharding(contents.common);
  if (options.optimizer || !target.format->conventions.megatron_keys ||
      sharding != name_of(kOptimizerShardingNames, OptimizerSharding::kFullyShardedModelSpace) ||
      std::ranges::none_of(contents.metadata.tensors, [](const TensorStorageMetadata& tensor) {
        return tensor.flattened_shape && is_optimizer_key(tensor.key);
      }))
    return;
  const bool newest = target.save.compat == Compat::kMegatron019;
  if (!newest && target.save.flattened == FlattenedForm::kMegatron) return;
  if (!target.format->capabilities.flattened_form && !newest) return;  // zarr, which has no other
  throw CheckpointError(
      ErrorCode::kInvalidArgument,
      str_format(
          "Megatron-Core 0.8 to 0.15 resume from the source's flattened optimizer state, and no "
          "release would from {}; --optimizer fully_reshardable makes what {} and newer resume "
          "from, and without {} it stays what 0.8 to 0.15 do (--exclude 'optimizer.*' takes the "
          "model alone)",
          newest ? "it with a common state that is an object" : "its boxes",
          newest ? "0.19" : "0.15", newest ? "--compat megatron-0.19" : "--flattened boxes"));
}

/// What a copy of buckets, or of parts of them, is not fit for.
void tell_of_buckets(const Metadata& copied, const Metadata& source, const KeyFilter& keys,
                     bool cut_anew, std::vector<std::string>& remarks) {
  if (!holds_buckets(copied)) return;
  if (cut_anew)
    remarks.emplace_back(
        "optimizer state in buckets is found by the chunks of the model that Megatron saved, which "
        "are cut anew here; --optimizer works with this source, not with the result");
  if (const auto names = weights_left_out(keys, source); !names.empty())
    remarks.push_back("left out of the model, but not of the optimizer's buckets: " +
                      quoted_list(names));
}

/// What of the selected goes into the copy, with the common state in the form of the target.
CopyContents contents_for(const ConvertTarget& target, CopyContents contents,
                          const CheckpointReader& reader, const KeyFilter& keys,
                          const ConvertOptions& options, ConvertReport& report) {
  tell_of_buckets(contents.metadata, reader.metadata(), keys, options.ranks.has_value(),
                  report.remarks);
  report.chunks_before = contents.chunks_before;
  contents = without_lost_data(std::move(contents), reader, options.allow_partial, report.lost,
                               report.remarks);
  contents.state_left_out +=
      static_cast<std::uint64_t>(std::ranges::count_if(report.lost, is_optimizer_key));
  require_coverage(contents, report.source);
  contents = rename_contents(std::move(contents), options.rename, report.remarks);
  const Capabilities& can = target.format->capabilities;
  const bool chosen = options.keys.include.size() + options.keys.exclude.size() > 0;
  contents = can.objects || can.common_state
                 ? with_common_state(std::move(contents), reader, target, options.check_source,
                                     report.remarks)
                 : tensors_only(std::move(contents), reader, chosen, report.remarks);
  if (std::string conflict = iteration_conflict(reader); !conflict.empty())
    report.remarks.push_back(std::move(conflict));
  report.left_out += contents.left_out;
  return contents;
}

/// For Megatron 0.8 to 0.15.
void flatten_optimizer_state(CopyContents& contents, bool fragments_lost,
                             std::vector<std::string>& remarks) {
  const std::size_t changed =
      reformulate_optimizer_state(contents.metadata, contents.common, fragments_lost);
  if (changed > 0)
    remarks.push_back(
        grouped(changed) +
        " optimizer tensors were flattened, as Megatron-Core 0.8 to 0.15 resume them");
  else if (std::ranges::none_of(contents.metadata.tensors, [](const TensorStorageMetadata& tensor) {
             return tensor.flattened_shape.has_value();
           }))
    remarks.emplace_back(
        "--flattened megatron had no effect: there is no optimizer state of that form");
}

/// Writes the copy, or checks what a dry run checks. `keeps_records`: records that are no plain
/// tensors may be copied as they are.
void carry_out(PlannedCopy& copy, const CheckpointReader& reader, const Location& source,
               const Location& destination, const CopyMemory& memory, bool keeps_records,
               const ConvertOptions& options, ConvertReport& report) {
  const ConversionFacts facts =
      conversion_facts(source, options, copy.target, copy.folder, copy.items);
  std::optional<Interrupted> left;
  if (options.resume) left = find_left(destination, facts, copy, report);
  require_space(destination, report.disk_bytes - std::min(report.disk_bytes, bytes_of(left)));
  const int readers = options.read_threads.value_or(options.io.threads);
  const auto go_on = [&] { require_not_stopped(options); };
  const auto attempt = [&] {
    SourceCheck check(reader, copy.contents, options.check_source, options.verify_integrity);
    if (options.dry_run) {
      if (options.verify_integrity) check.check_manifest(readers);
      return;
    }
    CopySource from(reader, copy.contents, check, *copy.target.format, memory, options.progress,
                    bytes_of(copy.items), go_on);
    const auto check_source = [&] {
      check.check_rest(readers, go_on);
      check.check_manifest(readers);
    };
    write_copy(copy, destination, from,
               {memory.io.threads, options.resume, std::move(left), facts, check_source, go_on},
               report);
  };
  try {
    attempt();
  } catch (const CheckpointError& error) {
    if (error.code() != ErrorCode::kUnsupported || options.resume || options.dry_run ||
        !keeps_records || !keep_records(copy, reader, report.remarks))
      throw;
    attempt();
  }
}

ConvertReport convert_checkpoint(const Location& source, const Location& destination,
                                 ConvertOptions options) {
  const Location found = resolve_checkpoint(source, {.iteration = options.iteration});
  require_outside(found, destination);
  const bool insists = options.map.name == kNoMap;
  if (insists) options.map.name.clear();
  ConvertReport report;
  MappedSource opened = open_source(source, options, report);
  auto reader = std::move(opened.reader);
  KeyFilter keys = std::move(opened.behind);
  report.source = found.display();
  report.held_before = held_by_files(reader->metadata());
  report.destination = destination.display();
  report.from = reader->info().format;
  ConvertTarget target = choose_target(*reader, report.source, options, report.remarks);
  report.to = target.format->name;
  if (!insists) require_map_for_models(*reader, source, target, options);
  leave_optimizer(*reader, target, options.optimizer.has_value(), keys, report.remarks);
  const bool keeps_records =
      options.map.name.empty() && !options.optimizer &&
      (reader->info().conventions.megatron_fsdp || !target.format->conventions.megatron_fsdp);
  std::vector<std::string> of_optimizer;
  reader = in_target_form(std::move(reader), target, options, keys, of_optimizer, report.remarks);
  const CopyMemory memory =
      share_memory(options.io, options.max_memory, options.staging, reader->metadata());
  target.save.io = memory.io;
  if (options.dry_run) require_free_name(destination, options.overwrite);

  reader = without_common_entries(std::move(reader), keys.exclude, report.remarks);
  if (!options.map.name.empty()) keys.check({&reader->metadata(), &opened.source_keys});
  CopyContents contents = select_contents(*reader, keys);
  if (holds_optimizer(contents.metadata))
    std::ranges::move(of_optimizer, std::back_inserter(report.remarks));
  contents = contents_for(target, std::move(contents), *reader, keys, options, report);
  ModelFolder folder = model_folder(*reader, target, options, report.remarks);
  if (target.format->arrange) {
    reader =
        target.format->arrange(reader_of(contents, std::move(reader)), target.save, report.remarks);
    contents = select_contents(*reader, {});
    contents.chunks_before = report.chunks_before;
  }
  if (options.flattened == FlattenedForm::kMegatron)
    flatten_optimizer_state(contents, reader->info().conventions.fragments_lost, report.remarks);
  require_resumable(contents, target, options);

  if (!options.map.name.empty()) join_small_chunks(contents.metadata);
  PlannedCopy copy =
      plan_copy(std::move(contents), std::move(target), std::move(folder), options.ranks);
  describe(copy, reader->metadata(), report);
  measure(copy, report);
  carry_out(copy, *reader, found, destination, memory, keeps_records, options, report);
  if (options.dry_run) return report;
  report.disk_bytes = 0;
  for (const FileSummary& file : list_files(*destination.directory()))
    report.disk_bytes += file.bytes;
  return report;
}

}  // namespace

ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options) try {
  if (options.ranks && (*options.ranks < 1 || *options.ranks > kMaxRanks)) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          str_format("the number of ranks must be between 1 and {}, got {}",
                                     grouped(kMaxRanks), *options.ranks));
  }
  require_target_name(destination);
  if (!options.optimizer) return convert_checkpoint(source, destination, options);
  ConvertOptions resolved = options;
  if (options.optimizer == OptimizerSharding::kFullyShardedModelSpace) {
    // Other formats have the model's shapes, and Megatron flattens what it reads from them.
    if (options.to.empty() ||
        find_save_strategy(options.to, options.strategy_version).capabilities.flattened_form) {
      if (options.flattened == FlattenedForm::kBoxes)
        throw CheckpointError(ErrorCode::kInvalidArgument,
                              "fully_sharded_model_space optimizer state is flattened, and "
                              "--flattened boxes contradicts it; leave one of them out");
      resolved.flattened = FlattenedForm::kMegatron;
    }
  } else if (options.flattened == FlattenedForm::kMegatron) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          str_format("{} optimizer state is not flattened; leave --flattened at "
                                     "'boxes'",
                                     name_of(kOptimizerShardingNames, *options.optimizer)));
  }
  return convert_checkpoint(source, destination, resolved);
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
