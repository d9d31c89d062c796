// training_process FOLDER OLDEST NEWEST VICTIM OPERATION END: one process of a job (RANK,
// WORLD_SIZE) whose training root is FOLDER/run. It
//
//   1  resumes from an iteration from OLDEST to NEWEST, or starts from scratch if OLDEST is 0
//   2  fails to save a state in which the last rank has another global shape, then one that does
//      not fit on the last rank's disk
//   3  saves the next iteration, as every rank
//   4  saves one more; rank VICTIM ends, as END says (kill, stop), before the save's OPERATION-th
//      exchange between ranks, or after the save if it has fewer
//
// The exit code is 0 if all of that went as expected and, in 4, this rank got an error
// (unavailable). The surviving ranks write the iteration of 3 to FOLDER/saved, and their errors to
// FOLDER/error.RANK. They find each other through FOLDER/store.
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "strategies/comm/c10d/process_group.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/watched_communicator.h"

namespace dckpt::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::minutes kToConnect{2};
constexpr std::chrono::seconds kToWait{4};

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("expected: " + what);
}

bool contains(const CheckpointError& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

template <typename Body>
CheckpointError error_of(Body&& body) {
  try {
    body();
  } catch (const CheckpointError& error) {
    return error;
  }
  throw std::runtime_error("expected: an error");
}

c10::intrusive_ptr<c10d::Backend> connect(const fs::path& folder, int rank, int size) {
  const auto options = c10d::ProcessGroupGloo::Options::create(kToConnect);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->threads = 1;
  const auto store = c10::make_intrusive<c10d::FileStore>((folder / "store").string(), size);
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  c10d_communicator(backend, kToConnect)->barrier();
  return backend;
}

/// Limits the file size that a process may write during its lifetime.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

struct Arguments {
  fs::path folder;
  std::uint64_t oldest;
  std::uint64_t newest;
  int victim;
  std::uint64_t operation;
  std::string end;
};

std::uint64_t go_on(Checkpointer& checkpointer, const Arguments& arguments, int rank, int size) {
  StateDict state = empty_state(rank, size);
  const auto resumed = checkpointer.load_latest(state);
  require(resumed.has_value() == (arguments.oldest != 0), "a checkpoint unless the run is new");
  if (!resumed) return 0;
  require(arguments.oldest <= resumed->iteration && resumed->iteration <= arguments.newest,
          "another iteration than " + std::to_string(resumed->iteration));
  require(holds(state, resumed->iteration, rank, size),
          "the values of iteration " + std::to_string(resumed->iteration));
  return resumed->iteration;
}

void fail_together(Checkpointer& checkpointer, std::uint64_t iteration, int rank, int size) {
  StateDict state = state_at(iteration, rank, size);
  const Tensor three_rows = Tensor::zeros(DType::kInt64, {3, kColumns / size});
  if (rank == size - 1)
    state["w"] = ShardedTensor::from_rank_offsets("w", three_rows,
                                                  {{.axis = 1, .rank = rank, .count = size}});
  const CheckpointError shapes = error_of([&] { checkpointer.save(state, iteration); });
  require(shapes.code() != ErrorCode::kIo && contains(shapes, "'w'"),
          std::string("an error about the shape of w, not ") + shapes.what());
  const FileSizeLimit full(rank == size - 1 ? 512 : std::uint64_t{1} << 30);
  const CheckpointError disk =
      error_of([&] { checkpointer.save(state_at(iteration, rank, size), iteration); });
  require(contains(disk, "failed on rank " + std::to_string(size - 1) + " of"),
          std::string("an error that names the last rank, not ") + disk.what());
}

[[noreturn]] void end_this_process(const std::string& how) {
  std::raise(how == "stop" ? SIGSTOP : SIGKILL);
  std::abort();
}

void run(const Arguments& arguments, int rank, int size) {
  const auto backend = connect(arguments.folder, rank, size);
  const auto comm = c10d_communicator(backend, kToWait);
  const bool is_victim = rank == arguments.victim;
  bool armed = false;
  std::uint64_t first_moment = 0;
  WatchedCommunicator watched(*comm, [&](std::uint64_t moment) {
    if (armed && is_victim && moment - first_moment == 2 * arguments.operation - 1)
      end_this_process(arguments.end);
  });
  Policy policy{.retention = {.keep_last = 2}};
  policy.save.io.fsync = false;  // power does not fail here, and a slow disk is not a silent rank
  Checkpointer checkpointer(arguments.folder / "run", policy, watched);
  checkpointer.claim();
  for (const auto& entry : fs::directory_iterator(arguments.folder / "run")) {
    require(!entry.path().filename().string().starts_with(".iter_"),
            "nothing left of the job before, not " + entry.path().string());
  }
  const std::uint64_t next = go_on(checkpointer, arguments, rank, size) + 100;
  fail_together(checkpointer, next, rank, size);
  checkpointer.save(state_at(next, rank, size), next);
  if (!is_victim) std::ofstream(arguments.folder / "saved") << next;
  armed = true;
  first_moment = watched.moments();
  const CheckpointError error = error_of([&] {
    for (std::uint64_t iteration = next + 100;; iteration += 100) {
      checkpointer.save(state_at(iteration, rank, size), iteration);
      if (is_victim) end_this_process(arguments.end);
    }
  });
  std::ofstream(arguments.folder / ("error." + std::to_string(rank))) << error.what();
  require(error.code() == ErrorCode::kUnavailable && error.retryable(),
          std::string("an error of a rank that is gone, not ") + error.what());
}

}  // namespace
}  // namespace dckpt::testing

int main(int argc, char** argv) {
  int code = 2;
  if (argc == 7) {
    try {
      const auto number = [](const char* text) { return std::strtoull(text, nullptr, 10); };
      dckpt::testing::run(
          {argv[1], number(argv[2]), number(argv[3]), std::atoi(argv[4]), number(argv[5]), argv[6]},
          std::atoi(std::getenv("RANK")), std::atoi(std::getenv("WORLD_SIZE")));
      code = 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %s: %s\n", std::getenv("RANK"), error.what());
      code = 3;
    }
  }
  _exit(code);  // Gloo would wait for peers that are gone
}
