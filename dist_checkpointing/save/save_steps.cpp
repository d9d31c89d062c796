// The protocol of a save. Between two collectives every rank does local work inside agree(), so
// that no rank leaves alone.
//
//   1. Each rank plans its state. The plans, or fingerprints of them, go to rank 0.
//   2. Rank 0 decides who writes what, begins the publication, and sends each rank its items and
//      their destination. Each rank answers with hashes of what other ranks hold as well, which
//      rank 0 compares.
//   3. Each rank writes its data files and makes them durable. The places of the items go to rank
//      0, for a manifest with the files' digests, which are computed while writing.
//   4. Rank 0 lets the strategy write the files that readers start from (for torch_dist: the common
//      state, .metadata, metadata.json), adds the manifest, and publishes.
//
// Steps 3 and 4 may take long: meanwhile the ranks exchange signs of life (heartbeat.h). A rank
// that fails in any step fails all of them, and rank 0 removes the written files.

#include "dist_checkpointing/save/save_steps.h"

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "dist_checkpointing/planner/foreign_code.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/planner/resolved_source.h"
#include "dist_checkpointing/ranks/rank_phases.h"
#include "dist_checkpointing/save/key_paths.h"
#include "dist_checkpointing/save/metered_source.h"
#include "dist_checkpointing/save/report_file.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/planning/save/plan_agreement.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/phase_label.h"
#include "strategies/contract/common_state.h"
#include "strategies/registry/registry.h"

namespace dckpt {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::uint64_t bytes_of(const SavePlan& items) {
  std::uint64_t bytes = 0;
  for (const WriteItem& item : items) bytes += item.nbytes;
  return bytes;
}

/// Performs step 4 on rank 0.
SaveReport publish(SaveCall& call, const PlannedSave& planned, PlannedCheckpoint checkpoint,
                   const std::vector<Bytes>& results) {
  std::optional<PhaseClock::Scope> publishing(std::in_place, &call.phases, Phase::kPublish);
  const auto begin = std::chrono::steady_clock::now();
  call.heartbeat.check();
  std::vector<std::vector<StorageInfo>> places;
  std::vector<std::vector<std::string>> files;
  std::vector<RankSaveReport> reports;
  std::vector<KeyPaths> paths;
  ManifestDigests digests;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    WrittenByRank written = with_context({.rank = static_cast<int>(rank)},
                                         [&] { return decode_written(results[rank]); });
    reports.push_back(std::move(written.report));
    places.push_back(std::move(written.items.places));
    files.push_back(std::move(written.items.files));
    paths.push_back(std::move(written.paths));
    digests.merge(written.digests);
  }
  Metadata metadata = written_metadata(checkpoint.global->plan, places, files);
  metadata.paths = std::move(checkpoint.paths);
  add_paths(metadata, paths);
  if (!metadata.paths.empty()) sort_paths(metadata, checkpoint.global->plan.path_order);
  metadata.storage_meta = StorageMeta{call.target.absolute(), std::move(checkpoint.save_id), {}};
  if (std::string planner = read_by(call.options); !planner.empty())
    metadata.storage_meta->load_planner = std::move(planner);
  std::optional<CommonState> common;
  if (checkpoint.common) common.emplace(*std::move(checkpoint.common));
  SaveReport report = sum_of(reports);
  report.plan_cached = checkpoint.plan_cached;
  report.findings = call.findings;
  const auto complete = [&](const WrittenFiles& here, const PhaseClock::Taken& published) {
    SaveReport all = report;
    all.bytes += here.bytes;
    all.files += here.count;
    all.publish = over_ranks(std::array{published});
    all.seconds = seconds_since(call.begin);
    return all;
  };
  std::function<std::string(const WrittenFiles&)> report_file;
  if (call.options.report) {
    report_file = [&](const WrittenFiles& here) {
      return to_json(complete(here, {seconds_since(begin), here.bytes}));
    };
  }
  const WrittenFiles written =
      publish_checkpoint(std::move(checkpoint.publication), planned.target, *planned.strategy,
                         {.metadata = metadata,
                          .common = common ? &*common : nullptr,
                          .digests = digests,
                          .sync = call.options.io.fsync,
                          .check = [&] { call.heartbeat.check(); },
                          .report = report_file});
  publishing.reset();
  return complete(written, call.phases.end(Phase::kPublish, written.bytes));
}

}  // namespace

EndedPlanner& EndedPlanner::operator=(EndedPlanner&& other) noexcept {
  if (this == &other) return *this;
  end(given_up_.get());
  planner_ = std::move(other.planner_);
  who_ = std::move(other.who_);
  given_up_ = std::move(other.given_up_);
  return *this;
}

void EndedPlanner::failed() noexcept {
  try {
    const auto failure = failure_of([] { throw; });
    end(failure ? &*failure : given_up_.get());
  } catch (...) {  // there is no memory for the reason
    end(given_up_.get());
  }
}

void EndedPlanner::end(const CheckpointError* failure) noexcept {
  const std::unique_ptr<SavePlanner> planner = std::move(planner_);
  if (!planner || who_.empty()) return;
  try {
    const auto thrown = failure_of(
        [&] { run_foreign(who_ + ": end_save()", {}, [&] { planner->end_save(failure); }); });
    if (thrown) log_warning(thrown->what());
  } catch (...) {  // there is no memory for a message
  }
}

SaveCall::SaveCall(const Location& location, SaveOptions given, Communicator& ranks,
                   const SaveHooks& trainers)
    : target(location),
      options(canonical(with_planner_rules(std::move(given)))),
      comm(ranks),
      hooks(trainers),
      heartbeat(
          ranks,
          {.timeout = options.timeout, .cancel = trainers.cancel, .progress = trainers.progress}),
      phases("save", target.display(), ranks.rank(), trainers.phases) {}

WrittenByRank write_save(SaveCall& call, const PlannedSave& planned, ItemSource& source) {
  const int rank = call.comm.rank();
  WrittenByRank result{
      .items = {}, .digests = {}, .paths = planned.paths, .report = planned.report};
  call.heartbeat.expect(bytes_of(planned.items_in_state()));
  call.heartbeat.agree("writing the data files", [&] {
    WriteTarget target = planned.target;
    target.phases = &call.phases;
    MeteredSource metered(source, call.heartbeat, call.phases);
    ResolvedSource resolved(metered, *planned.planner, planned.dtypes,
                            planner_text(call.options.registered_planner.name));
    ItemSource& items_of = planned.dtypes.empty() ? static_cast<ItemSource&>(metered) : resolved;
    auto [items, files] = [&] {
      const PhaseClock::Scope writing(&call.phases, Phase::kWrite);
      return write_items(target, *planned.strategy, rank, planned.items, items_of);
    }();
    RankSaveReport& report = result.report;
    report.bytes = files.bytes;
    report.files = files.count;
    report.copy = call.phases.end(Phase::kCopy, bytes_of(planned.items));
    report.sync = call.phases.end(Phase::kSync);
    report.write = call.phases.end(Phase::kWrite, files.bytes);
    if (files.count > 0)
      report.engine = files.direct == 0             ? "buffered"
                      : files.direct == files.count ? "direct"
                                                    : "direct and buffered";
    result.items = std::move(items);
    result.digests = std::move(files.digests);
  });
  return result;
}

SaveReport publish_save(SaveCall& call, const PlannedSave& planned, const WrittenByRank& mine,
                        std::optional<PlannedCheckpoint> checkpoint) {
  const PhaseLabel label("publishing the checkpoint");
  Communicator& comm = call.comm;
  const std::vector<Bytes> results = comm.gather(encode(mine), 0);
  SaveReport report;
  call.heartbeat.agree("publishing the checkpoint", [&] {
    if (checkpoint) report = publish(call, planned, *std::move(checkpoint), results);
  });
  report = decode_save_report(comm.broadcast(encode(report), 0));
  if (comm.rank() == 0)
    log_notice(str_format("saved {}: {}", quote(call.target.display()), to_string(report)));
  return report;
}

}  // namespace dckpt
