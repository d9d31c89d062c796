#include "dist_checkpointing/rewrite/convert.h"

#include <algorithm>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "configs/rename.h"
#include "dist_checkpointing/inspect/optimizer_form.h"
#include "dist_checkpointing/integrity.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "dist_checkpointing/training_root/target.h"
#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "mapping/planning/reshard.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/validate.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/tree.h"
#include "strategies/contract/registry.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/hashing.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/publish.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kLargestPiece = std::uint64_t{16} << 20;
constexpr std::uint64_t kSmallestPiece = std::uint64_t{64} << 10;

/// An object to write: one of the source, or bytes that were made here.
struct ObjectSource {
  std::size_t position = 0;
  std::optional<Bytes> bytes{};
};

/// What goes where: the result of looking at the source, before anything is written.
struct Contents {
  Metadata metadata;  ///< tensors and objects that are kept, under their names in the result
  std::vector<std::size_t> tensor_of;  ///< positions in the source
  std::vector<ObjectSource> object_of;
  std::optional<CommonState> common;   ///< if the target stores it beside the objects
  std::optional<Bytes> common_object;  ///< if it is one of them there
};

class Conversion {
 public:
  Conversion(const Location& source, const Location& destination, const ConvertOptions& options)
      : options_(options),
        target_(destination),
        source_(resolve_checkpoint(source, {.iteration = options.iteration})),
        reader_(
            open_checkpoint(source, {.iteration = options.iteration, .strategy = options.from})) {
    report_.source = source_.display();
    report_.destination = target_.display();
    report_.from = reader_->info().format;
    choose_target();
    share_memory();
  }

  ConvertReport run() {
    if (options_.dry_run) require_free_name();
    select();
    check_coverage();
    rename();
    collect_common();
    if (options_.flattened == FlattenedForm::kMegatron) reformulate();
    const ReshardOptions reshard{options_.ranks, options_.flattened};
    plans_ = plan_reshard(contents_.metadata, reshard);
    if (contents_.common_object) add_common_item();
    check_capabilities();
    if (plans_.size() > 1) save_.io.threads = 1;  // threads share the ranks, else a rank's files
    strategy_ = make_save_strategy(save_);
    // Objects of one key can come from any format; chunks were checked in the source already.
    plan_ = plan_global_save(plans_, {.kind = PlannerKind::kDcp, .validate = false});
    describe();
    measure();
    read_manifest();
    if (!options_.dry_run) {
      write();
    } else if (options_.verify_integrity) {
      manifest_->finish(read_threads());
    }
    return std::move(report_);
  }

 private:
  void choose_target() {
    if (reader_->info().conventions.per_rank) {
      throw CheckpointError(
          ErrorCode::kUnsupported,
          "tensors of rank folders (mp_rank_*) cannot be converted: they would have to be joined "
          "into the model's own tensors, which this version does not do, and no Megatron finds the "
          "keys as they are; load and save the checkpoint with Megatron, or take single tensors "
          "out with dckpt extract",
          {.file = report_.source});
    }
    save_.compat = options_.compat.value_or(save_.compat);
    if (!options_.to.empty())
      save_.strategy = {options_.to, options_.strategy_version, options_.strategy_options};
    else if (!options_.compat)
      save_.strategy.name = report_.from;
    const std::string asked = save_.strategy.name;
    require_writable(asked);
    save_ = canonical(save_);
    target_format_ = &find_save_strategy(save_.strategy.name, save_.strategy.version);
    report_.to = target_format_->name;
    if ((!options_.to.empty() && report_.to != asked) ||
        (options_.compat && save_.compat != *options_.compat)) {
      throw CheckpointError(
          ErrorCode::kInvalidArgument,
          "the format " + quote(asked) + " and compat " + quote(to_string(*options_.compat)) +
              " contradict each other; " +
              (to_dcp() && report_.to == asked
                   ? "Megatron-Core reads 'torch_dist', and plain DCP has only compat 'dcp'"
                   : "for PyTorch DCP alone say 'dcp' for the format, for Megatron-Core "
                     "compat 'megatron' or 'megatron-0.19'"));
    }
    if (to_dcp() && options_.flattened == FlattenedForm::kMegatron) {
      throw CheckpointError(ErrorCode::kInvalidArgument,
                            "only Megatron-Core reads its flattened form, and not from plain DCP; "
                            "leave flattened at 'boxes', or write 'torch_dist'");
    }
    save_.flattened = options_.flattened;
    save_.separation_hint = options_.separation_hint;
    save_.integrity = options_.integrity;
    if (!reader_->storage().stat(kIntegrityFile)) return;
    if (target_format_->capabilities.integrity)
      save_.integrity = true;
    else
      report_.remarks.push_back("the source has a manifest (integrity.json), but the format " +
                                quote(report_.to) + " can have none");
  }

  /// The error says what there is, also where the source's own format cannot be written.
  void require_writable(const std::string& format) const {
    std::vector<std::string> names;
    for (const SaveStrategyEntry& entry : save_strategies()) names.push_back(entry.name);
    if (std::ranges::find(names, format) != names.end()) return;
    throw CheckpointError(
        ErrorCode::kUnsupported,
        "checkpoints can be written as " + quoted_list(names, names.size()) + ", not as " +
            quote(format) +
            (options_.to.empty() ? " (the source's format); name one of them" : ""));
  }

  bool to_dcp() const { return target_format_->conventions.keys_are_paths; }
  bool from_dcp() const { return reader_->info().conventions.keys_are_paths; }
  int read_threads() const { return options_.read_threads.value_or(options_.io.threads); }

  /// The common state of the result, none if it has none; the source's is decoded once.
  const Value& common() {
    if (!common_) common_ = reader_->common_state();
    return *common_;
  }
  void replace_common(Value common) {
    common_ = std::move(common);
    own_common_ = true;
  }

  bool kept(const std::string& key) const { return options_.keys(key); }

  bool kept_object(const std::string& unique_key) const { return options_.keys.object(unique_key); }

  void select() {
    const Metadata& source = reader_->metadata();
    options_.keys.check({&source});
    Metadata& metadata = contents_.metadata;
    metadata.files = source.files;
    metadata.storage_meta = source.storage_meta;
    metadata.version = source.version;
    for (std::size_t i = 0; i < source.tensors.size(); ++i) {
      report_.chunks_before += source.tensors[i].chunks.size();
      if (!kept(source.tensors[i].key)) continue;
      metadata.tensors.push_back(source.tensors[i]);
      contents_.tensor_of.push_back(i);
    }
    for (std::size_t i = 0; i < source.objects.size(); ++i) {
      if (!kept_object(source.objects[i].key)) continue;
      metadata.objects.push_back(source.objects[i]);
      contents_.object_of.push_back({i});
    }
    report_.left_out = source.tensors.size() + source.objects.size() - metadata.tensors.size() -
                       metadata.objects.size();
    if (from_dcp()) require_paths(source);
    std::unordered_set<std::string_view> keys;
    for (const TensorStorageMetadata& tensor : metadata.tensors) keys.insert(tensor.key);
    for (const BytesStorageMetadata& object : metadata.objects) keys.insert(object.key);
    for (const auto& path : source.paths) {
      if (keys.contains(path.first)) metadata.paths.push_back(path);
    }
    for (const auto& path : source.common_paths) {
      if (kept_object(path.first)) metadata.common_paths.push_back(path);
    }
  }

  /// Paths decide where plain values go.
  static void require_paths(const Metadata& source) {
    if (const auto problem = problem_of_paths(source)) throw *problem;
  }

  void rename() {
    if (options_.rename.empty()) return;
    const KeyRenamer renamer(options_.rename);
    std::unordered_map<std::string, std::string> stored_as{{kCommonStateKey, kCommonStateKey}};
    ProblemList ambiguous;
    const auto renamed = [&](const std::string& key, bool object) {
      std::string name = object ? renamed_object(renamer, key) : renamer(key);
      const auto [first, inserted] = stored_as.try_emplace(name, key);
      if (!inserted)
        ambiguous.add(quote(first->second) + " and " + quote(key) + " both become " + quote(name));
      return name;
    };
    Metadata& metadata = contents_.metadata;
    std::unordered_map<std::string, std::string> names;
    for (TensorStorageMetadata& tensor : metadata.tensors) {
      std::string name = renamed(tensor.key, false);
      names.emplace(std::exchange(tensor.key, name), name);
    }
    for (BytesStorageMetadata& object : metadata.objects) {
      std::string name = renamed(object.key, true);
      names.emplace(std::exchange(object.key, name), name);
    }
    for (auto& [key, path] : metadata.paths) {
      const std::string& name = names.at(key);
      if (name != key) path = renamed_path(path, name);
      key = name;
    }
    for (auto& [key, path] : metadata.common_paths) {
      std::string name = renamed(key, true);
      names.emplace(std::exchange(key, name), name);
    }
    ambiguous.raise_if_any(ErrorCode::kMismatch,
                           "the rules for renaming give several stored keys the same name:");
    const auto changed =
        std::ranges::count_if(names, [](const auto& entry) { return entry.first != entry.second; });
    report_.remarks.push_back(grouped(static_cast<std::uint64_t>(changed)) + " keys were renamed");
  }

  /// A path that has a step for each part of its key gets one for each part of the new key, with
  /// list positions where it had some, counted from the end.
  static KeyPath renamed_path(const KeyPath& path, const std::string& name) {
    const auto has_dot = [](const PathElement& step) {
      return std::holds_alternative<std::string>(step) &&
             std::get<std::string>(step).find('.') != std::string::npos;
    };
    if (path.size() < 2 || std::ranges::any_of(path, has_dot)) return {name};
    const std::vector<std::string> parts = split(name, '.');
    KeyPath renamed(parts.begin(), parts.end());
    for (std::size_t i = 1; i <= std::min(path.size(), renamed.size()); ++i) {
      const PathElement& before = path[path.size() - i];
      if (std::holds_alternative<std::int64_t>(before) &&
          parts[parts.size() - i] == std::to_string(std::get<std::int64_t>(before)))
        renamed[renamed.size() - i] = before;
    }
    return renamed;
  }

  void reformulate() {
    const std::size_t changed = reformulate_optimizer_state(
        contents_.metadata, common(), reader_->info().conventions.fragments_lost);
    if (changed > 0)
      report_.remarks.push_back(
          grouped(changed) +
          " optimizer tensors were flattened, as Megatron-Core 0.8 to 0.15 resume them");
  }

  void check_coverage() const {
    std::string message;
    std::size_t count = 0;
    for (const TensorStorageMetadata& tensor : contents_.metadata.tensors) {
      for (const Problem& problem : validate_coverage(tensor)) {
        if (++count <= 10) message += "\n  " + quote(tensor.key) + ": " + problem.message;
      }
    }
    if (count == 0) return;
    if (count > 10) message += "\n  … and " + grouped(count - 10) + " more";
    throw CheckpointError(ErrorCode::kCorrupt,
                          "the stored chunks do not make up the tensors:" + message +
                              "\n(leave these tensors out to convert the rest)",
                          {.file = report_.source});
  }

  /// The common state in the form that the target wants; bytes are carried over unchanged where
  /// both sides use the same form.
  void collect_common() {
    if (!to_dcp() && from_dcp()) move_plain_objects();
    if (to_dcp() && !from_dcp()) restore_plain_objects();
    const bool as_object = to_dcp() || save_.compat == Compat::kMegatron019;
    const CheckpointInfo& info = reader_->info();
    if (!own_common_ && !as_object && info.common_file) {
      contents_.common.emplace(common(), carried(*info.common_file, {}));
      return;
    }
    if (!own_common_ && as_object && info.common_place && to_dcp() == from_dcp()) {
      contents_.common_object =
          carried(reader_->metadata().files[info.common_place->file], info.common_place);
      return;
    }
    if (common().is_none() && to_dcp()) return;
    const Value common = this->common().is_none() ? Value::dict() : this->common();
    if (as_object) {
      contents_.common_object = stored_object(common);
      if (info.common_file)
        report_.remarks.push_back("the common state moved from common.pt into the object " +
                                  std::string(kCommonStateKey));
      return;
    }
    contents_.common.emplace(common);
    if (info.common_place)
      report_.remarks.push_back(
          "the common state moved from an object into common.pt, which every Megatron reads");
  }

  /// What the target would have to leave out.
  void check_capabilities() const {
    const Capabilities& can = target_format_->capabilities;
    const auto refuse = [&](const std::string& what) {
      throw CheckpointError(ErrorCode::kUnsupported,
                            "the format " + quote(report_.to) + " does not store " + what);
    };
    if (!can.objects && !contents_.metadata.objects.empty())
      refuse("objects; leave them out, the first is " +
             quote(contents_.metadata.objects.front().key));
    if (!can.common_state && contents_.common && contents_.common->value().size() > 0)
      refuse("values that are not sharded, and the source has a common state");
  }

  Bytes stored_object(const Value& value) const {
    return save_torch_file(target_format_->conventions.objects_in_lists ? Value::list({value})
                                                                        : value);
  }

  /// The bytes of a torch file, or of a record in a data file, as they are.
  Bytes carried(const std::string& name, const std::optional<StorageInfo>& place) const {
    const auto file = reader_->storage().open(name);
    const std::uint64_t offset = place ? place->offset : 0;
    const std::uint64_t length = place ? place->length : file->size();
    return with_context({.file = file->name(), .offset = offset}, [&] {
      if (length > kMaxCommonBytes || !range_fits(offset, length, file->size())) {
        throw CheckpointError(ErrorCode::kCorrupt,
                              "the common state should have " + grouped(length) +
                                  " bytes here, but the file has " + grouped(file->size()));
      }
      if (options_.check_source) check_torch_file(*file, offset, length);
      Bytes bytes(length);
      file->read(offset, bytes);
      return bytes;
    });
  }

  /// Values that a plain DCP directory keeps under their paths are common state in Megatron's
  /// terms.
  void move_plain_objects() {
    Metadata& metadata = contents_.metadata;
    std::unordered_map<std::string, KeyPath> paths(metadata.paths.begin(), metadata.paths.end());
    std::vector<BytesStorageMetadata> objects;
    std::vector<ObjectSource> sources;
    std::vector<std::pair<KeyPath, Value>> leaves;
    std::unordered_set<std::string> moved;
    for (std::size_t i = 0; i < metadata.objects.size(); ++i) {
      const std::string& key = metadata.objects[i].key;
      if (ShardedObject::is_unique_key(key)) {
        objects.push_back(metadata.objects[i]);
        sources.push_back(contents_.object_of[i]);
        continue;
      }
      const auto path = paths.find(key);
      leaves.emplace_back(path == paths.end() ? KeyPath{key} : path->second,
                          reader_->object(contents_.object_of[i].position));
      metadata.common_paths.emplace_back(key, leaves.back().first);
      moved.insert(key);
    }
    if (leaves.empty()) return;
    std::erase_if(metadata.paths, [&](const auto& entry) { return moved.contains(entry.first); });
    metadata.objects = std::move(objects);
    contents_.object_of = std::move(sources);
    report_.remarks.push_back(grouped(leaves.size()) +
                              " plain values of the DCP directory became the common state");
    Value common = this->common().is_none() ? Value::dict() : this->common();
    replace_common(merge(std::move(common), unflatten_state_dict(leaves)));
  }

  /// The way back: what a conversion once moved into the common state is an object of its own
  /// again.
  void restore_plain_objects() {
    Metadata& metadata = contents_.metadata;
    if (reader_->metadata().common_paths.empty()) return;
    const std::size_t before = metadata.objects.size();
    Value common = this->common();
    for (const auto& [key, path] : std::exchange(metadata.common_paths, {})) {
      const Value* const found = find_element(common, path);
      if (found == nullptr) continue;
      Bytes bytes = stored_object(*found);
      metadata.objects.push_back({key, {.length = bytes.size()}});
      if (path.size() > 1 || !metadata.paths.empty())
        metadata.paths.emplace_back(key, dotted_name(path) == key ? path : renamed_path(path, key));
      contents_.object_of.push_back({.bytes = std::move(bytes)});
    }
    for (const auto& [key, path] : reader_->metadata().common_paths) {
      if (find_element(common, path) != nullptr) remove_element(common, path);
    }
    replace_common(common.size() == 0 ? Value() : std::move(common));
    report_.remarks.push_back(grouped(metadata.objects.size() - before) +
                              " values of the common state are objects of the DCP directory again");
  }

  /// Takes an element out of a nested dict, with the dicts and lists that hold nothing without it.
  /// Positions in lists stay: what was there is none.
  static void remove_element(Value& tree, std::span<const PathElement> path) {
    const auto is_empty = [](const Value& value) {
      return value.is_dict()
                 ? value.size() == 0
                 : value.is_list() && std::ranges::all_of(value.items(), [](const Value& item) {
                     return item.is_none();
                   });
    };
    const auto* const name = std::get_if<std::string>(&path.front());
    Value* const inner =
        name != nullptr
            ? tree.mutable_dict().find(Value(*name))
            : &tree.mutable_items()[static_cast<std::size_t>(std::get<std::int64_t>(path.front()))];
    if (path.size() > 1) {
      remove_element(*inner, path.subspan(1));
      if (!is_empty(*inner)) return;
    }
    if (name != nullptr)
      tree.mutable_dict().erase(Value(*name));
    else
      *inner = Value();
  }

  void add_common_item() {
    WriteItem item;
    item.kind = WriteItem::Kind::kObject;
    item.key = kCommonStateKey;
    item.source = kCommonSource;
    item.nbytes = contents_.common_object->size();
    plans_.front().push_back(std::move(item));
  }

  void describe() {
    report_.tensors = plan_.metadata.tensors.size();
    report_.objects = contents_.metadata.objects.size();
    report_.ranks = static_cast<int>(plans_.size());
    for (const TensorStorageMetadata& tensor : plan_.metadata.tensors) {
      report_.chunks_after += tensor.chunks.size();
      report_.bytes += tensor.nbytes();
    }
    const auto flattened = std::ranges::count_if(
        reader_->metadata().tensors,
        [](const TensorStorageMetadata& tensor) { return tensor.flattened_shape.has_value(); });
    if (flattened > 0 && options_.flattened == FlattenedForm::kBoxes) {
      report_.remarks.push_back(grouped(static_cast<std::uint64_t>(flattened)) +
                                " flattened tensors became ordinary ones of their original shapes");
    }
    for (std::string& sentence : describe_readers(
             {target_format_->conventions, contents_.common.has_value(), plan_.metadata, common()}))
      report_.remarks.push_back(std::move(sentence));
  }

  /// How many files there will be, how large, and whether they fit. A format that cannot tell has
  /// the bytes of what is stored, at least.
  void measure() {
    if (target_format_->measure) {
      std::vector<WrittenItems> written;
      for (std::size_t rank = 0; rank < plans_.size(); ++rank)
        written.push_back(target_format_->measure(save_, static_cast<int>(rank), plan_of(rank)));
      for (const WrittenItems& of_rank : written) {
        for (const StorageInfo& place : of_rank.places) report_.disk_bytes += place.length;
        report_.files += of_rank.files.size();
      }
      place(written);
      const auto counters = std::make_shared<StorageCounters>();
      strategy_->write_metadata(*counting_storage(memory_storage(), counters), "", plan_.metadata,
                                nullptr);
      report_.disk_bytes += counters->bytes_written;
    } else {
      report_.disk_bytes = report_.bytes;
      for (const BytesStorageMetadata& object : contents_.metadata.objects)
        report_.disk_bytes += object.place.length;
    }
    if (contents_.common) report_.disk_bytes += contents_.common->archive().size();
    require_space();
  }

  SavePlan plan_of(std::size_t rank) const { return final_plan(plans_[rank], plan_.items[rank]); }

  void place(std::vector<WrittenItems>& written) {
    std::vector<std::vector<StorageInfo>> places;
    std::vector<std::vector<std::string>> files;
    for (WrittenItems& of_rank : written) {
      places.push_back(std::move(of_rank.places));
      files.push_back(std::move(of_rank.files));
    }
    plan_.metadata = written_metadata(plan_, places, files);
  }

  /// What publishing would find only at the end.
  void require_free_name() const {
    const std::optional<FileInfo> found = target_.stat();
    if (!found ||
        (found->kind == FileInfo::Kind::kDirectory && target_.directory()->list("").empty()))
      return;
    if (options_.overwrite) return check_replaceable(target_);
    throw CheckpointError(ErrorCode::kAlreadyExists,
                          "the destination exists and is not to be replaced (overwrite)",
                          {.file = target_.display()});
  }

  void require_space() const {
    const std::optional<std::uint64_t> available = target_.storage()->available_space();
    if (!available || report_.disk_bytes <= *available) return;
    throw CheckpointError(ErrorCode::kIo,
                          "the result needs about " + human_bytes(report_.disk_bytes) +
                              ", but only " + human_bytes(*available) + " are free",
                          {.file = target_.storage()->describe("")});
  }

  /// What a manifest of the source says of the files that are read, or of all files.
  void read_manifest() {
    const CheckpointReader& reader = *reader_;
    if (options_.verify_integrity) {
      manifest_.emplace(reader.storage(), require_manifest(reader));
      return;
    }
    if (!options_.check_source) return;
    const std::optional<IntegrityManifest> manifest = find_integrity_manifest(reader.storage());
    if (!manifest) return;
    std::set<std::uint32_t> data_files;
    for (const TensorStorageMetadata& tensor : contents_.metadata.tensors) {
      for (const StorageInfo& place : tensor.places) data_files.insert(place.file);
    }
    for (const BytesStorageMetadata& object : contents_.metadata.objects)
      data_files.insert(object.place.file);
    if (reader.info().common_place) data_files.insert(reader.info().common_place->file);
    std::vector<std::string> files = reader.info().index_files;
    if (reader.info().common_file) files.push_back(*reader.info().common_file);
    for (const std::uint32_t file : data_files) files.push_back(reader.metadata().files[file]);
    manifest_.emplace(reader.storage(), entries_of(*manifest, files));
  }

  /// A data file of the source, for what checks it on the way.
  std::unique_ptr<ReadableFile> open_source(const std::string& name) {
    return manifest_ ? manifest_->open(name) : reader_->storage().open(name);
  }

  /// Records that have not passed as a whole while they were copied: cut finely anew, or with
  /// members that were not copied.
  void check_rest() {
    const Metadata& source = reader_->metadata();
    const auto place = [&](const ChunkNumber& chunk) -> const StorageInfo& {
      return source.tensors[chunk.tensor].places[chunk.chunk];
    };
    std::vector<ChunkNumber> chunks = checks_.unchecked();
    std::ranges::sort(chunks, {}, [&](const ChunkNumber& chunk) {
      return std::tie(place(chunk).file, place(chunk).offset);
    });
    // One task per file: each file is opened once, and read from front to back.
    std::vector<std::size_t> starts;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (i == 0 || place(chunks[i]).file != place(chunks[i - 1]).file) starts.push_back(i);
    }
    parallel_for(starts.size(), read_threads(), [&](std::size_t task) {
      const std::size_t end = task + 1 < starts.size() ? starts[task + 1] : chunks.size();
      const auto file = open_source(source.files[place(chunks[starts[task]]).file]);
      for (std::size_t i = starts[task]; i < end; ++i) {
        go_on_unless_stopped();
        with_context({.key = source.tensors[chunks[i].tensor].key},
                     [&] { reader_->check_chunk(chunks[i].tensor, chunks[i].chunk, *file); });
      }
    });
  }

  void go_on_unless_stopped() const {
    if (!options_.stop.stop_requested()) return;
    throw CheckpointError(
        ErrorCode::kIo,
        "the conversion was stopped before it was complete; what it had begun is removed");
  }

  /// As many writers as max_memory is enough for, and the largest pieces that it allows them: a
  /// writer has a piece, as much for reading it, and its buffers.
  void share_memory() {
    constexpr std::uint64_t kWriteBuffer = std::uint64_t{1} << 20;
    constexpr std::uint64_t kDirectBlocks = std::uint64_t{8} << 20;
    WriteOptions& io = save_.io;
    io = options_.io;
    io.threads = std::max(io.threads, 1);
    if (io.engine == IoEngine::kAuto &&
        options_.max_memory / static_cast<std::uint64_t>(io.threads) < 2 * kDirectBlocks)
      io.engine = IoEngine::kBuffered;
    const std::uint64_t buffers =
        kWriteBuffer + (io.engine == IoEngine::kBuffered ? 0 : kDirectBlocks);
    const std::uint64_t least = buffers + 2 * kSmallestPiece;
    if (options_.max_memory < least) {
      throw CheckpointError(ErrorCode::kInvalidArgument,
                            "a conversion takes at least " + human_bytes(least) +
                                " of memory, got a limit of " + human_bytes(options_.max_memory));
    }
    io.threads = static_cast<int>(std::min<std::uint64_t>(options_.max_memory / least,
                                                          static_cast<std::uint64_t>(io.threads)));
    piece_ = std::min((options_.max_memory / static_cast<std::uint64_t>(io.threads) - buffers) / 2,
                      kLargestPiece);
    staging_ = std::clamp(options_.staging / static_cast<std::uint64_t>(io.threads), kSmallestPiece,
                          piece_);
    threads_ = io.threads;
  }

  /// Feeds the writer from the source, a piece at a time.
  class Source : public ItemSource {
   public:
    Source(Conversion& conversion, std::uint64_t total)
        : conversion_(conversion), progress_(conversion.options_.progress, total) {}

    Bytes object(const WriteItem& item) override {
      if (item.source == kCommonSource) return *conversion_.contents_.common_object;
      const ObjectSource& object = conversion_.contents_.object_of[item.source];
      const CheckpointReader& reader = *conversion_.reader_;
      progress_.add(item.nbytes);
      if (object.bytes) return *object.bytes;
      return conversion_.report_.from == conversion_.report_.to
                 ? reader.object_bytes(object.position)
                 : conversion_.stored_object(reader.object(object.position));
    }

    void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
      const CheckpointReader& reader = *conversion_.reader_;
      const std::int64_t elements = numel(item.chunk.sizes);
      const auto step = std::max<std::int64_t>(
          1, static_cast<std::int64_t>(conversion_.piece_ / item_size(item.properties.dtype)));
      Bytes buffer(std::min<std::uint64_t>(
          item.nbytes, static_cast<std::uint64_t>(step) * item_size(item.properties.dtype)));
      for (std::int64_t begin = 0; begin < elements; begin += step) {
        conversion_.go_on_unless_stopped();
        const std::int64_t count = std::min(step, elements - begin);
        WantedShard wanted = wanted_for(conversion_.contents_.metadata, item, begin, count);
        wanted.tensor = static_cast<std::uint32_t>(conversion_.contents_.tensor_of[item.source]);
        const Tensor part(item.properties.dtype, Shape{count}, Shape{1}, buffer.data(), nullptr);
        const auto items = plan_reads(reader.metadata(), {&wanted, 1});
        read_tensors(
            reader, items, {&part, 1},
            {.threads = 1,
             .staging = conversion_.staging_,
             .verify = conversion_.options_.check_source,
             .checks = &conversion_.checks_,
             .open = [&](const std::string& name) { return conversion_.open_source(name); }});
        sink(part.bytes());
        progress_.add(part.nbytes());
      }
    }

   private:
    Conversion& conversion_;
    ProgressCounter progress_;
  };

  void write() {
    std::shared_ptr<Storage> storage = target_.storage();
    const auto digests = std::make_shared<FileDigests>();
    if (save_.integrity) storage = hashing_storage(storage, digests);
    if (options_.overwrite) check_replaceable(target_);
    remove_dead_attempts(target_);
    Publication publication =
        Publication::begin(storage, target_.name(), staging_token(),
                           {.overwrite = options_.overwrite, .sync = options_.io.fsync});
    std::uint64_t total = report_.bytes;
    for (const BytesStorageMetadata& object : contents_.metadata.objects)
      total += object.place.length;
    Source source(*this, total);

    std::vector<WrittenItems> written(plans_.size());
    parallel_for(plans_.size(), threads_, [&](std::size_t rank) {
      written[rank] = strategy_->write_data(*storage, publication.staging(), static_cast<int>(rank),
                                            plan_of(rank), source);
    });
    if (options_.check_source) check_rest();
    if (manifest_) manifest_->finish(read_threads());
    place(written);
    Metadata& metadata = plan_.metadata;
    restore_order(metadata.tensors, contents_.metadata.tensors);
    restore_order(metadata.objects, contents_.metadata.objects);
    metadata.paths = contents_.metadata.paths;
    metadata.common_paths = contents_.metadata.common_paths;
    metadata.storage_meta = contents_.metadata.storage_meta;
    metadata.version = contents_.metadata.version;
    report_.files = metadata.files.size();

    strategy_->write_metadata(*storage, publication.staging(), metadata,
                              contents_.common ? &*contents_.common : nullptr);
    if (save_.integrity)
      write_manifest(*storage, publication.staging(), digests->in(publication.staging()),
                     options_.io.fsync);
    go_on_unless_stopped();
    publication.commit();
  }

  /// Keys stand in the order of the source, whichever ranks hold them now.
  template <typename Entries>
  static void restore_order(Entries& entries, const Entries& source) {
    std::unordered_map<std::string_view, std::size_t> position;
    for (std::size_t i = 0; i < source.size(); ++i) position.emplace(source[i].key, i);
    const auto rank = [&](const auto& entry) {
      const auto found = position.find(entry.key);
      return found == position.end() ? source.size() : found->second;
    };
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  }

  static constexpr std::uint32_t kCommonSource = UINT32_MAX;
  static constexpr std::uint64_t kMaxCommonBytes = std::uint64_t{16} << 30;

  const ConvertOptions& options_;
  const Location target_;
  const Location source_;
  std::unique_ptr<CheckpointReader> reader_;
  RecordChecks checks_{reader_->metadata()};
  SaveOptions save_;  ///< what the target's strategy is made with
  const SaveStrategyEntry* target_format_ = nullptr;
  std::unique_ptr<SaveStrategy> strategy_;
  int threads_ = 1;            ///< ranks that are written at the same time
  std::uint64_t piece_ = 0;    ///< bytes of a tensor that a writer holds
  std::uint64_t staging_ = 0;  ///< bytes that reading it may take
  Contents contents_;
  std::optional<ManifestCheck> manifest_;  ///< of the source, if it is compared
  std::optional<Value> common_;
  bool own_common_ = false;  ///< common_ is not what the source has
  std::vector<SavePlan> plans_;
  GlobalPlan plan_;
  ConvertReport report_;
};

}  // namespace

ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options) try {
  if (options.ranks && (*options.ranks < 1 || *options.ranks > kMaxRanks)) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "the number of ranks must be between 1 and " + grouped(kMaxRanks) +
                              ", got " + std::to_string(*options.ranks));
  }
  require_target_name(destination);
  return Conversion(source, destination, options).run();
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
