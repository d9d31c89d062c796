#include "dist_checkpointing/load/load_async.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stop_token>
#include <thread>
#include <utility>

#include "dist_checkpointing/ranks/background_thread.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"

namespace dckpt {

struct PendingLoad::Outcome {
  bool is_ready() const {
    return ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  /// Throws in a fork, which has none of the threads that would end the load.
  void require_its_process() const {
    if (::getpid() == maker || is_ready()) return;
    throw_error(ErrorCode::kUnavailable,
                "the load runs in process {}, of which this one was forked: wait for it there",
                maker);
  }

  const ::pid_t maker = ::getpid();
  std::promise<LoadReport> promise;
  std::shared_future<LoadReport> ended = promise.get_future().share();
  StateDict state;  ///< the caller's tree, then the loaded one; whoever sets `taken` may move it
  std::atomic<bool> taken{false};
  std::atomic<std::uint64_t> arrived{0};
  std::atomic<std::uint64_t> total{0};
  std::stop_source cancel{};
};

struct AsyncLoader::Running {
  Running(std::shared_ptr<PendingLoad::Outcome> its_outcome, std::stop_token trainers)
      : outcome(std::move(its_outcome)),
        relay(std::move(trainers), [this] { outcome->cancel.request_stop(); }) {}

  std::shared_ptr<PendingLoad::Outcome> outcome;
  std::stop_callback<std::function<void()>> relay;  // relays stops of the trainer's token
  std::jthread thread;                              // last: joined first
};

bool PendingLoad::done() const {
  return outcome_->is_ready();
}

LoadProgress PendingLoad::progress() const {
  return {outcome_->arrived, outcome_->total};
}

LoadReport PendingLoad::wait(StateDict& state) const try {
  outcome_->require_its_process();
  LoadReport report = outcome_->ended.get();
  if (outcome_->taken.exchange(true))
    throw_error(ErrorCode::kInvalidArgument, "the loaded state was taken by an earlier wait()");
  state = std::move(outcome_->state);
  return report;
} catch (...) {
  throw_checkpoint_error();
}

void PendingLoad::cancel() const noexcept {
  outcome_->cancel.request_stop();
}

AsyncLoader::AsyncLoader(Communicator& comm) try
    : comm_(split_off(comm, "preparing loads in the background")) {
} catch (...) {
  throw_checkpoint_error();
}

AsyncLoader::~AsyncLoader() {
  if (running_ && is_beyond_reach(running_->thread, running_->outcome->maker))
    keep_for_good(std::move(comm_), std::move(running_));
}

PendingLoad AsyncLoader::load(StateDict state, const Location& location, const LoadOptions& options,
                              LoadHooks hooks) try {
  if (running_) running_->outcome->require_its_process();
  running_.reset();  // joins
  auto outcome = std::make_shared<PendingLoad::Outcome>();
  outcome->state = std::move(state);
  std::stop_token trainers = std::exchange(hooks.cancel, outcome->cancel.get_token());
  hooks.progress = [outcome = outcome.get(), further = std::move(hooks.progress)](
                       std::uint64_t arrived, std::uint64_t total) {
    outcome->total = total;
    outcome->arrived = arrived;
    if (further) further(arrived, total);
  };
  running_ = std::make_unique<Running>(outcome, std::move(trainers));
  running_->thread = std::jthread([this, outcome, location, options, hooks = std::move(hooks)] {
    try {
      outcome->promise.set_value(
          dckpt::load(outcome->state, location, options, *comm_, plans_, hooks));
    } catch (...) {
      outcome->promise.set_exception(std::current_exception());
    }
  });
  return PendingLoad(outcome);
} catch (...) {
  throw_checkpoint_error();
}

PendingLoad load_async(StateDict state, const Location& location, const LoadOptions& options,
                       Communicator& comm, LoadHooks hooks) {
  auto loader = std::make_shared<AsyncLoader>(comm);
  PendingLoad pending = loader->load(std::move(state), location, options, std::move(hooks));
  pending.loader_ = std::move(loader);
  return pending;
}

}  // namespace dckpt
