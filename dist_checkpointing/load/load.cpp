// How ranks load together. One reads the metadata and the common state, and all open the checkpoint
// with what it has read (open_together). Before the first tensor byte moves, the ranks compare
// their arguments, the keys that they request where the strict mode needs them, and, unless access
// validation is off, their shards; all that is wrong with names, shapes and files is agreed upon.
// Then each reads what it requested, or, with load.parallel, the ranks share the reading and
// exchange what they have read.

#include "dist_checkpointing/load/load.h"

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "configs/key_map.h"
#include "configs/option_rules.h"
#include "configs/policy.h"
#include "dist_checkpointing/integrity.h"
#include "dist_checkpointing/load/fill.h"
#include "dist_checkpointing/load/found_tensors.h"
#include "dist_checkpointing/load/key_groups.h"
#include "dist_checkpointing/load/loaders.h"
#include "dist_checkpointing/load/select_keys.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "dist_checkpointing/open_together.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/registry.h"
#include "dist_checkpointing/same_on_all_ranks.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/state/flatten.h"
#include "migration/maps/mapped_reader.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/comm/phase_label.h"
#include "strategies/contract/common_state.h"
#include "strategies/tensor_io/lost_data.h"

namespace dckpt {
namespace {

constexpr std::size_t kShownPaths = 10;

/// The key map that `options` name, with all that it extends; none if there is none, or the
/// checkpoint decides. Whoever reads it first leaves its text for other ranks, unless it is too
/// long: a map of that size cannot be read back.
std::optional<KeyMap> map_for_load(const KeyMapOptions& options, std::string& text) {
  if (options.name.empty() || options.name == kAutoMap) return std::nullopt;
  if (!text.empty()) return KeyMap::from_text(text, options.name);
  std::optional<KeyMap> map = KeyMap::find(options.name);
  if (std::string all = to_yaml(*map); all.size() <= kMaxYamlBytes) text = std::move(all);
  return map;
}

std::unique_ptr<CheckpointReader> open_for_load(const Location& location,
                                                const LoadOptions& options, std::string& map_text) {
  require_rules(Call::kLoad, {.load = options}, nullptr);
  auto reader = open_checkpoint(location, {.strategy = options.strategy});
  if (options.map.name.empty()) return reader;
  return with_context({.file = location.display()}, [&] {
    const std::optional<KeyMap> map = map_for_load(options.map, map_text);
    return mapped_reader(std::move(reader), options.map, nullptr, nullptr, map ? &*map : nullptr);
  });
}

/// What the files are compared with before anything is loaded.
IntegrityManifest manifest_for_load(const CheckpointReader& reader, const LoadOptions& options) {
  if (options.verify == Verify::kSha256) return require_manifest(reader);
  // What is left of a file that was cut is loaded, if possible.
  return options.allow_partial_load ? IntegrityManifest{} : sizes_to_compare(reader);
}

/// This rank's share.
void compare_files(const CheckpointReader& reader, const IntegrityManifest& manifest,
                   const LoadOptions& options, const Communicator& comm) {
  if (options.verify == Verify::kSha256)
    compare_digests(reader.storage(), manifest, comm.rank(), comm.size(), options.threads);
  else
    compare_sizes(reader.storage(), manifest, comm.rank(), comm.size());
}

/// Which save has made the checkpoint: the same for copies of it on several disks, another one if
/// the latest has changed while the ranks looked for it.
std::string origin_of(const CheckpointReader& reader) {
  const Metadata& metadata = reader.metadata();
  const StorageMeta made = metadata.storage_meta.value_or(StorageMeta{});
  return str_format("saved as {}, id {}, tensors {}, objects {}",
                    made.checkpoint_id.value_or("unknown"), made.save_id.value_or("unknown"),
                    grouped(metadata.tensors.size()), grouped(metadata.objects.size()));
}

/// Options decide what the ranks exchange: with different ones they would wait for each other.
void require_same_call(const CheckpointReader& reader, const LoadOptions& options,
                       Communicator& comm) {
  if (comm.size() == 1) return;
  const std::array<SharedArgument, 2> arguments{
      {{"options", to_yaml(Policy{.load = options})}, {"checkpoints", origin_of(reader)}}};
  require_same(comm, "load", arguments);
}

/// A load must not leave values unchanged in silence.
void tell(const LoadReport& report, const Communicator& comm) {
  if (comm.rank() != 0 || report.kept.empty()) return;
  log_warning(
      str_format("the checkpoint's common state does not have {}; the state keeps its values",
                 quoted_list(report.kept, kShownPaths)));
}

bool is_plain_dcp(const CheckpointReader& reader, const Value& common) {
  return reader.info().conventions.keys_are_paths && common.is_none();
}

/// What a partial load goes on without because data files are missing.
LostData excused_loss(const CheckpointReader& reader, const LoadOptions& options,
                      const Communicator& comm) {
  if (!options.allow_partial_load) return {};
  LostData lost = find_lost_data(reader, reader.metadata());
  if (!lost.empty() && comm.rank() == 0)
    log_warning(
        str_format("{}; {} not loaded", lost.where(),
                   counted(lost.tensors.size() + lost.objects.size(), "key is", "keys are")));
  return lost;
}

/// All of a stored tensor, without data.
ShardedTensor whole_tensor(const TensorStorageMetadata& tensor) {
  return ShardedTensor::whole(tensor.key,
                              Tensor::meta(tensor.properties.dtype, tensor.global_shape()));
}

}  // namespace

std::string to_string(const LoadReport& report) {
  return str_format("{:.2f} s ({}; {}, {}; {}{}, rank {} was the last)", report.seconds,
                    to_string(Phase::kOpen, report.open),
                    to_string(Phase::kExchange, report.exchange),
                    report.plan_cached ? "cached" : "not cached: " + report.why_planned,
                    to_string(Phase::kRead, report.read),
                    report.engine.empty() ? "" : ", " + report.engine, report.read.slowest_rank);
}

LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm, const LoadHooks& hooks) {
  LoadPlanCache once;
  return load(state, location, options, comm, once, hooks);
}

namespace {

/// What all ranks together have left, in the order of the metadata. What a planner has read for
/// tensors of other names goes on under these, and is not among them.
std::vector<FoundTensor> find_tensors(const LoadContext& load) {
  constexpr std::int64_t kForOthers = 1;  // and more under its own name
  const std::vector<TensorStorageMetadata>& tensors = load.reader.metadata().tensors;
  std::vector<std::string> names(tensors.size());
  for (const std::string& name : load.keys.names()) {
    if (const auto position = load.keys.tensor(name)) names[*position] = name;
  }
  std::vector<std::int64_t> requested = *load.requested;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (requested[i] != 0 && (load.planned == nullptr || !load.planned->only_for_others(names[i])))
      requested[i] = kForOthers + 1;
  }
  requested = load.comm.all_reduce(std::move(requested), ReduceOp::kMax);
  if (load.comm.rank() != 0) return {};
  std::vector<FoundTensor> found;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!names[i].empty() && tensors[i].nbytes() != 0 && requested[i] != kForOthers)
      found.push_back({std::move(names[i]), tensors[i].nbytes(), requested[i] != 0});
  }
  return found;
}

LoadReport load_into(StateDict& state, const Location& location, const LoadOptions& options,
                     Communicator& comm, LoadPlanCache& cache, Leaves leaves,
                     const LoadHooks& hooks = {}, std::vector<FoundTensor>* found = nullptr) {
  const PhaseLabel label("loading the checkpoint");
  if (state.is_none()) state = Value::dict();  // what StateDict() is
  LoadWatch watch(comm, options, hooks);
  StateDict prepared = state;  // a load that fails leaves the caller's tree
  if (hooks.preprocess)
    agree(comm, "preparing the state dict", [&] {
      prepared = hooks.preprocess(prepared);
      if (prepared.is_none()) prepared = Value::dict();
    });
  const auto begin = std::chrono::steady_clock::now();
  PhaseClock phases("load", location.display(), comm.rank());
  std::optional<PhaseClock::Scope> opening(std::in_place, &phases, Phase::kOpen);
  cache.begin(options.parallel.enabled ? "a single rank" : "load.parallel is off");
  std::optional<PlannedLoad> planned;
  std::unique_ptr<CheckpointReader> reader;
  IntegrityManifest manifest;
  std::optional<StoredKeys> keys;
  Value common;
  std::optional<CheckpointError> unreadable;  // the common state; if it is damaged, digests tell
  open_together(location, comm, [&](const Location& shared, std::string& map) {
    reader = open_for_load(shared, options, map);
    manifest = manifest_for_load(*reader, options);
    unreadable = failure_of([&] { common = reader->common_state(); });
  });
  watch.heartbeat.agree("opening the checkpoint", [&] {
    watch.check();
    compare_files(*reader, manifest, options, comm);
    if (unreadable) throw *unreadable;
    if (auto planner = make_load_planner(options)) {
      if (leaves == Leaves::kPlain)
        throw CheckpointError(ErrorCode::kUnsupported,
                              "load.planner: load_plain() has no planners; use load()");
      planned.emplace(std::move(planner), options.registered_planner.name, plans_globally(options));
      reader = planned->over(std::move(reader));
    }
    keys.emplace(reader->metadata(), options.rename, excused_loss(*reader, options, comm));
    const Backend format{.name = reader->info().format,
                         .conventions = {.keys_are_paths = is_plain_dcp(*reader, common)}};
    require_rules(Call::kLoad, {.load = options}, &format);
  });
  require_same_call(*reader, options, comm);
  if (planned)
    agree(comm, "preparing the state dict",
          [&] { prepared = planned->prepared(prepared, reader->metadata(), options, comm); });
  StateDict& target = planned || hooks.preprocess ? prepared : state;
  LoadReport report;
  std::vector<std::int64_t> requested(reader->metadata().tensors.size());
  RequestedShapes shaped(*reader);
  const LoadContext context{
      shaped, *keys,  options, comm,  report,     watch,   cache,
      leaves, phases, opening, begin, &requested, &shaped, planned ? &*planned : nullptr};
  if (is_plain_dcp(*reader, common)) {
    load_dcp(context, target);
  } else {
    load_megatron(context, std::move(common), target);
  }
  if (&target != &state) state = std::move(prepared);
  if (found != nullptr) *found = find_tensors(context);
  tell(report, comm);
  if (comm.rank() == 0)
    log_info(str_format("loaded {}: {}", quote(location.display()), to_string(report)));
  return report;
}

}  // namespace

LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm, LoadPlanCache& cache, const LoadHooks& hooks) try {
  return load_into(state, location, options, comm, cache, Leaves::kDescribed, hooks);
} catch (...) {
  throw_checkpoint_error();
}

LoadReport load_and_find(StateDict& state, const Location& location, const LoadOptions& options,
                         Communicator& comm, LoadPlanCache& cache,
                         std::vector<FoundTensor>& found) try {
  return load_into(state, location, options, comm, cache, Leaves::kDescribed, {}, &found);
} catch (...) {
  throw_checkpoint_error();
}

LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options,
                      Communicator& comm) try {
  LoadPlanCache once;
  return load_into(state, location, options, comm, once, Leaves::kPlain);
} catch (...) {
  throw_checkpoint_error();
}

LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options) {
  const auto alone = single_rank();
  return load_plain(state, location, options, *alone);
}

LoadReport load(StateDict& state, const Location& location, const LoadOptions& options) {
  const auto alone = single_rank();
  return load(state, location, options, *alone);
}

StateDict load_state_dict(const Location& location, const std::vector<std::string>& keys,
                          const LoadOptions& options, Communicator& comm) try {
  const PhaseLabel label("loading the checkpoint");
  const LoadHooks no_hooks;
  LoadWatch watch(comm, options, no_hooks);
  std::unique_ptr<CheckpointReader> reader;
  IntegrityManifest manifest;
  std::optional<StoredKeys> stored;
  std::vector<SelectedKey> chosen;
  std::vector<std::pair<KeyPath, Value>> leaves;
  TensorRequest request;
  open_together(location, comm, [&](const Location& shared, std::string& map) {
    require_rules(Call::kLoadAll, {.load = options}, nullptr);
    reader = open_for_load(shared, options, map);
    manifest = manifest_for_load(*reader, options);
  });
  agree(comm, "choosing what to load", [&] {
    compare_files(*reader, manifest, options, comm);
    stored.emplace(reader->metadata(), options.rename, excused_loss(*reader, options, comm));
    std::set<std::string> unused;
    chosen = select_keys(reader->metadata(), keys, unused);
    if (!unused.empty() && !options.allow_partial_load) {
      throw CheckpointError(ErrorCode::kMismatch,
                            "Missing key in checkpoint state_dict (load.allow_partial_load goes on "
                            "without such keys):" +
                                table_of_unknown(unused, stored->names()));
    }
    std::erase_if(chosen, [&](const SelectedKey& entry) { return !stored->contains(entry.key); });
    TensorRequestBuilder builder(*reader, *stored, options);
    for (const SelectedKey& entry : chosen) {
      const auto tensor = stored->tensor(entry.key);
      leaves.emplace_back(
          entry.path,
          tensor ? Value(builder.add(whole_tensor(reader->metadata().tensors[*tensor]))) : Value());
    }
    request = builder.finish();
  });
  require_same_call(*reader, options, comm);
  fill_destinations(*reader, request, options, comm, watch);
  std::vector<std::uint32_t> objects;
  for (const SelectedKey& entry : chosen) {
    if (const auto object = stored->object(entry.key)) objects.push_back(*object);
  }
  const auto values = fetch_objects(*reader, objects, options, comm, watch);
  StateDict state;
  agree(comm, "putting the state together", [&] {
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (const auto object = stored->object(chosen[i].key)) leaves[i].second = values.at(*object);
    }
    state = unflatten_state_dict(leaves);
  });
  return state;
} catch (...) {
  throw_checkpoint_error();
}

StateDict load_state_dict(const Location& location, const std::vector<std::string>& keys,
                          const LoadOptions& options) {
  const auto alone = single_rank();
  return load_state_dict(location, keys, options, *alone);
}

StateDict load_common_state(const Location& location, const OpenOptions& options) try {
  return open_checkpoint(location, options)->common_state();
} catch (...) {
  throw_checkpoint_error();
}

std::optional<Value> load_content_metadata(const Location& location,
                                           const OpenOptions& options) try {
  const Value common = load_common_state(location, options);
  const Value* const found = common.is_dict() ? common.find(kContentMetadataKey) : nullptr;
  if (found == nullptr || found->is_none()) return std::nullopt;
  return *found;
} catch (...) {
  throw_checkpoint_error();
}

namespace {

StateDict described_tensors(const Metadata& metadata) {
  Value state = Value::dict();
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    state[tensor.key] = whole_tensor(tensor);
  return state;
}

}  // namespace

StateDict load_tensors_metadata(const Location& location, const OpenOptions& options) try {
  return described_tensors(open_checkpoint(location, options)->metadata());
} catch (...) {
  throw_checkpoint_error();
}

StateDict load_sharded_metadata(const Location& location, const OpenOptions& options) try {
  const auto reader = open_checkpoint(location, options);
  Value state = described_tensors(reader->metadata());
  for (const BytesStorageMetadata& object : reader->metadata().objects) {
    const auto cell = ShardedObject::parse_unique_key(object.key);
    state[object.key] =
        cell ? Value(*cell) : Value();  // a plain DCP directory has values under their paths
  }
  return state;
} catch (...) {
  throw_checkpoint_error();
}

std::vector<ShardedObject> load_objects(const Location& location, const std::string& key,
                                        const LoadOptions& options) try {
  require_rules(Call::kLoadTensors, {.load = options}, nullptr);
  std::string map;
  const auto reader = open_for_load(location, options, map);
  const auto alone = single_rank();
  compare_files(*reader, manifest_for_load(*reader, options), options, *alone);
  const StoredKeys keys(reader->metadata(), {});
  std::vector<std::uint32_t> positions = keys.cells(key);
  if (const auto plain = keys.object(key); positions.empty() && plain) positions.push_back(*plain);
  if (positions.empty()) {
    throw CheckpointError(ErrorCode::kMismatch,
                          str_format("the checkpoint has no objects of this key{}",
                                     keys.tensor(key) ? ": a tensor is stored under it" : ":") +
                              (keys.tensor(key) ? "" : table_of_unknown({key}, keys.keys())),
                          {.key = key, .file = location.display()});
  }
  const LoadHooks no_hooks;
  LoadWatch watch(*alone, options, no_hooks);
  const auto values = fetch_objects(*reader, positions, options, *alone, watch);
  std::vector<ShardedObject> cells;
  for (const std::uint32_t position : positions) {
    const std::string& stored = reader->metadata().objects[position].key;
    ShardedObject cell =
        ShardedObject::parse_unique_key(stored).value_or(ShardedObject{.key = stored});
    cell.data = values.at(position);
    cell.has_data = true;
    cells.push_back(std::move(cell));
  }
  return cells;
} catch (...) {
  throw_checkpoint_error();
}

StateDict load_plain_tensors(const Location& location, const LoadOptions& options) try {
  require_rules(Call::kLoadTensors, {.load = options}, nullptr);
  std::string map;
  const auto reader = open_for_load(location, options, map);
  const auto alone = single_rank();
  compare_files(*reader, manifest_for_load(*reader, options), options, *alone);
  const StoredKeys keys(reader->metadata(), {});
  TensorRequestBuilder builder(*reader, keys, options);
  Value state = Value::dict();
  for (const TensorStorageMetadata& tensor : reader->metadata().tensors) {
    state[tensor.key] = builder.add(whole_tensor(tensor));
  }
  const LoadHooks no_hooks;
  LoadWatch watch(*alone, options, no_hooks);
  fill_destinations(*reader, builder.finish(), options, *alone, watch);
  return state;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
