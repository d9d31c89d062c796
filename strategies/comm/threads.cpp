#include "strategies/comm/threads.h"

#include <exception>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/comm/thread_transport.h"

namespace dckpt {
namespace {

/// Records how the ranks ended, and selects the error that run_ranks reports.
class Outcomes {
 public:
  Outcomes(ThreadNetwork& network, int size)
      : network_(network), failures_(static_cast<std::size_t>(size)) {}

  void run(int rank, const std::function<void()>& body) noexcept {
    try {
      describe(rank, body);
    } catch (...) {  // there is no memory for a description; this one takes none
      fail(rank, "out of memory");
    }
  }

  /// Rethrows the first error in rank order, preferring original errors to those they caused.
  void rethrow_first() const {
    for (const bool origin : {true, false}) {
      for (const Failure& failure : failures_) {
        if (failure.error && (failure.error == failure.origin) == origin)
          std::rethrow_exception(failure.error);
      }
    }
  }

 private:
  struct Failure {
    std::exception_ptr error;   ///< null if the rank has returned
    std::exception_ptr origin;  ///< the error of the rank that failed first; often `error`
    std::string how;
  };

  void describe(int rank, const std::function<void()>& body) {
    const std::string name = "rank " + std::to_string(rank);
    try {
      body();
      end(rank, name + " has returned");
    } catch (const CheckpointError& error) {
      fail(rank, str_format("{} failed: {}", name, error.what()), error.cause());
    } catch (const std::exception& error) {
      fail(rank, str_format("{} failed: {}", name, error.what()));
    } catch (...) {
      fail(rank, name + " failed");
    }
  }

  /// Must be called in an exception handler. Ranks that wait for this one get the original failure
  /// if another rank's failure caused this one.
  void fail(int rank, std::string how, const std::exception_ptr& cause = nullptr) {
    Failure failure{std::current_exception(), std::current_exception(), std::move(how)};
    const std::lock_guard lock(mutex_);
    for (const Failure& earlier : failures_) {
      if (!cause || cause != earlier.origin) continue;
      failure.origin = earlier.origin;
      failure.how = earlier.how;
      break;
    }
    network_.end(rank, failure.how, failure.origin);
    failures_.at(static_cast<std::size_t>(rank)) = std::move(failure);
  }

  /// The end of a rank's messages is not an error of that rank, but the origin of others' errors.
  void end(int rank, const std::string& how) {
    const auto origin = std::make_exception_ptr(CheckpointError(ErrorCode::kUnavailable, how));
    const std::lock_guard lock(mutex_);
    network_.end(rank, how, origin);
    failures_.at(static_cast<std::size_t>(rank)) = {nullptr, origin, how};
  }

  ThreadNetwork& network_;
  std::mutex mutex_;
  std::vector<Failure> failures_;
};

}  // namespace

void run_ranks(int size, const std::function<void(Communicator&)>& body,
               std::chrono::milliseconds timeout) {
  if (size < 1)
    throw_error(ErrorCode::kInvalidArgument, "cannot run {} ranks: at least one is needed", size);
  ThreadNetwork network(size);
  Outcomes outcomes(network, size);
  {
    std::promise<bool> start;
    const std::shared_future<bool> started = start.get_future().share();
    std::vector<std::jthread> threads;
    try {
      for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank, started] {
          if (!started.get()) return;
          outcomes.run(
              rank, [&] { body(*point_to_point(network.transport(rank), rank, size, timeout)); });
        });
      }
    } catch (const std::exception& error) {
      start.set_value(false);
      throw_error(ErrorCode::kIo,
                  "cannot run {} ranks, and none has begun: the thread of rank {} could not be "
                  "started ({}); allow more threads or memory (ulimit -u, ulimit -v, pids.max "
                  "of the container), or run fewer ranks",
                  size, threads.size(), error.what());
    }
    start.set_value(true);
  }
  outcomes.rethrow_first();
}

}  // namespace dckpt
