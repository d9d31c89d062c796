// How ranks save together. Between two collectives every rank does local work inside agree(), so that no rank leaves alone.
//
//   1. Each rank plans what it holds; the plans go to rank 0.
//   2. Rank 0 decides who writes what, begins the publication, and tells each rank its items and where to write them.
//   3. Each rank writes its data files and makes them durable; what lies where goes to rank 0.
//   4. Rank 0 writes the common state, .metadata and metadata.json, and publishes.
//
// A rank that fails in any step fails all of them, and rank 0 removes what was written.

#include "dist_checkpointing/save.h"

#include <algorithm>
#include <optional>

#include "dist_checkpointing/staging_token.h"
#include "dist_checkpointing/target_path.h"
#include "mapping/base/error.h"
#include "mapping/base/wire.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_tree.h"
#include "strategies/comm/agree.h"
#include "strategies/describe.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/state_source.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/publish.h"
#include "strategies/torch_dist/reader.h"
#include "strategies/torch_dist/writer.h"

namespace dckpt {
namespace {

/// A rank's state as planning and writing see it.
struct Described {
  std::vector<TensorShard> shards;
  std::vector<ObjectShard> objects;
  std::vector<Tensor> tensors;         ///< by TensorShard::source
  std::vector<Bytes> object_bytes;     ///< by ObjectShard::source
  std::optional<Bytes> common_file;
  std::vector<std::pair<std::string, KeyPath>> paths;
  bool only_main_replicas = true;
};

Tensor saved_data(const ShardedTensor& shard) {
  if (!shard.data) throw CheckpointError(ErrorCode::kInvalidArgument, "`data` attr is None for " + to_string(shard), {.key = shard.key});
  return *shard.data;
}

void check_saveable(const std::string& key, const Tensor& tensor) {
  if (tensor.device().kind == Device::Kind::kCpu && tensor.has_data()) return;
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        to_string(tensor) + (tensor.has_data() ? " is not in CPU memory; copy it there first" : " has no data to save"), {.key = key});
}

void add_tensor(Described& out, TensorShard shard, Tensor data) {
  check_saveable(shard.key, data);
  shard.source = static_cast<std::uint32_t>(out.tensors.size());
  shard.properties.requires_grad = data.requires_grad;
  out.shards.push_back(std::move(shard));
  out.tensors.push_back(std::move(data));
}

void add_object(Described& out, std::string key, Bytes bytes, bool main_replica) {
  out.objects.push_back({std::move(key), bytes.size(), main_replica, static_cast<std::uint32_t>(out.object_bytes.size())});
  out.object_bytes.push_back(std::move(bytes));
}

void add_sharded(Described& out, const StateDict& sharded) {
  const ShardedLeaves leaves = collect_sharded(sharded);
  std::vector<TensorShard> shards = describe_tensors(leaves);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].main_replica || !out.only_main_replicas) add_tensor(out, std::move(shards[i]), saved_data(*leaves.tensors[i]));
  }
  for (const ShardedObject* const object : leaves.objects) {
    object->validate();
    if (object->replica_id.is_main()) add_object(out, object->unique_key(), save_torch_file(Value::list({object->data})), true);
  }
}

/// Megatron's way: keys of sharded leaves, and a common state.
Described describe_megatron(const StateDict& state, Compat compat, int rank) {
  Described out;
  const Split split = split_for_save(state);
  add_sharded(out, split.sharded);
  if (rank != 0) return out;
  const Value common = split.common.is_none() ? Value::dict() : split.common;
  if (compat == Compat::kMegatron) {
    out.common_file = save_torch_file(common);
  } else {
    add_object(out, kCommonStateKey, save_torch_file(Value::list({common})), true);
  }
  return out;
}

/// DCP's way: every leaf under its path, every rank plans all it has.
Described describe_dcp(const StateDict& state) {
  Described out;
  out.only_main_replicas = false;
  for (const FlatLeaf& leaf : flatten_state_dict(apply_factories(state))) {
    switch (leaf.value.kind()) {
      case Value::Kind::kShardedTensor:
      case Value::Kind::kShardedObject: add_sharded(out, leaf.value); continue;
      case Value::Kind::kLocalNonpersistentObject: continue;
      case Value::Kind::kTensor: {
        const Tensor& tensor = leaf.value.as_tensor();
        TensorShard shard;
        shard.key = leaf.name;
        shard.properties.dtype = tensor.dtype();
        shard.global_shape = tensor.shape();
        shard.box = whole(tensor.shape());
        add_tensor(out, std::move(shard), tensor);
        break;
      }
      default: add_object(out, leaf.name, save_torch_file(leaf.value), true);
    }
    out.paths.emplace_back(leaf.name, leaf.path);
  }
  return out;
}

/// What rank 0 tells a rank: where to write, and which items of its plan.
Bytes encode_assignment(const std::string& staging, const std::vector<std::uint32_t>& items) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.text(staging);
  writer.number(items.size());
  for (const std::uint32_t item : items) writer.number(item);
  return bytes;
}

struct Assignment {
  std::string staging;
  std::vector<std::uint32_t> items;
};

Assignment decode_assignment(ByteView bytes, std::size_t plan_size) {
  WireReader reader(bytes, "the final plan from rank 0");
  Assignment assignment;
  assignment.staging = reader.text();
  const std::size_t count = reader.count();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t item = reader.number();
    if (item >= plan_size) reader.malformed("it names an item that the local plan does not have");
    assignment.items.push_back(static_cast<std::uint32_t>(item));
  }
  reader.finish();
  return assignment;
}

Bytes encode_written(const WrittenItems& written) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(written.files.size());
  for (const std::string& file : written.files) writer.text(file);
  writer.number(written.places.size());
  for (const Place& place : written.places) {
    writer.number(place.file);
    writer.number(place.offset);
    writer.number(place.length);
  }
  return bytes;
}

WrittenItems decode_written(ByteView bytes) {
  WireReader reader(bytes, "a rank's list of what it wrote");
  WrittenItems written;
  const std::size_t files = reader.count();
  for (std::size_t i = 0; i < files; ++i) written.files.push_back(reader.text());
  const std::size_t places = reader.count();
  for (std::size_t i = 0; i < places; ++i) {
    Place place;
    const std::uint64_t file = reader.number();
    if (file >= files) reader.malformed("it names a file that is not in the list");
    place.file = static_cast<std::uint32_t>(file);
    place.offset = reader.number();
    place.length = reader.number();
    written.places.push_back(place);
  }
  reader.finish();
  return written;
}

class Saving {
 public:
  Saving(const StateDict& state, const std::filesystem::path& directory, const SaveOptions& options, Communicator& comm)
      : state_(state), options_(options), comm_(comm), target_(split_target(directory)), storage_(posix_storage(target_.parent)) {}

  void run() {
    agree(comm_, "describing the state dict", [&] {
      described_ = options_.compat == Compat::kDcp ? describe_dcp(state_) : describe_megatron(state_, options_.compat, comm_.rank());
      plan_ = plan_local_save(described_.shards, described_.objects, options_.flattened, described_.only_main_replicas);
    });
    const std::vector<Bytes> plans = comm_.gather(encode_plan(plan_), 0);
    std::vector<Bytes> assignments;
    agree(comm_, "planning the save", [&] {
      if (comm_.rank() == 0) assignments = plan_globally(plans);
    });
    const Bytes assignment = comm_.scatter(assignments, 0);
    WrittenItems written;
    agree(comm_, "writing the data files", [&] { written = write(decode_assignment(assignment, plan_.size())); });
    const std::vector<Bytes> results = comm_.gather(encode_written(written), 0);
    agree(comm_, "publishing the checkpoint", [&] {
      if (comm_.rank() == 0) publish(results);
    });
  }

 private:
  std::vector<Bytes> plan_globally(const std::vector<Bytes>& encoded) {
    std::vector<SavePlan> plans;
    for (std::size_t rank = 0; rank < encoded.size(); ++rank) {
      plans.push_back(with_context({.rank = static_cast<int>(rank)}, [&] { return decode_plan(encoded[rank]); }));
    }
    GlobalPlanOptions plan_options = options_.plan;
    if (options_.compat != Compat::kDcp) plan_options.duplicates = GlobalPlanOptions::Duplicates::kError;
    global_ = plan_global_save(plans, plan_options);
    publication_.emplace(Publication::begin(storage_, target_.name, staging_token(), {.overwrite = options_.overwrite, .sync = options_.io.fsync}));
    std::vector<Bytes> assignments;
    for (const auto& items : global_.items) assignments.push_back(encode_assignment(publication_->staging(), items));
    return assignments;
  }

  WrittenItems write(const Assignment& assignment) {
    StateSource source(std::move(described_.tensors), std::move(described_.object_bytes));
    return write_data_files(*storage_, assignment.staging, comm_.rank(), plan_, assignment.items, source, options_.io);
  }

  void publish(const std::vector<Bytes>& results) {
    std::vector<std::vector<Place>> places;
    std::vector<std::vector<std::string>> files;
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      WrittenItems written = with_context({.rank = static_cast<int>(rank)}, [&] { return decode_written(results[rank]); });
      places.push_back(std::move(written.places));
      files.push_back(std::move(written.files));
    }
    set_places(global_, places, files);
    global_.metadata.paths = std::move(described_.paths);
    global_.metadata.storage_meta = StorageMeta{(target_.parent / target_.name).string(), random_id()};
    write_markers(*storage_, publication_->staging(), global_.metadata,
                  {.compat = options_.compat, .common_file = std::move(described_.common_file), .integrity = options_.integrity, .fsync = options_.io.fsync});
    publication_->commit();
  }

  const StateDict& state_;
  const SaveOptions& options_;
  Communicator& comm_;
  TargetPath target_;
  std::shared_ptr<Storage> storage_;
  Described described_;
  SavePlan plan_;
  GlobalPlan global_;                         // rank 0
  std::optional<Publication> publication_;    // rank 0
};

}  // namespace

void save(const StateDict& state, const std::filesystem::path& directory, const SaveOptions& options, Communicator& comm) { Saving(state, directory, options, comm).run(); }

void save(const StateDict& state, const std::filesystem::path& directory, const SaveOptions& options) {
  const auto alone = single_rank();
  save(state, directory, options, *alone);
}

}  // namespace dckpt
