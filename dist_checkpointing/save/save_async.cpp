// The threads of a background save:
//
//   trainer's thread            every rank agrees on the plan as in save_steps.cpp (steps 1 and 2),
//                               then that the background can start
//   trainer's thread (eager)    the items are copied, as far as there is room; the rest is written
//   or a copying one (lazy)     from the state. Unless the next save waits, ranks leave together
//                               (eager)
//   background thread           when the previous save has ended: steps 3 and 4, which write the
//                               items from the copies and publish; then `published`
//
// The trainer's thread uses the communicator of the save until all ranks have agreed to start.
// After that only the background thread does, until it ends.
//
// With WhenBusy::kReplace there are three slots and two staging pools: one save is written, one is
// copied and queued, and a third one is planned that may take the place of the queued one. It is
// not copied earlier, as that would take a third of the staging memory away from the two. Whether
// the queued one has begun differs between ranks, so the trainer's threads decide (settle_ended,
// make_room, replace_queued):
//
//   all_reduce   the number of saves that have ended on all ranks; their resources are free. From
//                here on the trainer's thread of every rank is in save(), and none waits for the
//                queued save
//   lock         on every rank, so that the queued save does not begin meanwhile
//   all_reduce   whether it has begun anywhere. If not, all ranks drop it. Otherwise the previous
//                one has ended except for local work, and its staging pool can be used

#include "dist_checkpointing/save/save_async.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "dist_checkpointing/ranks/background_thread.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_steps.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/log.h"
#include "mapping/base/thread_priority.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/comm/phase_label.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/tensor_io/staged_source.h"
#include "strategies/tensor_io/staging_pool.h"

namespace dckpt {
namespace {

/// Returns a copy that shares nothing with the trainer's state.
Value snapshot(const Value& common) {
  return load_torch_bytes(save_torch_file(common), "the common state");
}

/// Returns whether `rank` logs an error. Errors that ranks have agreed on are the same everywhere:
/// only rank 0 and the rank concerned log them. Ranks that waited for others in vain have different
/// errors, so all of them log.
bool tells(const CheckpointError& error, int rank) noexcept {
  const std::optional<int> about = error.context().rank;
  return rank == 0 || !about || *about == rank || error.code() == ErrorCode::kUnavailable;
}

void describe_failure(const std::exception_ptr& of_save, int rank) {
  try {
    std::rethrow_exception(of_save);
  } catch (const std::exception& error) {
    const auto* const known = dynamic_cast<const CheckpointError*>(&error);
    if (known != nullptr && !tells(*known, rank)) return;
    if (known != nullptr && known->code() == ErrorCode::kCancelled)
      return log_notice(std::string("a save in the background: ") + error.what());
    log(LogLevel::kError, std::string("a save in the background failed: ") + error.what());
  } catch (...) {
    log(LogLevel::kError, "a save in the background failed");
  }
}

void log_failure(const std::exception_ptr& of_save, int rank) noexcept {
  try {
    describe_failure(of_save, rank);
  } catch (...) {  // there is no memory for a message
    log(LogLevel::kError, "a save in the background failed");
  }
}

}  // namespace

struct PendingSave::Outcome {
  /// Returns whether this process is a fork, which has none of the threads that would end the save.
  bool never_ends_here() const noexcept { return ::getpid() != maker && !is_ready(); }
  bool is_ready() const {
    return ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void require_its_process() const {
    if (!never_ends_here()) return;
    throw_error(ErrorCode::kUnavailable,
                "the save runs in process {}, from which this one was forked: wait for it there",
                maker);
  }

  const ::pid_t maker = ::getpid();
  std::promise<SaveReport> promise;
  std::shared_future<SaveReport> ended = promise.get_future().share();
  std::promise<void> release;
  std::shared_future<void> staged = release.get_future().share();
  const std::shared_ptr<StagedBytes> bytes = std::make_shared<StagedBytes>();
  bool skipped = false;
  std::atomic<bool> replaced{false};
  std::atomic<bool> asked{false};  ///< someone has received the error, if there is one
  std::stop_source cancel{};
};

PendingSave::PendingSave(SaveReport report) : outcome_(std::make_shared<Outcome>()) {
  outcome_->promise.set_value(std::move(report));
  outcome_->release.set_value();
}

PendingSave PendingSave::skip(const Location& location, const Communicator& comm) {
  const CheckpointError why(ErrorCode::kCancelled,
                            "the save was skipped, because the one before is still running",
                            {.file = location.display()});
  if (comm.rank() == 0) log_notice(why.what());
  PendingSave pending(std::make_shared<Outcome>());
  pending.outcome_->promise.set_exception(std::make_exception_ptr(why));
  pending.outcome_->release.set_value();
  pending.outcome_->skipped = true;
  return pending;
}

bool PendingSave::done() const {
  return outcome_->is_ready() || outcome_->never_ends_here();
}

bool PendingSave::skipped() const {
  return outcome_->skipped;
}

bool PendingSave::replaced() const {
  return outcome_->replaced;
}

void PendingSave::wait_staged() const {
  outcome_->require_its_process();
  outcome_->staged.wait();
}

SaveProgress PendingSave::progress() const {
  const StagedBytes& bytes = *outcome_->bytes;
  return {bytes.released, bytes.written, bytes.total};
}

SaveReport PendingSave::wait() const try {
  outcome_->require_its_process();
  outcome_->ended.wait();
  outcome_->asked = true;
  return outcome_->ended.get();
} catch (...) {
  throw_checkpoint_error();
}

void PendingSave::cancel() const noexcept {
  if (!outcome_->never_ends_here()) outcome_->cancel.request_stop();
}

/// Resources to plan one save at a time.
struct AsyncSaver::Slot {
  Slot(Communicator& callers, SavePlanCache* cache)
      : comm(split_off(callers, "preparing saves in the background")),
        plan_cache(cache != nullptr ? *cache : own_cache) {}
  /// Makes a slot for a save that is planned while others, and so their plans, are unfinished. It
  /// begins with the plans known before the first one.
  Slot(Communicator& callers, const SavePlanCache& known, std::string why_no_plans)
      : Slot(callers, nullptr) {
    own_cache = known.fork();
    if (known.empty()) own_cache.clear(std::move(why_no_plans));
  }

  const std::unique_ptr<Communicator> comm;
  SavePlanCache own_cache;
  SavePlanCache& plan_cache;
};

/// Decides which save may write.
struct AsyncSaver::Turns {
  std::mutex mutex;  ///< guards Job::begun and Job::replaced
  std::condition_variable changed;
};

struct AsyncSaver::Job {
  Job(const Location& location, const SaveOptions& options, Slot& its_slot, Turns& of_saver,
      SaveHooks trainers)
      : slot(its_slot),
        turns(of_saver),
        relay(trainers.cancel, [this] { outcome->cancel.request_stop(); }),
        hooks(with_cancel(std::move(trainers))),
        call(location, options, *its_slot.comm, hooks) {}

  /// Waits until `before` has ended. Returns false if another save has taken this one's place.
  bool begin_after(const std::shared_ptr<PendingSave::Outcome>& before) {
    std::unique_lock lock(turns.mutex);
    turns.changed.wait(lock, [&] { return replaced || !before || PendingSave(before).done(); });
    begun = !replaced;
    return begun;
  }

  /// Requires the lock of the turns. The threads end. The plan, which all ranks have agreed on, is
  /// kept.
  void be_replaced(const Location& by) {
    const CheckpointError why(
        ErrorCode::kCancelled,
        str_format("the save was replaced by that of {} while it waited for the one before",
                   quote(by.display())),
        {.file = call.target.display()});
    if (call.comm.rank() == 0) log_notice(why.what());
    replaced = outcome->replaced = true;
    source->cancel();
    slot.plan_cache.commit(std::move(plans));
    outcome->promise.set_exception(std::make_exception_ptr(why));
    turns.changed.notify_all();
  }

  SaveHooks with_cancel(SaveHooks trainers) const {
    trainers.cancel = outcome->cancel.get_token();
    return trainers;
  }

  SaveReport finish(std::optional<PlannedCheckpoint> checkpoint) {
    WrittenByRank written = write_save(call, planned, *source);
    const StagedSource::Staged copied = source->staged();
    call.phases.end(Phase::kStage, copied.bytes);  // the writer may have finished first
    written.report.stage = {copied.time.count(), copied.bytes};
    SaveReport report = publish_save(call, planned, written, std::move(checkpoint));
    slot.plan_cache.commit(std::move(plans));
    return report;
  }

  /// Copies the items, or waits until they are written.
  void stage(int threads) noexcept {
    {
      const PhaseClock::Scope staging(&call.phases, Phase::kStage);
      source->stage(threads);
    }
    outcome->release.set_value();
  }

  void run(std::optional<PlannedCheckpoint> checkpoint,
           const std::function<void(Communicator&)>& published) noexcept {
    try {
      SaveReport report = finish(std::move(checkpoint));
      planned.planner.published();
      if (published) published(call.comm);
      source->finish();
      outcome->promise.set_value(std::move(report));
    } catch (...) {
      planned.planner.failed();
      source->finish();
      outcome->promise.set_exception(std::current_exception());
      log_failure(std::current_exception(), call.comm.rank());
    }
    const std::lock_guard lock(turns.mutex);
    turns.changed.notify_all();
  }

  Slot& slot;
  StagingPool* pool = nullptr;  ///< set once it is planned
  Turns& turns;
  bool begun = false;
  bool replaced = false;
  std::shared_ptr<PendingSave::Outcome> outcome = std::make_shared<PendingSave::Outcome>();
  std::stop_callback<std::function<void()>> relay;  // passes on stops of the trainer's token
  const SaveHooks hooks;
  SaveCall call;
  PlannedSave planned;
  SavePlanCache::Content plans;
  std::optional<StagedSource> source;  // refers to the items of `planned`
  std::optional<std::stop_callback<std::function<void()>>> let_go;  // releases tensors on cancel
  std::jthread thread;  // last, so that it is joined before the members it uses are destroyed
  std::jthread copying;
};

AsyncSaver::AsyncSaver(SaveOptions options, Communicator& comm, SaveHooks hooks,
                       SavePlanCache* cache) try
    : options_(std::move(options)),
      hooks_(std::move(hooks)),
      callers_(comm),
      turns_(std::make_unique<Turns>()) {
  const bool replaces = options_.async.when_busy == WhenBusy::kReplace;
  slots_.push_back(std::make_unique<Slot>(comm, cache));
  for (const char* const why :
       {"first save while one runs", "first save while another is queued"}) {
    if (replaces) slots_.push_back(std::make_unique<Slot>(comm, slots_.front()->plan_cache, why));
  }
  const std::size_t pools = replaces ? 2 : 1;
  for (std::size_t i = 0; i < pools; ++i)
    pools_.push_back(std::make_unique<StagingPool>(options_.async.staging_memory / pools));
} catch (...) {
  throw_checkpoint_error();
}

AsyncSaver::~AsyncSaver() {
  if (std::ranges::any_of(jobs_, [](const std::unique_ptr<Job>& job) {
        return is_beyond_reach(job->thread, job->outcome->maker) ||
               is_beyond_reach(job->copying, job->outcome->maker);
      }))
    keep_for_good(std::move(slots_), std::move(pools_), std::move(turns_), std::move(jobs_));
}

/// Throws if a save runs in the process from which this one was forked.
void AsyncSaver::require_its_process() const {
  for (const auto& job : jobs_) job->outcome->require_its_process();
}

void AsyncSaver::wait() try {
  require_its_process();
  if (!jobs_.empty())
    agree(*slots_.front()->comm, "finishing the save before", [&] { settle(jobs_.size()); });
} catch (...) {
  throw_checkpoint_error();
}

void AsyncSaver::wait_staged() const {
  require_its_process();
  for (const auto& job : jobs_) job->outcome->staged.wait();
}

bool AsyncSaver::busy() try {
  require_its_process();
  if (jobs_.empty()) return false;
  const PhaseLabel label("looking whether a save still runs");
  const std::array<std::int64_t, 1> mine{PendingSave(jobs_.back()->outcome).done() ? 0 : 1};
  return callers_.all_reduce(mine, ReduceOp::kMax).front() != 0;
} catch (...) {
  throw_checkpoint_error();
}

/// Waits for the first `count` saves. Throws the first error that nobody has asked for.
void AsyncSaver::settle(std::size_t count) {
  std::optional<CheckpointError> failure;
  for (; count > 0; --count) {
    const PendingSave before(jobs_.front()->outcome);
    before.outcome_->ended.wait();
    jobs_.pop_front();  // joins
    if (before.outcome_->asked) continue;
    const auto its = failure_of([&] { before.wait(); });
    if (!failure) failure = its;
  }
  if (failure) throw CheckpointError(*failure);
}

/// Settles the saves that have ended on all ranks.
void AsyncSaver::settle_ended() {
  if (jobs_.empty()) return;
  const PhaseLabel label("finishing the save before");
  const auto running = std::ranges::find_if(
      jobs_, [](const auto& job) { return !PendingSave(job->outcome).done(); });
  const std::array<std::int64_t, 1> ended{running - jobs_.begin()};
  const auto everywhere = callers_.all_reduce(ended, ReduceOp::kMin).front();
  agree(callers_, "finishing the save before",
        [&] { settle(static_cast<std::size_t>(everywhere)); });
}

/// Provides staging memory for a save that does not wait until the previous ones have been written.
void AsyncSaver::make_room(const Location& location) {
  while (jobs_.size() == pools_.size()) {
    settle_ended();
    if (jobs_.size() < pools_.size() || replace_queued(location)) return;
    jobs_.front()->outcome->ended.wait();
  }
}

bool AsyncSaver::replace_queued(const Location& by) {
  const PhaseLabel label("replacing the queued save");
  {
    Job& queued = *jobs_.back();
    const std::lock_guard lock(turns_->mutex);
    const std::array<std::int64_t, 1> mine{queued.begun ? 1 : 0};
    if (callers_.all_reduce(mine, ReduceOp::kMax).front() != 0) return false;
    queued.be_replaced(by);
  }
  jobs_.pop_back();  // joins
  return true;
}

/// Copies the state. If it does not fit into the staging memory, this takes as long as writing the
/// rest. The next save begins with wait(), or else with a collective, which the other ranks must
/// not enter too early.
void AsyncSaver::copy_state(Job& job) {
  const auto copy = [&] { job.stage(options_.io.threads); };
  if (options_.async.when_busy == WhenBusy::kWait) return copy();
  Heartbeat(callers_).agree("copying the state", copy);
}

AsyncSaver::Slot& AsyncSaver::free_slot() {
  return **std::ranges::find_if(slots_, [&](const auto& slot) {
    return std::ranges::none_of(jobs_, [&](const auto& job) { return &job->slot == slot.get(); });
  });
}

StagingPool& AsyncSaver::free_pool() {
  return **std::ranges::find_if(pools_, [&](const auto& pool) {
    return std::ranges::none_of(jobs_, [&](const auto& job) { return job->pool == pool.get(); });
  });
}

PendingSave AsyncSaver::save(const StateDict& state, const Location& location,
                             std::function<void(Communicator&)> published) {
  return save(state, location, options_.overwrite, std::move(published));
}

PendingSave AsyncSaver::save(const StateDict& state, const Location& location, bool overwrite,
                             std::function<void(Communicator&)> published) try {
  require_its_process();
  if (options_.async.when_busy == WhenBusy::kSkip && busy())
    return PendingSave::skip(location, callers_);
  const bool replaces = options_.async.when_busy == WhenBusy::kReplace;
  if (replaces)
    settle_ended();
  else
    wait();
  SaveOptions options = options_;
  options.overwrite = overwrite;
  Slot& slot = free_slot();
  auto job = std::make_unique<Job>(location, options, slot, *turns_, hooks_);
  AgreedSave agreed = plan_save(job->call, state, slot.plan_cache);
  if (replaces) make_room(location);
  job->pool = &free_pool();
  job->planned = std::move(agreed.mine);
  job->plans = std::move(agreed.plans);
  std::optional<PlannedCheckpoint>& checkpoint = agreed.checkpoint;
  const bool lazy = options_.async.snapshot == Snapshot::kLazy;
  std::promise<bool> start;
  const std::shared_future<bool> started = start.get_future().share();
  try {
    agree(*slot.comm, "preparing the save in the background", [&] {
      if (checkpoint && checkpoint->common) checkpoint->common = snapshot(*checkpoint->common);
      job->source.emplace(job->planned.items_in_state(), std::move(agreed.tensors),
                          std::move(agreed.object_bytes), *job->pool, job->outcome->bytes);
      job->let_go.emplace(job->outcome->cancel.get_token(),
                          [source = &*job->source] { source->cancel(); });
      const auto before = jobs_.empty() ? nullptr : jobs_.back()->outcome;
      job->thread = std::jthread([running = job.get(), before, checkpoint = std::move(checkpoint),
                                  published = std::move(published), started]() mutable {
        lower_priority_of_thread();
        if (started.get() && running->begin_after(before))
          running->run(std::move(checkpoint), published);
      });
      if (lazy)
        job->copying = std::jthread([running = job.get(), started] {
          if (started.get()) running->stage(1);  // leaves the other cores to the trainer
        });
    });
  } catch (...) {
    start.set_value(false);
    throw;
  }
  jobs_.push_back(std::move(job));
  start.set_value(true);
  if (!lazy) copy_state(*jobs_.back());
  return PendingSave(jobs_.back()->outcome);
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
