// Stops a training job before storage operations of its start and of its save, lets the next job
// resume and save, and wakes the first one up: what the next job has saved, and the tracker, stay
// as they are. With locks that do not reach other hosts, as in NFS without them, the next job is
// not kept out, and the first one still believes to have its lock. An ordinary run takes a sample
// of the operations; DCKPT_SWEEP=all takes every one.

#include <gmock/gmock.h>

#include "dist_checkpointing/open/tracker.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/hidden_sibling.h"
#include "strategies/storage/posix.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/random.h"

namespace dckpt::testing::late_job_test {
namespace {

namespace fs = std::filesystem;

/// A file system whose locks keep nobody out: the words in them are seen everywhere.
class LocksOfOneHost final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  std::unique_ptr<StorageLock> lock(const std::string& name, const std::string& owner) override {
    class Lock final : public StorageLock {};
    storage_->put(name, as_bytes(owner));
    return std::make_unique<Lock>();
  }
};

struct Hosts {
  const char* name;
  bool locks_reach;
  bool can_exchange = true;
  bool cleans = false;  ///< the next job removes what the first one has left hidden
};
void PrintTo(const Hosts& hosts, std::ostream* out) {
  *out << hosts.name;
}

class LateJob : public ::testing::TestWithParam<Hosts> {
 protected:
  LateJob() {
    set_log_sink([](LogLevel, std::string_view) {});
    policy_.save.io.fsync = false;
    policy_.retention.keep_last = 2;
    for (const std::uint64_t iteration : {5, 10}) save(files(), iteration);
    fs::copy(root_.path(), before_.path(), fs::copy_options::recursive);
  }
  ~LateJob() override { set_log_sink({}); }

  std::shared_ptr<Storage> files() const {
    std::shared_ptr<Storage> files = posix_storage(root_.path());
    if (!GetParam().locks_reach) files = std::make_shared<LocksOfOneHost>(files);
    return files;
  }

  /// Resumes, and saves the next iterations. Returns the iteration that it has loaded.
  std::uint64_t run(const std::shared_ptr<Storage>& storage, int saves) const {
    const auto alone = single_rank();
    Checkpointer checkpointer(Location(storage, "run"), policy_, *alone);
    StateDict state = empty_state(0, 1);
    const std::uint64_t loaded = checkpointer.resume(state).iteration;
    for (int i = 1; i <= saves; ++i) {
      const std::uint64_t next = loaded + 10 * static_cast<std::uint64_t>(i);
      checkpointer.save(state_at(next, 0, 1), next);
    }
    return loaded;
  }

  void save(const std::shared_ptr<Storage>& storage, std::uint64_t iteration) const {
    const auto alone = single_rank();
    Checkpointer(Location(storage, "run"), policy_, *alone)
        .save(state_at(iteration, 0, 1), iteration);
  }

  void clean() const {
    for (const auto& entry : fs::directory_iterator(root_ / "run")) {
      const auto sibling = parse_hidden_sibling(entry.path().filename().string());
      if (sibling && sibling->purpose != "replaced") fs::remove_all(entry.path());
    }
  }

  bool holds_iteration(std::uint64_t iteration) const {
    const auto alone = single_rank();
    StateDict state = empty_state(0, 1);
    load(state, root_ / "run" / iteration_directory(iteration));
    return holds(state, iteration, 0, 1);
  }

  const TempDir root_, before_;
  Policy policy_;
};

TEST_P(LateJob, LeavesWhatTheNextJobHasSavedAndTheTracker) {
  int successors = 0;
  bool fired = true;
  Sweep sweep(8);
  for (std::uint64_t stop = 1; fired && !HasFailure(); stop = sweep.after(stop)) {
    SCOPED_TRACE(sweep.trace(stop));
    fs::remove_all(root_ / "run");
    fs::copy(before_ / "run", root_ / "run", fs::copy_options::recursive);
    std::uint64_t last = 0;
    const auto next_job = [&](std::string_view) {
      if (GetParam().cleans) clean();
      try {
        const auto storage =
            std::make_shared<FaultyStorage>(files(), Fault{}, GetParam().can_exchange);
        last = run(storage, 2) + 20;
      } catch (const CheckpointError& error) {
        EXPECT_TRUE(GetParam().locks_reach) << error.what();
        EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      }
    };
    const auto stopped = std::make_shared<FaultyStorage>(
        files(), Fault{Fault::Kind::kStop, stop, next_job}, GetParam().can_exchange);
    std::uint64_t expected = 0;
    try {
      expected = run(stopped, 1) + 10;
    } catch (const CheckpointError& error) {
      EXPECT_NE(last, 0u) << "nobody was in its way: " << error.what();
    }
    fired = stopped->fired();
    if (last != 0) {
      ++successors;
      // A job that was stopped before it had looked resumes from the last one, and goes on.
      if (expected != last + 10) expected = last;
      EXPECT_TRUE(holds_iteration(last));
      EXPECT_TRUE(expected != last || holds_iteration(last - 10));
    }
    EXPECT_EQ(read_tracker(*posix_storage(root_ / "run")), iteration_directory(expected));
    EXPECT_TRUE(holds_iteration(expected));
  }
  EXPECT_GT(successors, 0);
}

INSTANTIATE_TEST_SUITE_P(Jobs, LateJob,
                         ::testing::Values(Hosts{"LocksReach", true},
                                           Hosts{"LocksOfOneHost", false},
                                           Hosts{"Cleaned", false, true, true},
                                           Hosts{"NoExchange", false, false},
                                           Hosts{"NoExchangeCleaned", false, false, true}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dckpt::testing::late_job_test
