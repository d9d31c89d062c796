// How a background save runs.
//
//   trainer's thread            every rank agrees on the plan as in save_steps.cpp (steps 1 and 2),
//                               then that the background can start
//   trainer's thread (eager)    the items are copied, as far as there is room; the rest is written
//   or a copying one (lazy)     from the state
//   background thread           steps 3 and 4: writes the items from the copies, publishes; then
//                               `published`
//
// The trainer's thread uses the communicator until all ranks have agreed to start; after that only
// the background thread does, until it ends.

#include "dist_checkpointing/save/save_async.h"

#include <array>
#include <atomic>
#include <future>
#include <optional>
#include <stop_token>
#include <thread>

#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_steps.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/log.h"
#include "strategies/comm/agree.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/tensor_io/staged_source.h"

namespace dckpt {
namespace {

/// A copy that shares nothing with the trainer's state.
Value snapshot(const Value& common) {
  return load_torch_bytes(save_torch_file(common), "the common state");
}

}  // namespace

struct PendingSave::Outcome {
  std::promise<SaveReport> promise;
  std::shared_future<SaveReport> ended = promise.get_future().share();
  std::promise<void> release;
  std::shared_future<void> staged = release.get_future().share();
  const std::shared_ptr<StagedBytes> bytes = std::make_shared<StagedBytes>();
  bool skipped = false;
  std::atomic<bool> asked{false};  ///< someone has had the error, if there is one
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
  return outcome_->ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool PendingSave::skipped() const {
  return outcome_->skipped;
}

void PendingSave::wait_staged() const {
  outcome_->staged.wait();
}

SaveProgress PendingSave::progress() const {
  const StagedBytes& bytes = *outcome_->bytes;
  return {bytes.released, bytes.written, bytes.total};
}

SaveReport PendingSave::wait() const try {
  outcome_->ended.wait();
  outcome_->asked = true;
  return outcome_->ended.get();
} catch (...) {
  throw_checkpoint_error();
}

void PendingSave::cancel() const noexcept {
  outcome_->cancel.request_stop();
}

struct AsyncSaver::Job {
  Job(const Location& location, const SaveOptions& options, Communicator& comm, SaveHooks trainers)
      : relay(trainers.cancel, [this] { outcome->cancel.request_stop(); }),
        hooks(with_cancel(std::move(trainers))),
        call(location, options, comm, hooks) {}

  SaveHooks with_cancel(SaveHooks trainers) const {
    trainers.cancel = outcome->cancel.get_token();
    return trainers;
  }

  SaveReport finish(std::optional<PlannedCheckpoint> checkpoint, SavePlanCache& cache) {
    WrittenByRank written = write_save(call, planned, *source);
    const StagedSource::Staged copied = source->staged();
    call.phases.end(Phase::kStage, copied.bytes);  // the writer may have been first
    written.report.stage = {copied.time.count(), copied.bytes};
    SaveReport report = publish_save(call, planned, written, std::move(checkpoint));
    cache.commit(std::move(plans));
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

  void run(std::optional<PlannedCheckpoint> checkpoint, SavePlanCache& cache,
           const std::function<void(Communicator&)>& published) noexcept {
    try {
      SaveReport report = finish(std::move(checkpoint), cache);
      if (published) published(call.comm);
      source->finish();
      outcome->promise.set_value(std::move(report));
    } catch (...) {
      source->finish();
      outcome->promise.set_exception(std::current_exception());
      report_failure();
    }
  }

  void report_failure() const noexcept {
    try {
      outcome->ended.get();
    } catch (const std::exception& error) {
      const auto* const known = dynamic_cast<const CheckpointError*>(&error);
      if (known != nullptr && known->code() == ErrorCode::kCancelled)
        return log_notice(std::string("a save in the background: ") + error.what());
      log(LogLevel::kError, std::string("a save in the background failed: ") + error.what());
    } catch (...) {
      log(LogLevel::kError, "a save in the background failed");
    }
  }

  std::shared_ptr<PendingSave::Outcome> outcome = std::make_shared<PendingSave::Outcome>();
  std::stop_callback<std::function<void()>>
      relay;  // of the trainer's token, so that PendingSave::cancel() and it are one
  const SaveHooks hooks;
  SaveCall call;
  PlannedSave planned;
  SavePlanCache::Content plans;
  std::optional<StagedSource> source;  // refers to the items of `planned`
  std::optional<std::stop_callback<std::function<void()>>> let_go;  // of the tensors, if cancelled
  std::jthread thread;  // last: joined before what they use goes away
  std::jthread copying;
};

AsyncSaver::AsyncSaver(SaveOptions options, Communicator& comm, SaveHooks hooks,
                       SavePlanCache* cache) try
    : options_(std::move(options)),
      hooks_(std::move(hooks)),
      callers_(comm),
      comm_(comm.split(0)),
      plan_cache_(cache != nullptr ? *cache : own_cache_),
      pool_(options_.async.staging_memory) {
} catch (...) {
  throw_checkpoint_error();
}

AsyncSaver::~AsyncSaver() = default;

void AsyncSaver::wait() try {
  if (job_) agree(*comm_, "finishing the save before", [&] { settle(); });
} catch (...) {
  throw_checkpoint_error();
}

void AsyncSaver::wait_staged() const {
  if (job_) job_->outcome->staged.wait();
}

bool AsyncSaver::busy() try {
  if (!job_) return false;
  const std::array<std::int64_t, 1> mine{PendingSave(job_->outcome).done() ? 0 : 1};
  return callers_.all_reduce(mine, ReduceOp::kMax).front() != 0;
} catch (...) {
  throw_checkpoint_error();
}

void AsyncSaver::settle() {
  const PendingSave before(job_->outcome);
  job_.reset();  // joins
  if (!before.outcome_->asked) before.wait();
}

PendingSave AsyncSaver::save(const StateDict& state, const Location& location,
                             std::function<void(Communicator&)> published) {
  return save(state, location, options_.overwrite, std::move(published));
}

PendingSave AsyncSaver::save(const StateDict& state, const Location& location, bool overwrite,
                             std::function<void(Communicator&)> published) try {
  if (options_.async.when_busy == WhenBusy::kSkip && busy())
    return PendingSave::skip(location, callers_);
  wait();
  SaveOptions options = options_;
  options.overwrite = overwrite;
  auto job = std::make_unique<Job>(location, options, *comm_, hooks_);
  AgreedSave agreed = plan_save(job->call, state, plan_cache_);
  job->planned = std::move(agreed.mine);
  job->plans = std::move(agreed.plans);
  std::optional<PlannedCheckpoint>& checkpoint = agreed.checkpoint;
  const bool lazy = options_.async.snapshot == Snapshot::kLazy;
  std::promise<bool> start;
  const std::shared_future<bool> started = start.get_future().share();
  try {
    agree(*comm_, "preparing the save in the background", [&] {
      if (checkpoint && checkpoint->common) checkpoint->common = snapshot(*checkpoint->common);
      job->source.emplace(job->planned.items, std::move(agreed.tensors),
                          std::move(agreed.object_bytes), pool_, job->outcome->bytes);
      job->let_go.emplace(job->outcome->cancel.get_token(),
                          [source = &*job->source] { source->cancel(); });
      job->thread = std::jthread([this, running = job.get(), checkpoint = std::move(checkpoint),
                                  published = std::move(published), started]() mutable {
        if (started.get()) running->run(std::move(checkpoint), plan_cache_, published);
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
  job_ = std::move(job);
  start.set_value(true);
  if (!lazy) job_->stage(options_.io.threads);
  return PendingSave(job_->outcome);
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
