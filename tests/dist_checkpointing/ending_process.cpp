// ending_process FOLDER WHAT HOW: a trainer that ends while a global object saves (WHAT is save) or
// loads (load) in the background. HOW it ends:
//
//   main    its first thread leaves by pthread_exit, so the process ends with its last thread, which
//           is the one in the background
//   other   another thread has begun the work and leaves by pthread_exit; then main returns
//   fork    a fork returns from main, and then so does main
//
// The checkpoint is FOLDER/run/iter_0000002; FOLDER/run/iter_0000001 exists before.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "dist_checkpointing/load/load_async.h"
#include "strategies/registry/registry.h"
#include "strategies/torch_dist/save_strategy.h"
#include "tests/dist_checkpointing/training_run.h"

namespace dckpt::testing {

constexpr unsigned kSecondsAtMost = 60;

namespace {

/// True while the background thread is in take_long(), where it allocates nothing.
std::atomic<bool> takes_long{false};

void take_long() {
  takes_long = true;
  takes_long.notify_all();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

class SlowStrategy final : public SaveStrategy {
 public:
  explicit SlowStrategy(const SaveOptions& options)
      : inner_(make_torch_dist_save_strategy(options)) {}
  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
    take_long();
    return inner_->write_data(storage, directory, rank, plan, source);
  }
  void write_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                   const CommonState* common) const override {
    inner_->write_index(storage, directory, metadata, common);
  }
  std::optional<MarkerFile> marker(const Storage& storage, const Metadata& metadata,
                                   const CommonState* common) const override {
    return inner_->marker(storage, metadata, common);
  }

 private:
  std::unique_ptr<SaveStrategy> inner_;
};

const std::unique_ptr<Communicator> comm = single_rank();
std::optional<Checkpointer> checkpointer;
std::optional<AsyncLoader> loader;

void begin(const std::string& folder, const std::string& what) {
  if (what == "save") {
    Policy policy;
    policy.save.strategy.name = "slow";
    policy.save.async.enabled = true;
    checkpointer.emplace(folder + "/run", policy, *comm);
    checkpointer->save(state_at(2, 0, 1), 2);
  } else {
    loader.emplace(*comm);
    loader->load(empty_state(0, 1), folder + "/run/iter_0000001", {},
                 {.preprocess = [](StateDict state) {
                   take_long();
                   return state;
                 }});
  }
}

int run(const std::string& folder, const std::string& what, const std::string& how) {
  register_strategy(SaveStrategyEntry{
      .name = "slow", .about = "for this test", .make = [](const SaveOptions& options) {
        SaveOptions inner = options;
        inner.strategy = {};
        return std::make_unique<SlowStrategy>(inner);
      }});
  if (how == "other") {
    std::thread([&] {
      begin(folder, what);
      pthread_exit(nullptr);
    }).join();
    return 0;
  }
  begin(folder, what);
  if (how == "main") pthread_exit(nullptr);
  // A fork while another thread allocates would inherit a lock of AddressSanitizer that is never
  // released.
  takes_long.wait(false);
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSecondsAtMost);  // a fork does not inherit its parent's alarm
    return 0;
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace dckpt::testing

/// Called by AddressSanitizer. Objects owned by threads that a fork lacks are not leaks.
extern "C" [[gnu::visibility("default")]] const char* __asan_default_options() {
  return "detect_leaks=0";
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  alarm(dckpt::testing::kSecondsAtMost);
  return dckpt::testing::run(argv[1], argv[2], argv[3]);
}
