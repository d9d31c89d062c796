#include "dist_checkpointing/rewrite/convert.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "configs/option_rules.h"
#include "dist_checkpointing/inspect/diff.h"
#include "dist_checkpointing/inspect/inspect.h"
#include "dist_checkpointing/inspect/optimizer_form.h"
#include "dist_checkpointing/inspect/run_facts.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/rewrite/common_form.h"
#include "dist_checkpointing/rewrite/convert_target.h"
#include "dist_checkpointing/rewrite/copy_contents.h"
#include "dist_checkpointing/rewrite/copy_source.h"
#include "dist_checkpointing/rewrite/interrupted.h"
#include "dist_checkpointing/rewrite/map_source.h"
#include "dist_checkpointing/rewrite/megatron_fsdp.h"
#include "dist_checkpointing/rewrite/missing_data.h"
#include "dist_checkpointing/rewrite/model_folder.h"
#include "dist_checkpointing/rewrite/optimizer_conversion.h"
#include "dist_checkpointing/rewrite/source_check.h"
#include "dist_checkpointing/save/write_checkpoint.h"
#include "dist_checkpointing/training_root/target.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"
#include "mapping/planning/rearrange.h"
#include "mapping/planning/reshard.h"
#include "mapping/planning/save/global_plan.h"
#include "strategies/contract/registry.h"
#include "strategies/key_map/mapped_reader.h"
#include "strategies/safetensors/hub_cache.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/memory.h"
#include "strategies/torch_dist/save_strategy.h"

namespace dckpt {
namespace {

/// What will be written, and in which format.
struct PlannedCopy {
  CopyContents contents;
  ConvertTarget target;
  ModelFolder folder;
  std::unique_ptr<const SaveStrategy> strategy;
  std::vector<SavePlan> items;  ///< of each rank
  GlobalPlan plan;
};

/// What the target would have to leave out.
void require_capabilities(const SaveStrategyEntry& format, const CopyContents& contents) {
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError(ErrorCode::kUnsupported,
                          str_format("the format {} does not store {}", quote(format.name), what));
  };
  if (!format.capabilities.objects && !contents.metadata.objects.empty())
    refuse("objects; leave them out, the first is " + quote(contents.metadata.objects.front().key));
  if (!format.capabilities.common_state && contents.common_file &&
      contents.common_file->value().size() > 0)
    refuse("values that are not sharded, and the source has a common state");
}

PlannedCopy plan_copy(CopyContents contents, ConvertTarget target, ModelFolder folder,
                      const ConvertOptions& options) {
  const std::optional<int> ranks = target.format->capabilities.cut_tensors ? options.ranks : 1;
  if (!options.map.name.empty()) join_small_chunks(contents.metadata);
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
                   // Objects of one key can come from any format; chunks were checked already.
                   .plan = plan_global_save(local, {.kind = PlannerKind::kDcp, .validate = false})};
  for (std::size_t rank = 0; rank < local.size(); ++rank)
    copy.items.push_back(final_plan(local[rank], copy.plan.items[rank]));
  return copy;
}

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

/// Whether `keys` takes any state of the optimizer once that has keys made of the model's.
bool takes_state(const KeyFilter& keys, const Metadata& metadata) {
  if (keys.include.empty() && keys.exclude.empty()) return true;
  std::vector<std::string> names = optimizer_states(metadata);
  names.insert(names.end(), {"param", "fp32_param", "exp_avg"});
  return std::ranges::any_of(metadata.tensors, [&](const TensorStorageMetadata& tensor) {
    return !is_optimizer_key(tensor.key) &&
           std::ranges::any_of(names, [&](const std::string& name) {
             return keys(str_format("optimizer.state.{}.{}", name, tensor.key));
           });
  });
}

/// Buckets have the state of all of the model, and patterns leave out no parts of them.
void require_whole_model(const KeyFilter& keys, const Metadata& with_buckets) {
  ProblemList left_out;
  for (const std::string& key : weights_left_out(keys, with_buckets)) left_out.add(quote(key));
  for (const TensorStorageMetadata& tensor : with_buckets.tensors) {
    if (is_optimizer_key(tensor.key) && !keys(tensor.key)) left_out.add(quote(tensor.key));
  }
  for (const BytesStorageMetadata& object : with_buckets.objects) {
    if (is_optimizer_key(object.key) && !keys.object(object.key)) left_out.add(quote(object.key));
  }
  left_out.raise_if_any(ErrorCode::kInvalidArgument,
                        "dp_reshardable is the state of the whole model, of which the patterns "
                        "(--include, --exclude) "
                        "leave out these; leave them out before, in a conversion of its own:");
}

std::uint64_t bytes_of(const std::vector<SavePlan>& ranks) {
  std::uint64_t bytes = 0;
  for (const SavePlan& items : ranks) {
    for (const WriteItem& item : items) bytes += item.nbytes;
  }
  return bytes;
}

/// `written`: by each rank.
Metadata metadata_of(const GlobalPlan& plan, std::vector<WrittenItems> written) {
  std::vector<std::vector<StorageInfo>> places;
  std::vector<std::vector<std::string>> files;
  for (WrittenItems& by_rank : written) {
    places.push_back(std::move(by_rank.places));
    files.push_back(std::move(by_rank.files));
  }
  return written_metadata(plan, places, files);
}

/// Keys stand in the order of the source, whichever ranks hold them now.
template <typename Entries>
void restore_order(Entries& entries, const Entries& source) {
  std::unordered_map<std::string_view, std::size_t> position;
  for (std::size_t i = 0; i < source.size(); ++i) position.emplace(source[i].key, i);
  const auto rank = [&](const auto& entry) {
    const auto found = position.find(entry.key);
    return found == position.end() ? source.size() : found->second;
  };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  for (auto& entry : entries) {
    const auto found = position.find(entry.key);
    entry.order =
        (found == position.end() ? typename Entries::value_type() : source[found->second]).order;
  }
}

/// The chunk of a source's tensor that an item is, uncut; none if there is none.
std::optional<std::size_t> whole_chunk(const TensorStorageMetadata& tensor, const WriteItem& item) {
  if (tensor.flattened_shape || item.flattened_shape) return std::nullopt;
  for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
    if (equal(tensor.chunks.offsets(chunk), item.chunk.offsets) &&
        equal(tensor.chunks.sizes(chunk), item.chunk.sizes))
      return chunk;
  }
  return std::nullopt;
}

/// Whether the record of a chunk is something else than a plain tensor: a subclass, a quantized
/// tensor, a conjugate view.
bool is_no_tensor(const CheckpointReader& reader, std::size_t tensor, std::size_t chunk) {
  try {
    const StorageInfo& place = reader.metadata().tensors[tensor].places[chunk];
    reader.locate(tensor, chunk, *reader.storage().open(reader.metadata().files[place.file]));
    return false;
  } catch (const CheckpointError& error) {
    return error.code() == ErrorCode::kUnsupported;
  }
}

/// Copies records that are no plain tensors byte by byte, where both formats store such records and
/// nothing is cut anew. Returns whether there are any.
bool keep_records(PlannedCopy& copy, const CheckpointReader& reader,
                  std::vector<std::string>& remarks) {
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
  remarks.push_back(
      str_format("copied as they are stored, which is not as plain tensors: {}; only trainers with "
                 "their classes load them",
                 quoted_list(kept)));
  return true;
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

/// What is known of the copy before it is written.
void describe(const PlannedCopy& copy, const Metadata& source, ConvertReport& report) {
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
    report.remarks.push_back(grouped(static_cast<std::uint64_t>(flattened)) +
                             " flattened tensors became ordinary ones of their original shapes");
  }
  const StoredForm form{.conventions = copy.target.format->conventions,
                        .common_file = copy.contents.common_file.has_value(),
                        .metadata = metadata,
                        .common = copy.contents.common,
                        .state_left_out = copy.contents.state_left_out};
  for (std::string& sentence : describe_readers(form))
    report.remarks.push_back(std::move(sentence));
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

/// How many files there will be, and how large. A format that cannot tell has the bytes of what is
/// stored, at least.
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
    strategy->write_metadata(*files, "", metadata, nullptr);
    report.disk_bytes += counters->bytes_written;
  } else {
    report.disk_bytes = report.bytes;
    for (const BytesStorageMetadata& object : contents.metadata.objects)
      report.disk_bytes += object.place.length;
  }
  if (contents.common_file) report.disk_bytes += contents.common_file->archive().size();
  report.disk_bytes += folder.bytes;
}

/// How a copy is written.
struct WriteSteps {
  int writers = 1;  ///< ranks at a time
  bool resume = false;
  std::optional<Interrupted> left{};  ///< what to go on with
  ConversionFacts facts{};
  std::function<void()> check_source{};  ///< called when all has been read; throws
  std::function<void()> go_on{};         ///< throws to stop
};

/// Writes the copy from `source` and publishes it. Tells the numbers of files.
void write(const PlannedCopy& copy, const Location& destination, CopySource& source,
           WriteSteps steps, ConvertReport& report) {
  const auto& [contents, target, folder, strategy, items, plan] = copy;
  const bool manifest = target.save.integrity;
  Publication publication =
      steps.resume ? begin_resumable(destination, target.save,
                                     steps.left ? steps.left->directory : std::string())
                   : begin_publication(destination, target.save);
  std::map<std::string, FinishedFile> kept;
  if (steps.left)
    kept = keep_finished(*destination.storage(), publication.staging(), steps.left->journal,
                         manifest, steps.writers);
  report.kept_files = kept.size();
  ConversionJournal journal(destination.storage(), publication.staging(), steps.facts,
                            std::move(kept), manifest, target.save.io.fsync);
  source.goes_on_with(journal);
  // The journal digests the data files.
  const WriteTarget data_target{journal.storage(), publication.staging(), false};
  const WriteTarget to{journal.storage(), publication.staging(), manifest};
  std::vector<WrittenItems> written(items.size());
  parallel_for(items.size(), steps.writers, [&](std::size_t rank) {
    written[rank] =
        write_items(data_target, *copy.strategy, static_cast<int>(rank), copy.items[rank], source)
            .items;
  });
  try {
    steps.check_source();
  } catch (const CheckpointError& error) {
    if (error.code() != ErrorCode::kCancelled) publication.discard_unfinished();
    throw;
  }

  Metadata metadata = metadata_of(plan, std::move(written));
  restore_order(metadata.tensors, contents.metadata.tensors);
  restore_order(metadata.objects, contents.metadata.objects);
  metadata.paths = contents.metadata.paths;
  metadata.common_paths = contents.metadata.common_paths;
  metadata.storage_meta = contents.metadata.storage_meta;
  metadata.version = contents.metadata.version;
  ManifestDigests all = journal.digests();
  if (!folder.files.empty())
    all.merge(copy_files(to, *folder.storage, folder.files, target.save.io.fsync).digests);
  publish_checkpoint(std::move(publication), to, *strategy, metadata,
                     contents.common_file ? &*contents.common_file : nullptr, all,
                     target.save.io.fsync, [&] {
                       steps.go_on();
                       journal.remove();
                     });
  report.files = metadata.files.size();
}

/// Says in a remark if there is nothing. Throws also (unsupported) for a format that starts anew.
std::optional<Interrupted> find_left(const Location& destination, const ConversionFacts& facts,
                                     const PlannedCopy& copy, ConvertReport& report) {
  if (!copy.target.format->capabilities.resume)
    throw CheckpointError(ErrorCode::kUnsupported,
                          str_format("the format {} cannot go on with an interrupted conversion; "
                                     "leave out --resume",
                                     quote(report.to)));
  std::optional<Interrupted> left = find_interrupted(destination, facts);
  if (left)
    report.kept_files = left->journal.files.size();
  else
    report.remarks.push_back("nothing to resume: no interrupted conversion has left anything");
  return left;
}

std::uint64_t bytes_of(const std::optional<Interrupted>& left) {
  std::uint64_t bytes = 0;
  if (left) {
    for (const auto& [name, file] : left->journal.files) bytes += file.size;
  }
  return bytes;
}

/// The folder whose config.json says which model it is.
std::shared_ptr<const Storage> model_files_of(const ConvertOptions& options) {
  if (!options.model_files) return nullptr;
  if (!options.model_files->is_directory())
    throw CheckpointError(ErrorCode::kIo, "there is no such folder of a model's files",
                          {.file = options.model_files->display()});
  return with_hub_cache(options.model_files->directory());
}

void require_not_stopped(const ConvertOptions& options) {
  if (!options.stop.stop_requested()) return;
  throw CheckpointError(
      ErrorCode::kCancelled,
      options.resume ? "the conversion was stopped before it was complete; what it had finished "
                       "is kept, and --resume goes on with it"
                     : "the conversion was stopped before it was complete; what it had begun is "
                       "removed");
}

/// What a map is applied to: Megatron-FSDP's keys as Megatron-Core's, which maps know.
std::unique_ptr<CheckpointReader> open_for_map(const Location& source,
                                               const ConvertOptions& options,
                                               std::vector<std::string>& remarks) {
  auto reader = open_checkpoint(source, {.iteration = options.iteration, .strategy = options.from});
  if (!reader->info().conventions.megatron_fsdp) return reader;
  return from_megatron_fsdp(std::move(reader), remarks);
}

/// Through the map and back: what does not return as it was. Padding of a vocabulary is not
/// compared: it has no meaning and is lost. The progress of what follows goes on from this one's.
void check_round_trip(const MapRequest& request, const MappedSource& source,
                      ConvertOptions& options) {
  const auto [before, after] = round_trip_of(request, source);
  std::uint64_t bytes = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t total) {
    require_not_stopped(options);
    bytes = done;
    if (options.progress) options.progress(done, options.dry_run ? total : 2 * total);
  };
  const DiffReport found = diff(*before, *after,
                                {.common = false,
                                 .threads = options.read_threads.value_or(options.io.threads),
                                 .memory = options.max_memory,
                                 .progress = progress});
  ProblemList problems;
  for (const Difference& difference : found.differences)
    problems.add(str_format("{}: {}{}", quote(difference.key), to_string(difference.kind),
                            difference.a.empty() || difference.b.empty()
                                ? std::string()
                                : str_format(" {} became {}", difference.a, difference.b)));
  problems.raise_if_any(ErrorCode::kMismatch,
                        "through the map and back, these are not what they were:");
  if (!options.progress) return;
  options.progress = [bytes, show = options.progress](std::uint64_t done, std::uint64_t total) {
    show(bytes + done, bytes + total);
  };
}

/// Adds to `report` what patterns left out before the map.
void describe_left_out(const MappedSource& source, ConvertReport& report) {
  std::vector<std::string> gone = source.gone_tensors;
  gone.insert(gone.end(), source.gone_objects.begin(), source.gone_objects.end());
  report.left_out += gone.size();
  if (!gone.empty())
    report.remarks.push_back(str_format("left out before the map: {}, {}",
                                        counted(gone.size(), "key"), quoted_list(gone)));
}

/// The source under the keys that the map gives, which decide the format if no option does, with
/// the patterns that are left for these keys.
MappedSource open_source(const Location& source, ConvertOptions& options, ConvertReport& report) {
  require_rules(Call::kConvert,
                {.save = {.io = options.io},
                 .load = {.strategy = options.from,
                          .map = options.map,
                          .threads = options.read_threads.value_or(options.io.threads)}},
                nullptr);
  if (options.map.name.empty()) {
    if (options.check_round_trip)
      throw CheckpointError(ErrorCode::kInvalidArgument,
                            "a round trip is checked through a map; name one");
    MappedSource opened{.behind = options.keys};
    opened.reader =
        open_checkpoint(source, {.iteration = options.iteration, .strategy = options.from});
    return opened;
  }
  const std::shared_ptr<const Storage> files = model_files_of(options);
  std::vector<std::string> said;
  const MapRequest request{.open =
                               [&] {
                                 said.clear();
                                 return open_for_map(source, options, said);
                               },
                           .map = options.map,
                           .keys = options.keys,
                           .model_files = files.get()};
  MappedSource mapped = map_source(request);
  if (options.check_round_trip) check_round_trip(request, mapped, options);
  if (options.to.empty() && !options.compat)
    options.to = mapped.report.keys.to == KeyNames::kHf ? "hf" : "torch_dist";
  std::ranges::move(said, std::back_inserter(report.remarks));
  describe_left_out(mapped, report);
  std::ranges::move(mapped.report.remarks, std::back_inserter(report.remarks));
  return mapped;
}

/// A folder for transformers has the keys of its models. A copy of such a folder stays as it is.
void require_map_for_models(const CheckpointReader& reader, const Location& source,
                            const ConvertTarget& target, const ConvertOptions& options) {
  if (!target.format->conventions.model_folder || reader.info().conventions.model_folder ||
      !options.map.name.empty())
    return;
  const auto& tensors = reader.metadata().tensors;
  if (std::ranges::none_of(tensors, [](const auto& tensor) {
        return !is_optimizer_key(tensor.key) && is_megatron_key(tensor.key);
      }))
    return;
  std::vector<std::string> ignored;
  std::string fitting;
  for (const std::string& map :
       fitting_maps(*open_for_map(source, options, ignored), model_files_of(options).get()))
    fitting += (fitting.empty() ? "--map " : " or --map ") + map;
  throw CheckpointError(
      ErrorCode::kInvalidArgument,
      str_format("the keys are Megatron's, and transformers finds none of them; {}; --map none "
                 "insists on these keys",
                 fitting.empty() ? "no shipped map fits this model, so write one (docs/maps.md)"
                                 : "it has the keys and shapes of a model for " + fitting));
}

/// Models are what Hugging Face folders hold: the optimizer stays behind unless it is asked for.
void leave_optimizer(const CheckpointReader& reader, const ConvertTarget& target, bool optimizer,
                     KeyFilter& keys, std::vector<std::string>& remarks) {
  if (!target.format->conventions.model_folder || reader.info().conventions.model_folder ||
      !keys.include.empty() || optimizer)
    return;
  const Metadata& metadata = reader.metadata();
  std::vector<std::string> of_optimizer, of_model;
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    (is_optimizer_key(tensor.key) ? of_optimizer : of_model).push_back(tensor.key);
  if (of_optimizer.empty() || of_model.empty()) return;
  for (const char* const pattern : {"optimizer.*", "chained_[0-9]*.optimizer.*", "optim.*"}) {
    if (std::ranges::any_of(of_optimizer,
                            [&](const auto& key) { return glob_match(pattern, key); }))
      keys.exclude.emplace_back(pattern);
  }
  remarks.push_back(str_format("the optimizer stays behind: {}; --include '*' takes them",
                               counted(of_optimizer.size(), "tensor")));
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
  const bool chosen = options.keys.include.size() + options.keys.exclude.size() > 0;
  leave_optimizer(*reader, target, options.optimizer.has_value(), keys, report.remarks);
  std::vector<std::string> of_optimizer;
  const auto go_on = [&] { require_not_stopped(options); };
  const bool of_fsdp = reader->info().conventions.megatron_fsdp;
  if (of_fsdp && target.format->conventions.megatron_keys)
    reader = from_megatron_fsdp(std::move(reader), report.remarks);
  if (options.optimizer && options.optimizer != OptimizerSharding::kDpReshardable &&
      !takes_state(keys, reader->metadata()))
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        str_format("the patterns (--include, --exclude) leave out the optimizer's "
                   "state, which is to become {}; leave out one of them",
                   name_of(kOptimizerShardingNames, *options.optimizer)));
  if (options.optimizer)
    reader = with_optimizer_sharding(std::move(reader), *options.optimizer, of_optimizer,
                                     {.threads = options.read_threads.value_or(options.io.threads),
                                      .staging = std::min(options.staging, options.max_memory)},
                                     go_on, options.run);
  if (options.optimizer == OptimizerSharding::kDpReshardable)
    require_whole_model(keys, reader->metadata());
  if (target.format->conventions.megatron_fsdp && !of_fsdp) {
    require_no_lost_data(*reader, reader->metadata(),
                         "fsdp_dtensor is made of whole checkpoints; first convert what is whole "
                         "to torch_dist (--allow-partial)");
    reader = to_megatron_fsdp(std::move(reader), read_fsdp_save_options(target.save.strategy),
                              report.remarks);
  }
  const CopyMemory memory =
      share_memory(options.io, options.max_memory, options.staging, reader->metadata());
  target.save.io = memory.io;
  if (options.dry_run) require_free_name(destination, options.overwrite);

  const KeyFilter of_tensors = keys;
  reader = without_common_entries(std::move(reader), keys.exclude, report.remarks);
  if (!options.map.name.empty()) keys.check({&reader->metadata(), &opened.source_keys});
  CopyContents contents = select_contents(*reader, keys);
  if (holds_optimizer(contents.metadata))
    std::ranges::move(of_optimizer, std::back_inserter(report.remarks));
  if (options.ranks && holds_buckets(contents.metadata))
    report.remarks.emplace_back(
        "optimizer state in buckets is found by the chunks of the model that Megatron saved, which "
        "are cut anew here; --optimizer works with this source, not with the result");
  if (const auto names = weights_left_out(of_tensors, reader->metadata());
      !names.empty() && holds_buckets(contents.metadata))
    report.remarks.push_back("left out of the model, but not of the optimizer's buckets: " +
                             quoted_list(names));
  report.chunks_before = contents.chunks_before;
  contents = without_lost_data(std::move(contents), *reader, options.allow_partial, report.lost,
                               report.remarks);
  contents.state_left_out +=
      static_cast<std::uint64_t>(std::ranges::count_if(report.lost, is_optimizer_key));
  require_coverage(contents, report.source);
  contents = rename_contents(std::move(contents), options.rename, report.remarks);
  const Capabilities& can = target.format->capabilities;
  contents = can.objects || can.common_state
                 ? with_common_state(std::move(contents), *reader, target, options.check_source,
                                     report.remarks)
                 : tensors_only(std::move(contents), *reader, chosen, report.remarks);
  if (std::string conflict = iteration_conflict(*reader); !conflict.empty())
    report.remarks.push_back(std::move(conflict));
  report.left_out += contents.left_out;
  ModelFolder folder = model_folder(*reader, target, options, report.remarks);
  if (target.format->arrange) {
    reader =
        target.format->arrange(reader_of(contents, std::move(reader)), target.save, report.remarks);
    contents = select_contents(*reader, {});
    contents.chunks_before = report.chunks_before;
  }
  if (options.flattened == FlattenedForm::kMegatron) {
    const std::size_t changed = reformulate_optimizer_state(
        contents.metadata, contents.common, reader->info().conventions.fragments_lost);
    if (changed > 0)
      report.remarks.push_back(
          grouped(changed) +
          " optimizer tensors were flattened, as Megatron-Core 0.8 to 0.15 resume them");
    else if (std::ranges::none_of(contents.metadata.tensors,
                                  [](const TensorStorageMetadata& tensor) {
                                    return tensor.flattened_shape.has_value();
                                  }))
      report.remarks.emplace_back(
          "--flattened megatron had no effect: there is no optimizer state of that form");
  }

  require_resumable(contents, target, options);
  PlannedCopy copy = plan_copy(std::move(contents), std::move(target), std::move(folder), options);
  describe(copy, reader->metadata(), report);
  measure(copy, report);
  const ConversionFacts facts =
      conversion_facts(found, options, copy.target, copy.folder, copy.items);
  std::optional<Interrupted> left;
  if (options.resume) left = find_left(destination, facts, copy, report);
  require_space(destination, report.disk_bytes - std::min(report.disk_bytes, bytes_of(left)));

  const int readers = options.read_threads.value_or(options.io.threads);
  if (options.dry_run) {
    SourceCheck check(*reader, copy.contents, options.check_source, options.verify_integrity);
    if (options.verify_integrity) check.check_manifest(readers);
    return report;
  }
  const auto attempt = [&] {
    SourceCheck check(*reader, copy.contents, options.check_source, options.verify_integrity);
    CopySource from(*reader, copy.contents, check, *copy.target.format, memory, options.progress,
                    bytes_of(copy.items), go_on);
    const auto check_source = [&] {
      check.check_rest(readers, go_on);
      check.check_manifest(readers);
    };
    write(copy, destination, from,
          {memory.io.threads, options.resume, std::move(left), facts, check_source, go_on}, report);
  };
  try {
    attempt();
  } catch (const CheckpointError& error) {
    const bool as_stored = options.map.name.empty() && !options.optimizer &&
                           (of_fsdp || !copy.target.format->conventions.megatron_fsdp);
    if (error.code() != ErrorCode::kUnsupported || options.resume || !as_stored ||
        !keep_records(copy, *reader, report.remarks))
      throw;
    attempt();
  }
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
  if (!options.run.empty() && options.optimizer != OptimizerSharding::kDpReshardable)
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "arguments of a run decide how optimizer state in buckets lies; give "
                          "them with the optimizer's form dp_reshardable, or none");
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
