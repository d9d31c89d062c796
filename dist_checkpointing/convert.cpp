#include "dist_checkpointing/convert.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "dist_checkpointing/open.h"
#include "mapping/base/parallel_for.h"
#include "dist_checkpointing/staging_token.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/target_path.h"
#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/text.h"
#include "mapping/planning/global_plan.h"
#include "mapping/planning/reshard.h"
#include "mapping/planning/validate.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/tree.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/read_tensors.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/publish.h"
#include "strategies/torch_dist/reader.h"
#include "strategies/torch_dist/writer.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kLargestPiece = std::uint64_t{16} << 20;
constexpr std::uint64_t kSmallestPiece = std::uint64_t{64} << 10;

/// What goes where: the result of looking at the source, before anything is written.
struct Contents {
  Metadata metadata;                     ///< tensors and objects that are kept
  std::vector<std::size_t> tensor_of;    ///< their positions in the source
  std::vector<std::size_t> object_of;
  std::optional<Bytes> common_file;      ///< for Compat::kMegatron
  std::optional<Bytes> common_object;    ///< for the others
};

class Conversion {
 public:
  Conversion(const std::filesystem::path& source, const std::filesystem::path& destination,
             const ConvertOptions& options)
      : options_(options),
        target_(split_target(destination)),
        reader_(open_checkpoint(source, {.iteration = options.iteration})) {
    report_.source = resolve_checkpoint(source, {.iteration = options.iteration});
    report_.destination = destination;
    report_.from = reader_->info().format;
    choose_target();
  }

  ConvertReport run() {
    select();
    check_coverage();
    collect_common();
    const ReshardOptions reshard{options_.ranks, flattened_form()};
    plans_ = plan_reshard(contents_.metadata, reshard);
    if (contents_.common_object) add_common_item();
    // Objects of one key can come from any format; chunks were checked in the source already.
    plan_ = plan_global_save(plans_, {.kind = PlannerKind::kDefault, .validate = false});
    describe();
    if (options_.dry_run) return std::move(report_);
    if (options_.check_source) check_source();
    write();
    return std::move(report_);
  }

 private:
  void choose_target() {
    const std::string to = options_.to.empty() ? report_.from : options_.to;
    if (to != "torch_dist" && to != "dcp") {
      throw CheckpointError(ErrorCode::kUnsupported, "checkpoints can be written as 'torch_dist' or 'dcp', not as " + dckpt::quoted(to) +
                                                         (options_.to.empty() ? " (the source's format); name one of them" : ""));
    }
    report_.to = to;
    if (to == "dcp") {
      compat_ = Compat::kDcp;
    } else if (options_.compat && *options_.compat != Compat::kDcp) {
      compat_ = *options_.compat;
    } else {
      compat_ = report_.from == "torch_dist" && !reader_->info().common_file ? Compat::kMegatron019 : Compat::kMegatron;
    }
  }

  FlattenedForm flattened_form() const { return options_.flattened.value_or(report_.to == "dcp" ? FlattenedForm::kBoxes : FlattenedForm::kMegatron); }

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
      contents_.object_of.push_back(i);
    }
    report_.left_out = source.tensors.size() + source.objects.size() - metadata.tensors.size() -
                       metadata.objects.size();
    if (report_.from == "dcp") require_paths(source);
    if (report_.from == report_.to) keep_paths(source);
  }

  /// Paths decide where plain values go.
  static void require_paths(const Metadata& source) {
    if (const auto problem = problem_of_paths(source)) throw *problem;
  }

  void keep_paths(const Metadata& source) {
    for (const auto& path : source.paths) {
      const bool object = source.find_object(path.first) != nullptr;
      if (object ? kept_object(path.first) : kept(path.first)) contents_.metadata.paths.push_back(path);
    }
  }

  void check_coverage() const {
    std::string message;
    std::size_t count = 0;
    for (const TensorMetadata& tensor : contents_.metadata.tensors) {
      for (const Problem& problem : validate_coverage(tensor)) {
        if (++count <= 10) message += "\n  " + dckpt::quoted(tensor.key) + ": " + problem.message;
      }
    }
    if (count == 0) return;
    if (count > 10) message += "\n  … and " + grouped(count - 10) + " more";
    throw CheckpointError(ErrorCode::kCorrupt, "the stored chunks do not make up the tensors:" + message + "\n(leave these tensors out to convert the rest)",
                          {.file = report_.source.string()});
  }

  /// The common state in the form that the target wants; bytes are carried over unchanged where both sides use the same form.
  void collect_common() {
    if (report_.to == "torch_dist" && report_.from == "dcp") move_plain_objects();
    const bool as_file = compat_ == Compat::kMegatron;
    const CheckpointInfo& info = reader_->info();
    if (as_file && info.common_file) {
      contents_.common_file = carried(*info.common_file, {});
      return;
    }
    if (!as_file && info.common_place) {
      contents_.common_object = carried(reader_->metadata().files[info.common_place->file], info.common_place);
      return;
    }
    Value common = plain_common_ ? *plain_common_ : reader_->common_state();
    if (common.is_none()) {
      if (report_.to == "dcp") return;
      common = Value::dict();
    }
    if (as_file) {
      contents_.common_file = save_torch_file(common);
      if (info.common_place) report_.remarks.push_back("the common state moved from an object into common.pt, which every Megatron reads");
    } else {
      contents_.common_object = save_torch_file(Value::list({common}));
      if (info.common_file) report_.remarks.push_back("the common state moved from common.pt into the object " + std::string(kCommonStateKey));
    }
  }

  /// The bytes of a torch file, or of a record in a data file, as they are.
  Bytes carried(const std::string& name, const std::optional<Place>& place) const {
    const auto file = reader_->storage().open(name);
    const std::uint64_t offset = place ? place->offset : 0;
    const std::uint64_t length = place ? place->length : file->size();
    return with_context({.file = file->name(), .offset = offset}, [&] {
      if (length > kMaxCommonBytes || !range_fits(offset, length, file->size())) {
        throw CheckpointError(ErrorCode::kCorrupt, "the common state should have " + grouped(length) + " bytes here, but the file has " + grouped(file->size()));
      }
      if (options_.check_source) check_torch_file(*file, offset, length);
      Bytes bytes(length);
      file->read(offset, bytes);
      return bytes;
    });
  }

  /// Values that a plain DCP directory keeps under their paths are common state in Megatron's terms.
  void move_plain_objects() {
    const Metadata& source = reader_->metadata();
    std::vector<std::pair<KeyPath, Value>> leaves;
    Metadata kept_metadata = contents_.metadata;
    kept_metadata.objects.clear();
    std::vector<std::size_t> kept_positions;
    for (std::size_t i = 0; i < contents_.object_of.size(); ++i) {
      const ObjectMetadata& object = contents_.metadata.objects[i];
      if (ShardedObject::is_unique_key(object.key)) {
        kept_metadata.objects.push_back(object);
        kept_positions.push_back(contents_.object_of[i]);
        continue;
      }
      const auto path = std::find_if(source.paths.begin(), source.paths.end(), [&](const auto& entry) { return entry.first == object.key; });
      leaves.emplace_back(path == source.paths.end() ? KeyPath{object.key} : path->second, reader_->object(contents_.object_of[i]));
    }
    contents_.metadata = std::move(kept_metadata);
    contents_.object_of = std::move(kept_positions);
    if (leaves.empty()) return;
    report_.remarks.push_back(grouped(leaves.size()) + " plain values of the DCP directory became the common state");
    Value common = reader_->common_state();
    if (common.is_none()) common = Value::dict();
    plain_common_ = merge(std::move(common), unflatten_state_dict(leaves));
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
    for (const TensorMetadata& tensor : plan_.metadata.tensors) {
      report_.chunks_after += tensor.chunks.size();
      report_.bytes += tensor.nbytes();
    }
    const auto flattened = std::count_if(contents_.metadata.tensors.begin(), contents_.metadata.tensors.end(), [](const auto& tensor) { return tensor.flattened_shape.has_value(); });
    if (flattened > 0) {
      report_.remarks.push_back(grouped(static_cast<std::uint64_t>(flattened)) + (flattened_form() == FlattenedForm::kBoxes
                                                                                      ? " flattened tensors became ordinary ones of their original shapes"
                                                                                      : " flattened tensors keep Megatron's form (0.8 to 0.15 load it)"));
    }
  }

  void check_source() const {
    const Metadata& source = reader_->metadata();
    std::vector<std::pair<std::size_t, std::size_t>> chunks;
    for (const std::size_t tensor : contents_.tensor_of) {
      for (std::size_t chunk = 0; chunk < source.tensors[tensor].chunks.size(); ++chunk) chunks.emplace_back(tensor, chunk);
    }
    std::sort(chunks.begin(), chunks.end(), [&](const auto& a, const auto& b) {
      const Place& left = source.tensors[a.first].places[a.second];
      const Place& right = source.tensors[b.first].places[b.second];
      return std::tie(left.file, left.offset) < std::tie(right.file, right.offset);
    });
    // One task per file: each file is opened once, and read from front to back.
    std::vector<std::size_t> starts;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (i == 0 || file_of(chunks[i]) != file_of(chunks[i - 1])) starts.push_back(i);
    }
    parallel_for(starts.size(), options_.io.threads, [&](std::size_t task) {
      const std::size_t end = task + 1 < starts.size() ? starts[task + 1] : chunks.size();
      const auto file = reader_->storage().open(source.files[file_of(chunks[starts[task]])]);
      for (std::size_t i = starts[task]; i < end; ++i) {
        go_on_unless_stopped();
        reader_->check_chunk(chunks[i].first, chunks[i].second, *file);
      }
    });
    for (const std::size_t object : contents_.object_of) reader_->check_object(object);
  }

  void go_on_unless_stopped() const {
    if (!options_.stop.stop_requested()) return;
    throw CheckpointError(ErrorCode::kIo, "the conversion was stopped before it was complete; what it had begun is removed");
  }

  std::uint32_t file_of(const std::pair<std::size_t, std::size_t>& chunk) const { return reader_->metadata().tensors[chunk.first].places[chunk.second].file; }

  /// Feeds the writer from the source, a piece at a time.
  class Source : public ItemSource {
   public:
    Source(const Conversion& conversion, std::uint64_t total) : conversion_(conversion), progress_(conversion.options_.progress, total) {
      const auto threads = static_cast<std::uint64_t>(std::max(conversion.options_.io.threads, 1));
      // A piece occupies its own bytes, and reading it may stage as much again.
      piece_ = std::clamp(conversion.options_.max_memory / threads / 2, kSmallestPiece, kLargestPiece);
    }

    Bytes object(const WriteItem& item) override {
      if (item.source == kCommonSource) return *conversion_.contents_.common_object;
      const std::size_t position = conversion_.contents_.object_of[item.source];
      const CheckpointReader& reader = *conversion_.reader_;
      progress_.add(item.nbytes);
      if (reader.info().format == "torch_dist" || reader.info().format == "dcp") return reader.object_bytes(position);
      return save_torch_file(Value::list({reader.object(position)}));
    }

    void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
      const CheckpointReader& reader = *conversion_.reader_;
      const std::int64_t elements = numel(item.chunk.sizes);
      const auto step = std::max<std::int64_t>(1, static_cast<std::int64_t>(piece_ / item_size(item.properties.dtype)));
      Bytes buffer(std::min<std::uint64_t>(item.nbytes, static_cast<std::uint64_t>(step) * item_size(item.properties.dtype)));
      for (std::int64_t begin = 0; begin < elements; begin += step) {
        conversion_.go_on_unless_stopped();
        const std::int64_t count = std::min(step, elements - begin);
        WantedShard wanted = wanted_for(conversion_.contents_.metadata, item, begin, count);
        wanted.tensor = static_cast<std::uint32_t>(conversion_.contents_.tensor_of[item.source]);
        const Tensor part(item.properties.dtype, Shape{count}, Shape{1}, buffer.data(), nullptr);
        const auto items = plan_reads(reader.metadata(), {&wanted, 1});
        read_tensors(reader, items, {&part, 1}, {.threads = 1, .staging = piece_});
        sink(part.bytes());
        progress_.add(part.nbytes());
      }
    }

   private:
    const Conversion& conversion_;
    ProgressCounter progress_;
    std::uint64_t piece_ = 0;
  };

  void write() {
    const std::shared_ptr<Storage> storage = posix_storage(target_.parent);
    if (options_.overwrite) check_replaceable(target_);
    remove_dead_attempts(target_.parent, target_.name);
    Publication publication =
        Publication::begin(storage, target_.name, staging_token(),
                           {.overwrite = options_.overwrite, .sync = options_.io.fsync});
    std::uint64_t total = report_.bytes;
    for (const ObjectMetadata& object : contents_.metadata.objects) total += object.place.length;
    Source source(*this, total);

    std::vector<std::vector<Place>> places(plans_.size());
    std::vector<std::vector<std::string>> files(plans_.size());
    WriteOptions io = options_.io;
    io.threads = plans_.size() > 1 ? 1 : io.threads;  // threads share the ranks, or else the files of the only one
    parallel_for(plans_.size(), options_.io.threads, [&](std::size_t rank) {
      WrittenItems written = write_data_files(*storage, publication.staging(), static_cast<int>(rank), final_plan(plans_[rank], plan_.items[rank]), source, io,
                                              options_.separation_hint);
      places[rank] = std::move(written.places);
      files[rank] = std::move(written.files);
    });
    set_places(plan_, places, files);
    Metadata& metadata = plan_.metadata;
    restore_order(metadata.tensors, contents_.metadata.tensors);
    restore_order(metadata.objects, contents_.metadata.objects);
    metadata.paths = contents_.metadata.paths;
    metadata.storage_meta = contents_.metadata.storage_meta;
    metadata.version = contents_.metadata.version;
    report_.files = metadata.files.size();

    CheckpointMarkers markers;
    markers.compat = compat_;
    markers.common_file = std::move(contents_.common_file);
    markers.integrity = options_.integrity || reader_->storage().stat(kIntegrityFile).has_value();
    markers.fsync = options_.io.fsync;
    write_markers(*storage, publication.staging(), metadata, markers);
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
    std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  }

  static constexpr std::uint32_t kCommonSource = UINT32_MAX;
  static constexpr std::uint64_t kMaxCommonBytes = std::uint64_t{16} << 30;

  const ConvertOptions& options_;
  TargetPath target_;
  std::unique_ptr<CheckpointReader> reader_;
  Compat compat_ = Compat::kMegatron;
  Contents contents_;
  std::optional<Value> plain_common_;
  std::vector<SavePlan> plans_;
  GlobalPlan plan_;
  ConvertReport report_;
};

}  // namespace

ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination, const ConvertOptions& options) try {
  if (options.ranks && (*options.ranks < 1 || *options.ranks > kMaxRanks)) {
    throw CheckpointError(ErrorCode::kInvalidArgument, "the number of ranks must be between 1 and " + grouped(kMaxRanks) + ", got " + std::to_string(*options.ranks));
  }
  return Conversion(source, destination, options).run();
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
