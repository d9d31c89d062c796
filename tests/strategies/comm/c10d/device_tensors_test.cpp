#include <gmock/gmock.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "strategies/comm/c10d/process_group.h"
#include "tests/strategies/comm/communicator_conformance.h"

namespace dckpt::device_tensors_test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kStaging = std::size_t{4} << 20;

/// The messages in transit in one process group. Tags are ignored.
struct Wire {
  struct Message {
    at::Tensor tensor;
    std::shared_ptr<bool> done = std::make_shared<bool>(false);
  };
  struct Queues {
    std::deque<Message> sends;
    std::deque<Message> receives;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, Queues> pairs;  ///< from, to

  void match(Queues& pair) {
    while (!pair.sends.empty() && !pair.receives.empty()) {
      EXPECT_EQ(pair.sends.front().tensor.numel(), pair.receives.front().tensor.numel());
      pair.receives.front().tensor.copy_(pair.sends.front().tensor);
      *pair.sends.front().done = *pair.receives.front().done = true;
      pair.sends.pop_front();
      pair.receives.pop_front();
    }
    changed.notify_all();
  }
};

class WireWork final : public c10d::Work {
 public:
  WireWork(std::shared_ptr<Wire> wire, std::vector<std::shared_ptr<bool>> done)
      : wire_(std::move(wire)), done_(std::move(done)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(wire_->mutex);
    const auto all = [&] {
      return std::ranges::all_of(done_, [](const auto& done) { return *done; });
    };
    TORCH_CHECK(wire_->changed.wait_for(lock, timeout, all), "the watchdog gave up");
    return true;
  }

 private:
  std::shared_ptr<Wire> wire_;
  std::vector<std::shared_ptr<bool>> done_;
};

/// A backend like ProcessGroupNCCL: related operations must be coalesced, and tensors must be in
/// the staging memory that its device can reach.
class WireBackend final : public c10d::Backend {
 public:
  WireBackend(std::shared_ptr<Wire> wire, int rank, int size, bool coalesces)
      : Backend(rank, size), wire_(std::move(wire)), coalesces_(coalesces) {}

  const std::string getBackendName() const override { return "wire"; }
  bool supportsCoalescing() const override { return coalesces_; }

  void startCoalescing() override {
    TORCH_CHECK(!open_, "already coalescing");
    open_ = true;
  }

  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    open_ = false;
    return c10::make_intrusive<WireWork>(wire_, std::exchange(done_, {}));
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int) override {
    return post(tensors, {getRank(), to}, &Wire::Queues::sends);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int) override {
    return post(tensors, {from, getRank()}, &Wire::Queues::receives);
  }

 private:
  c10::intrusive_ptr<c10d::Work> post(const std::vector<at::Tensor>& tensors,
                                      std::pair<int, int> ranks,
                                      std::deque<Wire::Message> Wire::Queues::*queue) {
    TORCH_CHECK(open_ == coalesces_,
                "a message outside a coalesced exchange would wait for the one before");
    TORCH_CHECK(
        tensors.size() == 1 && tensors[0].numel() > 0 && tensors[0].storage().nbytes() == kStaging,
        "not a tensor of this device");
    const std::scoped_lock lock(wire_->mutex);
    Wire::Queues& pair = wire_->pairs[ranks];
    const Wire::Message message{tensors[0]};
    (pair.*queue).push_back(message);
    wire_->match(pair);
    if (!coalesces_) return c10::make_intrusive<WireWork>(wire_, std::vector{message.done});
    done_.push_back(message.done);
    return {};
  }

  std::shared_ptr<Wire> wire_;
  bool coalesces_;
  bool open_ = false;
  std::vector<std::shared_ptr<bool>> done_;
};

/// The process groups of one job, by name.
struct Job {
  bool coalesces = true;
  std::mutex mutex{};
  std::map<std::string, std::shared_ptr<Wire>> wires{};

  c10::intrusive_ptr<c10d::Backend> connect(const std::string& name, int rank, int size) {
    const std::scoped_lock lock(mutex);
    std::shared_ptr<Wire>& wire = wires[name];
    if (!wire) wire = std::make_shared<Wire>();
    return c10::make_intrusive<WireBackend>(wire, rank, size, coalesces);
  }
};

void run_wire_ranks(bool coalesces, int size, const std::function<void(Communicator&)>& body,
                    std::chrono::milliseconds timeout) {
  Job job{.coalesces = coalesces};
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto new_group = [&job, rank](const std::vector<int>& ranks,
                                            const std::string& name) {
          return job.connect(name, static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin()),
                             static_cast<int>(ranks.size()));
        };
        try {
          body(*c10d_communicator(job.connect("world", rank, size),
                                  {.device = at::kCPU, .staging = kStaging, .new_group = new_group},
                                  timeout));
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

CommunicatorWorld world(const std::string& name, bool coalesces) {
  return {name, [coalesces](int size, const auto& body, auto timeout) {
            run_wire_ranks(coalesces, size, body, timeout);
          }};
}

INSTANTIATE_TEST_SUITE_P(DeviceTensors, CommunicatorConformance,
                         ::testing::Values(world("coalesced", true), world("one_by_one", false)),
                         name_of_world);

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(DeviceTensors, ATimeoutNamesTheRanks) {
  const std::string error = error_of([] {
    run_wire_ranks(
        true, 3,
        [](Communicator& comm) {
          if (comm.rank() == 0) comm.gather({}, 0);
        },
        std::chrono::milliseconds(200));
  });
  EXPECT_THAT(error, HasSubstr("gather: waited 200 ms for ranks 1, 2: the watchdog gave up"));
}

TEST(DeviceTensors, GroupsOfGroupsNameTheRanksOfTheWholeJob) {
  const std::string error = error_of([] {
    run_wire_ranks(
        true, 5,
        [](Communicator& comm) {
          const auto inner = comm.split(comm.rank() % 2)->split(0);
          if (comm.rank() == 3) inner->gather({}, 1);
          if (comm.rank() == 4) inner->gather({}, 2);
        },
        std::chrono::seconds(2));
  });
  EXPECT_THAT(error, HasSubstr("gather: waited 2000 ms for rank 1: "));
}

TEST(DeviceTensors, RanksAreNotSplitOverOneProcessGroup) {
  Job job;
  std::vector<std::string> errors(2);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto comm = c10d_communicator(job.connect("world", rank, 2),
                                            {.device = at::kCPU, .staging = kStaging});
        EXPECT_EQ(comm->split(rank)->size(), 1);
        errors[static_cast<std::size_t>(rank)] = error_of([&] { comm->split(0); });
        comm->barrier();
      });
    }
  }
  EXPECT_THAT(errors,
              ::testing::Each(HasSubstr("can be split only with DeviceTensors::new_group")));
}

TEST(DeviceTensors, WhatCannotCommunicateIsRefused) {
  Job job;
  EXPECT_THROW(c10d_communicator({}, {.device = at::kCPU}), CheckpointError);
  EXPECT_THAT(error_of([&] {
                c10d_communicator(job.connect("world", 0, 1),
                                  {.device = at::kCPU, .staging = 4096});
              }),
              HasSubstr("is 4.0 KiB, expected at least 4.0 MiB"));
}

}  // namespace
}  // namespace dckpt::device_tensors_test
