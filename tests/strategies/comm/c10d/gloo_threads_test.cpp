#include <gmock/gmock.h>

#include <csignal>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "strategies/comm/c10d/process_group.h"
#include "tests/strategies/comm/communicator_conformance.h"

namespace dckpt::gloo_threads_test {
namespace {

using ::testing::HasSubstr;

c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                          int size) {
  const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(1));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->threads = 1;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

/// Runs ranks as threads, each with a process group of its own over loopback. The groups live until
/// all have ended: a rank that never comes is silent, not gone.
void run_gloo_ranks(int size, const std::function<void(Communicator&)>& body,
                    std::chrono::milliseconds timeout) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends(static_cast<std::size_t>(size));
  std::vector<std::exception_ptr> errors(backends.size());
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank, index = static_cast<std::size_t>(rank)] {
        try {
          backends[index] = connect(store, rank, size);
          body(*c10d_communicator(backends[index], timeout));
        } catch (...) {
          errors[index] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorConformance,
                         ::testing::Values(CommunicatorWorld{"threads_over_loopback",
                                                             run_gloo_ranks}),
                         name_of_world);

std::string error_of(int size, const std::function<void(Communicator&)>& body,
                     std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  try {
    run_gloo_ranks(size, body, timeout);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(GlooCommunicator, AConnectionThatAPeerHasClosedDoesNotEndTheProcess) {
  const auto left = [](void (*before)(int)) {
    (void)std::signal(SIGPIPE, before);
    run_gloo_ranks(
        1, [](Communicator&) {}, std::chrono::seconds(60));
    return std::signal(SIGPIPE, SIG_DFL);
  };
  const auto own = [](int) {};
  EXPECT_EQ(left(SIG_DFL), SIG_IGN);
  EXPECT_EQ(left(own), +own) << "the trainer's own handler stays";
}

TEST(GlooCommunicator, ATimeoutNamesTheOperationAndTheRankAndTheCommunicatorStaysUnusable) {
  const std::string message = error_of(
      2,
      [](Communicator& comm) {
        if (comm.rank() == 1) return;
        try {
          comm.gather({}, 0);
          ADD_FAILURE() << "no error";
        } catch (const CheckpointError& error) {
          EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
          EXPECT_THAT(error.what(), HasSubstr("gather: waited 300 ms for rank 1"));
        }
        comm.barrier();
      },
      std::chrono::milliseconds(300));
  EXPECT_THAT(message, HasSubstr("barrier cannot be completed after an earlier failure: gather: "
                                 "waited 300 ms for rank 1"));
}

TEST(GlooCommunicator, DifferentOperationsAreAnErrorAndNotADeadlock) {
  const std::string message = error_of(
      2, [](Communicator& comm) { comm.rank() == 0 ? comm.barrier() : void(comm.gather({}, 0)); },
      std::chrono::seconds(5));
  EXPECT_THAT(
      message,
      HasSubstr("rank 1 called gather (operation 1) where rank 0 called barrier (operation 1)"));
}

TEST(GlooCommunicator, AllReduceOfDifferentLengthsFailsOnEveryRankAndStaysInStep) {
  run_gloo_ranks(
      3,
      [](Communicator& comm) {
        const std::vector<std::int64_t> values(comm.rank() == 2 ? 5 : 4);
        EXPECT_THROW(comm.all_reduce(values, ReduceOp::kSum), CheckpointError);
        comm.barrier();
      },
      std::chrono::seconds(60));
}

TEST(GlooCommunicator, GroupsOfOneProcessGroupDoNotMixTheirMessages) {
  run_gloo_ranks(
      3,
      [](Communicator& comm) {
        const auto first = comm.split(comm.rank() / 2);
        const auto second = first->split(0);
        const auto third = comm.split(0);
        std::vector<Communicator*> order = {first.get(), second.get(), third.get()};
        for (Communicator* group : order) {
          const std::vector<std::int64_t> one = {1};
          EXPECT_EQ(group->all_reduce(one, ReduceOp::kSum).front(), group->size());
        }
        EXPECT_EQ(third->size(), 3);
      },
      std::chrono::seconds(60));
}

TEST(GlooCommunicator, WhatCannotCommunicateIsRefused) {
  EXPECT_THROW(c10d_communicator({}, std::chrono::seconds(1)), CheckpointError);
  EXPECT_THAT(error_of(
                  1, [](Communicator&) {}, std::chrono::milliseconds(0)),
              HasSubstr("expected a positive time"));
}

}  // namespace
}  // namespace dckpt::gloo_threads_test
