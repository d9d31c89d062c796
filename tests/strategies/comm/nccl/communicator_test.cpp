#include "strategies/comm/nccl/communicator.h"

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <nccl.h>

#include <thread>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save_async.h"
#include "strategies/comm/threads.h"
#include "tests/strategies/comm/communicator_conformance.h"
#include "tests/strategies/comm/nccl/fake_nccl.h"
#include "tests/support/arange.h"
#include "tests/support/temp_dir.h"

namespace dckpt::communicator_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr NcclOptions options_with(milliseconds timeout) {
  return {.timeout = timeout, .staging = std::size_t{8} << 20};
}

/// Runs ranks as threads, each with a device of its own; device 0 belongs to none. Returns the
/// error of each rank, empty if none.
std::vector<std::string> errors_of(int size, const std::function<void(int rank)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        fake_nccl::bind_thread(rank);
        try {
          body(rank);
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      });
    }
  }
  EXPECT_EQ(fake_nccl::left_over(), "");
  EXPECT_EQ(fake_nccl::misuse(), "");
  EXPECT_FALSE(fake_nccl::contexts().contains(0));
  return errors;
}

class Nccl : public ::testing::Test {
 protected:
  Nccl() { fake_nccl::reset(kDevices); }

  static constexpr int kDevices = 10;

  static std::vector<std::string> errors_on(int size,
                                            const std::function<void(Communicator&)>& body,
                                            milliseconds timeout = seconds(60)) {
    const NcclId id = nccl_unique_id();
    return errors_of(size, [&](int rank) {
      body(*nccl_communicator(id, rank, size, rank + 1, options_with(timeout)));
    });
  }

  static void expect_well(const std::vector<std::string>& errors) { EXPECT_THAT(errors, Each("")); }
};

void run_nccl_ranks(int size, const std::function<void(Communicator&)>& body,
                    milliseconds timeout) {
  fake_nccl::reset(size + 1);
  const NcclId id = nccl_unique_id();
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
  errors_of(size, [&](int rank) {
    try {
      body(*nccl_communicator(id, rank, size, rank + 1, options_with(timeout)));
    } catch (...) {
      thrown[static_cast<std::size_t>(rank)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : thrown) {
    if (error) std::rethrow_exception(error);
  }
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance,
                         ::testing::Values(CommunicatorWorld{"fake", run_nccl_ranks}),
                         name_of_world);

Bytes pattern(std::size_t size, int seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + i / 4096 + static_cast<std::size_t>(seed));
  return bytes;
}

TEST_F(Nccl, BuffersLongerThanTheStagingArriveWhole) {
  expect_well(errors_on(4, [](Communicator& comm) {
    const auto size = [](int from, int to) {
      return (std::size_t{4} << 20) * static_cast<std::size_t>((from + to) % 3) +
             static_cast<std::size_t>(from + 5 * to);
    };
    std::vector<Bytes> mine;
    for (int to = 0; to < 4; ++to) mine.push_back(pattern(size(comm.rank(), to), comm.rank()));
    const std::vector<Bytes> gathered = comm.gather(mine[2], 2);
    const std::vector<Bytes> all = comm.all_to_all(mine);
    for (int from = 0; from < 4; ++from) {
      EXPECT_TRUE(all[static_cast<std::size_t>(from)] == pattern(size(from, comm.rank()), from));
      if (comm.rank() == 2) {
        EXPECT_TRUE(gathered[static_cast<std::size_t>(from)] == pattern(size(from, 2), from));
      }
    }
    EXPECT_TRUE(comm.scatter(comm.rank() == 1 ? mine : std::vector<Bytes>(), 1) ==
                pattern(size(1, comm.rank()), 1));
  }));
}

TEST_F(Nccl, ARankThatDoesNotComeIsNamedAndTheCommunicatorStaysUnusable) {
  const auto errors = errors_on(
      3,
      [](Communicator& comm) {
        if (comm.rank() == 1) return;
        try {
          comm.gather({}, 0);
          if (comm.rank() == 0) ADD_FAILURE() << "no error";
        } catch (const CheckpointError& error) {
          EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
          EXPECT_STREQ(error.what(), "gather: waited 2000 ms for ranks 1, 2");
          comm.barrier();
        }
      },
      seconds(2));
  EXPECT_EQ(errors[0],
            "barrier cannot be completed after an earlier failure: gather: waited 2000 ms for "
            "ranks 1, 2");
}

TEST_F(Nccl, ARankThatIsNotThereWhenOthersConnectIsAnErrorWithinTheTimeout) {
  const NcclId id = nccl_unique_id();
  const auto errors = errors_of(3, [&](int rank) {
    if (rank != 1) nccl_communicator(id, rank, 3, rank + 1, options_with(milliseconds(200)));
  });
  for (const int rank : {0, 2}) {  // the second may be notified of the first
    EXPECT_THAT(
        errors[static_cast<std::size_t>(rank)],
        AnyOf(HasSubstr("waited 200 ms for ranks " + std::string(rank == 0 ? "1, 2" : "0, 1")),
              HasSubstr("lost the connection")));
  }
  EXPECT_THAT(errors,
              Contains(StartsWith("cannot connect 3 ranks over NCCL: waited 200 ms for ranks ")));
}

TEST_F(Nccl, ABrokenConnectionIsToldWithNcclsWords) {
  fake_nccl::break_link(1, "Connection reset by peer");
  const auto errors = errors_on(2, [](Communicator& comm) { comm.gather({}, 0); });
  EXPECT_EQ(errors[0],
            "gather: lost the connection to rank 1: remote process exited or there was a network "
            "error");
  EXPECT_EQ(errors[1],
            "gather: lost the connection to rank 0: unhandled system error (Connection reset by "
            "peer)");
}

TEST_F(Nccl, RanksOutOfStepAreTold) {
  const auto errors = errors_on(
      2, [](Communicator& comm) { comm.rank() == 0 ? comm.barrier() : void(comm.gather({}, 0)); });
  EXPECT_THAT(
      errors[0],
      HasSubstr("rank 1 called gather (operation 1) where rank 0 called barrier (operation 1)"));
}

TEST_F(Nccl, RanksOfAnyOtherCommunicatorCanBeConnected) {
  run_ranks(3, [](Communicator& bootstrap) {
    fake_nccl::bind_thread(bootstrap.rank());
    const auto comm = nccl_communicator(bootstrap, bootstrap.rank() + 1, options_with(seconds(60)));
    EXPECT_EQ(comm->rank(), bootstrap.rank());
    EXPECT_EQ(comm->timeout(), seconds(60));
    EXPECT_EQ(comm->all_gather(to_bytes(std::to_string(comm->rank()))),
              (std::vector<Bytes>{to_bytes("0"), to_bytes("1"), to_bytes("2")}));
  });
  EXPECT_EQ(fake_nccl::left_over() + fake_nccl::misuse(), "");
}

TEST_F(Nccl, ARankWithoutMemoryIsAnErrorOnAllAtOnce) {
  fake_nccl::fail(1, "cudaMalloc", 2);
  std::vector<std::string> errors(3);
  run_ranks(3, [&](Communicator& bootstrap) {
    fake_nccl::bind_thread(bootstrap.rank());
    try {
      nccl_communicator(bootstrap, bootstrap.rank() + 1, options_with(seconds(600)));
    } catch (const CheckpointError& error) {
      errors[static_cast<std::size_t>(bootstrap.rank())] = error.message();
    }
  });
  EXPECT_EQ(errors,
            std::vector<std::string>(
                3,
                "preparing a communicator over NCCL failed on rank 1 of 3; rank 1: cudaMalloc of "
                "8.0 MiB on device 2: out of memory (cudaErrorMemoryAllocation)"));
  EXPECT_EQ(fake_nccl::left_over() + fake_nccl::misuse(), "");
}

TEST_F(Nccl, AGroupWithoutMemoryIsAnErrorOnItsRanksAndTheParentGoesOn) {
  expect_well(errors_on(4, [](Communicator& comm) {
    if (comm.rank() == 2) fake_nccl::fail(2, "cudaHostAlloc");
    comm.barrier();
    if (comm.rank() < 2) {
      EXPECT_EQ(comm.split(0)->size(), 2);
    } else {
      EXPECT_THROW(comm.split(1), CheckpointError);
    }
    comm.barrier();
  }));
}

TEST_F(Nccl, ErrorsOfAGroupNameTheRanksOfTheWholeJobAndLeaveTheParentUsable) {
  expect_well(errors_on(
      5,
      [](Communicator& comm) {
        const auto odd = comm.split(comm.rank() % 2);
        const auto inner = odd->split(0);
        if (comm.rank() == 1) {
          try {
            inner->all_gather({});
            ADD_FAILURE() << "no error";
          } catch (const CheckpointError& error) {
            EXPECT_STREQ(error.what(), "all_gather: waited 2000 ms for rank 3");
          }
          EXPECT_EQ(odd->size(), 2);
        }
      },
      seconds(2)));
}

TEST_F(Nccl, AGroupCanBeUsedByAnotherThreadAtTheSameTime) {
  expect_well(errors_on(3, [](Communicator& comm) {
    const auto copy = comm.split(0);
    std::jthread background([&, rank = comm.rank()] {
      fake_nccl::bind_thread(rank);
      for (int turn = 0; turn < 30; ++turn)
        EXPECT_EQ(copy->all_gather(to_bytes("b" + std::to_string(turn))).size(), 3u);
    });
    for (int turn = 0; turn < 30; ++turn)
      EXPECT_EQ(comm.broadcast(comm.rank() == 2 ? ByteView(as_bytes("f")) : ByteView(), 2),
                to_bytes("f"));
  }));
}

TEST_F(Nccl, TheDeviceOfTheThreadStaysCurrent) {
  expect_well(errors_on(2, [](Communicator& comm) {
    cudaSetDevice(9 - comm.rank());
    comm.split(0)->barrier();
    int device = 0;
    cudaGetDevice(&device);
    EXPECT_EQ(device, 9 - comm.rank());
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    cudaThreadExchangeStreamCaptureMode(&mode);
    EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  }));
}

TEST_F(Nccl, RanksSaveInTheBackgroundWhileTheyTalkAndLoadUnderAnotherLayout) {
  const TempDir directory;
  expect_well(errors_on(2, [&](Communicator& comm) {
    StateDict state;
    const Tensor rows = part_of_arange({4, 4}, {{2 * comm.rank(), 0}, {2, 4}});
    state["w"] =
        ShardedTensor::from_rank_offsets("w", rows, {{.axis = 0, .rank = comm.rank(), .count = 2}});
    AsyncSaver saver({}, comm);
    const PendingSave pending = saver.save(state, directory / "checkpoint");
    for (int turn = 0; turn < 20; ++turn) comm.barrier();
    pending.wait();
  }));
  expect_well(errors_on(4, [&](Communicator& comm) {
    const Tensor column = Tensor::empty(DType::kFloat32, {4, 1});
    StateDict state;
    state["w"] = ShardedTensor::from_rank_offsets("w", column,
                                                  {{.axis = 1, .rank = comm.rank(), .count = 4}});
    load(state, directory / "checkpoint", {}, comm);
    const auto* values = reinterpret_cast<const float*>(column.data());
    for (int row = 0; row < 4; ++row)
      EXPECT_EQ(values[row], static_cast<float>(4 * row + comm.rank()));
  }));
}

/// Makes a communicator as a trainer does.
ncclComm_t make_comm(const NcclId& id, int rank, int size, bool blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  ncclUniqueId nccl_id;
  std::memcpy(nccl_id.internal, id.data(), id.size());
  ncclComm_t comm = nullptr;
  EXPECT_EQ(cudaSetDevice(rank + 1), cudaSuccess);
  ncclResult_t state = ncclCommInitRankConfig(&comm, size, nccl_id, rank, &config);
  while (state == ncclInProgress) ncclCommGetAsyncError(comm, &state);
  EXPECT_EQ(state, ncclSuccess);
  return comm;
}

TEST_F(Nccl, ATrainersCommunicatorIsTakenOver) {
  for (const bool blocking : {false, true}) {
    const NcclId id = nccl_unique_id();
    expect_well(errors_of(3, [&](int rank) {
      const auto comm =
          nccl_communicator(make_comm(id, rank, 3, blocking), options_with(seconds(60)));
      EXPECT_EQ(comm->rank(), rank);
      EXPECT_EQ(comm->size(), 3);
      EXPECT_EQ(comm->split(rank / 2)->all_gather(to_bytes("x")).size(), rank == 2 ? 1u : 2u);
      EXPECT_TRUE(comm->broadcast(rank == 1 ? pattern(10'000'000, 3) : Bytes(), 1) ==
                  pattern(10'000'000, 3));
    }));
  }
}

TEST_F(Nccl, ATrainersCommunicatorStaysItsOwnIfItCannotBeTakenOver) {
  const NcclId id = nccl_unique_id();
  const auto errors = errors_of(1, [&](int) {
    const ncclComm_t comm = make_comm(id, 0, 1, true);
    fake_nccl::fail(0, "cudaStreamCreateWithFlags");
    EXPECT_THROW(nccl_communicator(comm, options_with(seconds(1))), CheckpointError);
    EXPECT_EQ(ncclCommFinalize(comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
  expect_well(errors);
}

TEST_F(Nccl, WhatCannotBeAskedForIsRefused) {
  const NcclId id = nccl_unique_id();
  const auto error_with = [&](int rank, int size, int device, const NcclOptions& options) {
    return errors_of(1, [&](int) { nccl_communicator(id, rank, size, device, options); })[0];
  };
  EXPECT_EQ(error_with(0, 1, 1, {.staging = 4096}),
            "the staging of a communicator over NCCL is 4.0 KiB, expected at least 8.0 MiB");
  EXPECT_THAT(error_with(0, 1, 1, {.timeout = milliseconds(0)}),
              HasSubstr("expected a positive time"));
  EXPECT_EQ(error_with(2, 2, 1, {}), "rank 2 is out of range (size 2)");
  EXPECT_EQ(error_with(0, 1, 77, {}),
            "cudaSetDevice(77): invalid device ordinal (cudaErrorInvalidDevice)");
  EXPECT_THROW(nccl_communicator(static_cast<ncclComm*>(nullptr)), CheckpointError);
}

TEST_F(Nccl, TwoRanksOnOneDeviceAreRefused) {
  const NcclId id = nccl_unique_id();
  const auto errors =
      errors_of(2, [&](int rank) { nccl_communicator(id, rank, 2, 3, options_with(seconds(2))); });
  EXPECT_THAT(errors,
              Contains(StartsWith(
                  "cannot connect 2 ranks over NCCL: ncclCommInitRankConfig: invalid usage")));
}

/// Fails each call that rank 1 makes to CUDA and NCCL, one after the other. Whatever fails, rank 1
/// gets an error that says so, no rank waits longer than the timeout, and nothing is leaked.
TEST_F(Nccl, WhateverFailsIsAnErrorAndEverythingIsFreed) {
  for (const std::string function :
       {"cudaGetDevice", "cudaSetDevice", "cudaStreamCreateWithFlags", "cudaHostAlloc",
        "cudaMalloc", "cudaEventCreateWithFlags", "cudaMemcpyAsync", "cudaEventRecord",
        "cudaEventQuery", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclGroupStart",
        "ncclSend", "ncclRecv", "ncclGroupEnd"}) {
    for (int call = 1;; ++call) {
      fake_nccl::reset(kDevices);
      fake_nccl::fail(1, function, call);
      std::string error;
      run_ranks(2, [&](Communicator& bootstrap) {
        fake_nccl::bind_thread(bootstrap.rank());
        try {
          nccl_communicator(bootstrap, bootstrap.rank() + 1, options_with(seconds(2)))
              ->all_to_all({pattern(100, 1), pattern(5'000'000, 2)});
        } catch (const CheckpointError& caught) {
          if (bootstrap.rank() == 1) error = caught.what();
        }
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      });
      ASSERT_EQ(fake_nccl::left_over() + fake_nccl::misuse(), "") << function << " " << call;
      if (!fake_nccl::has_failed()) {
        EXPECT_GT(call, 1) << function << " is never called";
        EXPECT_EQ(error, "");
        break;
      }
      if (!error.empty()) {  // else the failure came while closing, after all data arrived
        EXPECT_THAT(error, HasSubstr(function == "ncclSend" || function == "ncclRecv"
                                         ? "ncclSend and ncclRecv"
                                         : function))
            << call;
      }
      if (call == 3 && (function == "cudaEventQuery" || function == "ncclCommGetAsyncError"))
        break;  // polled any number of times
    }
  }
}

}  // namespace
}  // namespace dckpt::communicator_test
