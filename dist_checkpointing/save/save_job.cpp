// How ranks save together. Between two collectives every rank does local work inside agree(), so
// that no rank leaves alone.
//
//   1. Each rank plans what it holds; the plans go to rank 0.
//   2. Rank 0 decides who writes what, begins the publication, and tells each rank its items and
//      where to write them.
//   3. Each rank writes its data files and makes them durable; what lies where goes to rank 0, for
//      a manifest with the digests of the files, which are computed on the way to the disk.
//   4. Rank 0 lets the strategy write what readers start from (for torch_dist: the common state,
//      .metadata, metadata.json), adds the manifest, and publishes.
//
// Steps 3 and 4 may take long: meanwhile the ranks give each other signs of life (heartbeat.h). A
// rank that fails in any step fails all of them, and rank 0 removes what was written.

#include "dist_checkpointing/save/save_job.h"

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "configs/policy.h"
#include "dist_checkpointing/common_state.h"
#include "dist_checkpointing/integrity.h"
#include "dist_checkpointing/same_on_all_ranks.h"
#include "dist_checkpointing/save/common_comparison.h"
#include "dist_checkpointing/save/metered_source.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "dist_checkpointing/training_root/target.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"
#include "mapping/state/flatten.h"
#include "strategies/comm/agree.h"
#include "strategies/contract/registry.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/hashing.h"

namespace dckpt {
namespace {

using Paths = std::vector<std::pair<std::string, KeyPath>>;
using Digests = std::map<std::string, std::string>;  // SHA-256 of files in the checkpoint

/// What rank 0 tells a rank: where to write, and the planner's answer.
Bytes encode_assignment(const std::string& staging, ByteView answer) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.text(staging);
  writer.text(as_text(answer));
  return bytes;
}

struct Assignment {
  std::string staging;
  std::string answer;
};

Assignment decode_assignment(ByteView bytes) {
  WireReader reader(bytes, "the assignment from rank 0");
  Assignment assignment;
  assignment.staging = reader.text();
  assignment.answer = reader.text();
  reader.finish();
  return assignment;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::uint64_t bytes_of(const SavePlan& items) {
  std::uint64_t bytes = 0;
  for (const WriteItem& item : items) bytes += item.nbytes;
  return bytes;
}

/// What a rank has written: its files, a place per item, for a manifest the files' digests and, in
/// DCP's way, where the keys of these items lie in its tree.
struct Written {
  WrittenItems items;
  SaveReport report;
  Paths paths;
  Digests digests;
};

/// Of `paths`, those of the keys that `items` store: together the ranks name every stored key, most
/// of them once.
Paths paths_of(const SavePlan& items, const Paths& paths) {
  std::unordered_set<std::string_view> keys;
  for (const WriteItem& item : items) keys.insert(item.key);
  Paths written;
  for (const auto& entry : paths) {
    if (keys.contains(entry.first)) written.push_back(entry);
  }
  return written;
}

/// A path names its key: the steps with dots between them.
void encode_path(WireWriter& writer, const KeyPath& path) {
  writer.number(path.size());
  for (const PathElement& step : path) {
    const auto* const name = std::get_if<std::string>(&step);
    writer.number(name != nullptr ? 0 : 1);
    name != nullptr ? writer.text(*name)
                    : writer.number(static_cast<std::uint64_t>(std::get<std::int64_t>(step)));
  }
}

KeyPath decode_path(WireReader& reader) {
  KeyPath path(reader.count());
  for (PathElement& step : path) {
    const bool is_position = reader.number(1) == 1;
    if (is_position)
      step = static_cast<std::int64_t>(reader.number(INT64_MAX));
    else
      step = reader.text();
  }
  if (path.empty() || path.size() > kMaxTreeDepth)
    reader.malformed("a key lies " + std::to_string(path.size()) + " levels deep");
  return path;
}

Bytes encode_written(const Written& result) {
  const auto& [written, report, paths, digests] = result;
  Bytes bytes;
  WireWriter writer(bytes);
  writer.text(as_text(encode_save_report(report)));
  writer.number(written.files.size());
  for (const std::string& file : written.files) writer.text(file);
  writer.number(written.places.size());
  for (const StorageInfo& place : written.places) {
    writer.number(place.file);
    writer.number(place.offset);
    writer.number(place.length);
  }
  writer.number(paths.size());
  for (const auto& [key, path] : paths) encode_path(writer, path);
  writer.number(digests.size());
  for (const auto& [file, digest] : digests) {
    writer.text(file);
    writer.text(digest);
  }
  return bytes;
}

Written decode_written(ByteView bytes) {
  WireReader reader(bytes, "a rank's list of what it wrote");
  Written result;
  WrittenItems& written = result.items;
  const std::string report = reader.text();
  const std::size_t files = reader.count();
  for (std::size_t i = 0; i < files; ++i) written.files.push_back(reader.text());
  const std::size_t places = reader.count();
  for (std::size_t i = 0; i < places; ++i) {
    StorageInfo place;
    const std::uint64_t file = reader.number();
    if (file >= files) reader.malformed("it names a file that is not in the list");
    place.file = static_cast<std::uint32_t>(file);
    place.offset = reader.number();
    place.length = reader.number();
    written.places.push_back(place);
  }
  const std::size_t paths = reader.count();
  for (std::size_t i = 0; i < paths; ++i) {
    KeyPath path = decode_path(reader);
    std::string key = dotted_name(path);
    result.paths.emplace_back(std::move(key), std::move(path));
  }
  const std::size_t digests = reader.count();
  for (std::size_t i = 0; i < digests; ++i) {
    std::string file = reader.text();
    result.digests.insert_or_assign(std::move(file), reader.text());
  }
  reader.finish();
  result.report = decode_save_report(as_bytes(report));
  return result;
}

/// Adds what other ranks say of stored keys that have no path so far, as DCP does: the lowest rank
/// decides.
void add_paths(Metadata& metadata, const std::vector<Paths>& of_ranks) {
  std::unordered_set<std::string_view> open;
  for (const TensorStorageMetadata& tensor : metadata.tensors) open.insert(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) open.insert(object.key);
  for (const auto& [key, path] : metadata.paths) open.erase(key);
  for (const Paths& paths : of_ranks) {
    for (const auto& [key, path] : paths) {
      if (open.erase(key) != 0) metadata.paths.emplace_back(key, path);
    }
  }
}

/// What the strategy would have to leave out.
void check_contents(const DescribedState& described, const SaveStrategyEntry& strategy) {
  const auto refuse = [&](const std::string& what, const std::string& key) {
    throw CheckpointError(ErrorCode::kUnsupported,
                          "strategy " + quote(strategy.name) + " does not store " + what +
                              "; save with another one, or leave them out of the state",
                          {.key = key});
  };
  if (!strategy.capabilities.objects) {
    for (const LocalShard& shard : described.shards) {
      if (const auto* const object = std::get_if<ObjectShard>(&shard))
        refuse("objects", object->key);
    }
  }
  if (!strategy.capabilities.common_state && described.common &&
      !described.common->as_dict().empty()) {
    const Value& first = described.common->as_dict().begin()->first;
    refuse("values that are not sharded", first.is_str() ? first.as_str() : "");
  }
}

StateDict prepared(StateDict state, const SaveHooks& hooks) {
  if (hooks.preprocess) state = hooks.preprocess(std::move(state));
  if (hooks.content_metadata) state[kContentMetadataKey] = *hooks.content_metadata;
  return state;
}

}  // namespace

SaveJob::SaveJob(const Location& location, SaveOptions options, Communicator& comm,
                 SavePlanner& planner, const SaveHooks& hooks)
    : options_(canonical(std::move(options))),
      comm_(comm),
      planner_(planner),
      hooks_(hooks),
      heartbeat_(comm,
                 {.timeout = options_.timeout, .cancel = hooks.cancel, .progress = hooks.progress}),
      target_(location) {
  if (options_.integrity) digests_ = std::make_shared<FileDigests>();
}

/// A plan is remembered only when the whole save has succeeded; what was written of a failed one is
/// removed at once.
template <typename Step>
void SaveJob::remembering(Step&& step) {
  try {
    step();
  } catch (...) {
    planner_.forget();
    publication_.reset();
    throw;
  }
}

void SaveJob::plan(const StateDict& state) {
  remembering([&] {
    require_same_call();
    agree(comm_, "describing the state dict", [&] { describe(state); });
    if (options_.planner.validate) compare_common();
    const std::vector<Bytes> proposals = comm_.gather(proposal_, 0);
    std::vector<Bytes> assignments;
    decide(comm_, [&] { assignments = assign(proposals); });
    const Bytes assignment = comm_.scatter(assignments, 0);
    agree(comm_, "accepting the plan", [&] { accept(assignment); });
    report_.plan.seconds = seconds_since(begin_);
  });
}

SaveReport SaveJob::write(ItemSource& source, const std::function<SaveReport::Phase()>& staged) {
  remembering([&] {
    Written written;
    heartbeat_.expect(bytes_of(*items_));
    heartbeat_.agree("writing the data files", [&] { written.items = write_data(source); });
    if (staged) report_.stage = staged();
    written.report = report_;
    written.paths = paths_of(*items_, described_.paths);
    written.digests = digests();
    const std::vector<Bytes> results = comm_.gather(encode_written(written), 0);
    heartbeat_.agree("publishing the checkpoint", [&] {
      if (comm_.rank() == 0) publish(results);
    });
    report_ = decode_save_report(comm_.broadcast(encode_save_report(report_), 0));
    planner_.commit();
  });
  if (comm_.rank() == 0)
    log_notice("saved " + quote(target_.display()) + ": " + to_string(report_));
  return report_;
}

/// Counts what is written, and hashes it if there will be a manifest.
std::shared_ptr<Storage> SaveJob::metered_storage(std::shared_ptr<StorageCounters> counters) const {
  return counting_storage(
      digests_ ? hashing_storage(target_.storage(), digests_) : target_.storage(),
      std::move(counters));
}

/// Of what this rank has written so far.
std::map<std::string, std::string> SaveJob::digests() const {
  return digests_ ? digests_->in(staging_) : Digests();
}

/// Also begins the report of this rank.
WrittenItems SaveJob::write_data(ItemSource& source) {
  const auto begin = std::chrono::steady_clock::now();
  MeteredSource metered(source, heartbeat_);
  const auto counters = std::make_shared<StorageCounters>();
  WrittenItems written =
      strategy_->write_data(*metered_storage(counters), staging_, comm_.rank(), *items_, metered);
  report_.bytes = counters->bytes_written;
  report_.files = counters->files_created;
  report_.write = {seconds_since(begin), report_.bytes};
  report_.slowest_rank = comm_.rank();
  report_.why_planned = planner_.why_planned();
  if (report_.files > 0)
    report_.engine = counters->direct_files == 0               ? "buffered"
                     : counters->direct_files == report_.files ? "direct"
                                                               : "direct and buffered";
  return written;
}

/// Options decide what the ranks exchange: with different ones they would wait for each other.
void SaveJob::require_same_call() {
  if (comm_.size() == 1) return;
  const std::array<SharedArgument, 2> arguments{{
      {"directories", target_.absolute()},
      {"options", to_yaml(Policy{.save = options_}) +
                      (options_.overwrite ? "overwrite: true" : "overwrite: false")},
  }};
  require_same(comm_, "save", arguments);
}

void SaveJob::describe(const StateDict& state) {
  require_target_name(target_);
  strategy_ = make_save_strategy(options_);
  described_ = describe_state(prepared(state, hooks_), options_, comm_.rank());
  check_contents(described_, find_save_strategy(options_.strategy.name, options_.strategy.version));
  proposal_ = planner_.create_local_plan(plan_local_save(described_.shards, options_.flattened));
}

void SaveJob::compare_common() {
  Value common = std::exchange(described_.own_common, Value());
  if (planner_kind(options_) != PlannerKind::kMegatron) return;
  agree(comm_, "preparing the common state for comparison", [&] {
    if (hooks_.before_comparison) common = hooks_.before_comparison(std::move(common));
  });
  compare_common_states(common, comm_);
}

std::vector<Bytes> SaveJob::assign(const std::vector<Bytes>& proposals) {
  const std::vector<Bytes> answers = planner_.create_global_plan(proposals);
  if (options_.overwrite) check_replaceable(target_);
  remove_dead_attempts(target_);
  publication_.emplace(
      Publication::begin(target_.storage(), target_.name(), staging_token(),
                         {.overwrite = options_.overwrite, .sync = options_.io.fsync}));
  std::vector<Bytes> assignments;
  for (const Bytes& answer : answers)
    assignments.push_back(encode_assignment(publication_->staging(), answer));
  return assignments;
}

void SaveJob::accept(ByteView bytes) {
  Assignment assignment = decode_assignment(bytes);
  staging_ = std::move(assignment.staging);
  items_ = &planner_.finish_plan(as_bytes(assignment.answer));
}

void SaveJob::publish(const std::vector<Bytes>& results) {
  const auto begin = std::chrono::steady_clock::now();
  heartbeat_.check();
  std::vector<std::vector<StorageInfo>> places;
  std::vector<std::vector<std::string>> files;
  std::vector<SaveReport> reports;
  std::vector<Paths> paths;
  Digests digests;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    Written written = with_context({.rank = static_cast<int>(rank)},
                                   [&] { return decode_written(results[rank]); });
    reports.push_back(std::move(written.report));
    places.push_back(std::move(written.items.places));
    files.push_back(std::move(written.items.files));
    paths.push_back(std::move(written.paths));
    digests.merge(written.digests);
  }
  set_places(planner_.global_plan(), places, files);
  Metadata& metadata = planner_.global_plan().metadata;
  metadata.paths = std::move(described_.paths);
  add_paths(metadata, paths);
  if (options_.planner.keep_plans) metadata.kept_plans = planner_.kept_plans();
  metadata.storage_meta = StorageMeta{target_.absolute(), random_id()};
  const auto counters = std::make_shared<StorageCounters>();
  const std::shared_ptr<Storage> storage = metered_storage(counters);
  std::optional<CommonState> common;
  if (described_.common) common.emplace(std::move(*described_.common));
  strategy_->write_metadata(*storage, staging_, metadata, common ? &*common : nullptr);
  if (digests_) {
    digests.merge(this->digests());
    write_manifest(*storage, staging_, digests, options_.io.fsync);
  }
  heartbeat_.check();
  publication_->commit();
  report_ = sum_of(reports);
  report_.plan_cached = planner_.cache_hit();
  report_.bytes += counters->bytes_written;
  report_.files += counters->files_created;
  report_.publish = {seconds_since(begin), counters->bytes_written};
  report_.seconds = seconds_since(begin_);
}

}  // namespace dckpt
