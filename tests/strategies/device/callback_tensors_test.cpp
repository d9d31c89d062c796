// Tensors whose elements only functions reach, saved, loaded and sent.

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/device_conformance.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "mapping/state/callback_tensor.h"
#include "mapping/state/dlpack.h"
#include "strategies/comm/threads.h"
#include "strategies/device/callback_runtime.h"
#include "strategies/device/page_locked_pool.h"
#include "tests/strategies/device/device_states.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "transfer/transfer.h"

namespace dckpt::callback_tensors_test {
namespace {

using testing::counting;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kPieceFloats;
using testing::transposed;

/// An accelerator that stores each element with its bits inverted and the elements in reverse
/// order, so that its memory has no run of a tensor.
class Reversed {
 public:
  explicit Reversed(const Tensor& content)
      : dtype_(content.dtype()),
        shape_(content.shape()),
        memory_(std::make_shared<Memory>(content)) {}

  Tensor tensor() const {
    return callback_tensor(
        dtype_, shape_,
        {.read =
             [memory = memory_](std::uint64_t offset, MutableByteView to) {
               memory->count(to.size());
               return memory->fault(to.size(), [&] { memory->move(offset, to.data(), to.size()); });
             },
         .write =
             [memory = memory_](std::uint64_t offset, ByteView from) {
               memory->count(from.size());
               return memory->fault(from.size(), [&] {
                 Bytes piece(from.begin(), from.end());
                 memory->move(offset, piece.data(), piece.size(), true);
               });
             }});
  }
  Tensor content() const {
    Tensor tensor = Tensor::empty(dtype_, shape_);
    if (tensor.nbytes() > 0) memory_->move(0, tensor.data(), tensor.nbytes());
    return tensor;
  }
  /// Makes every later call do this with the size of the piece and with what it would do.
  using Fault = std::function<std::size_t(std::size_t size, const std::function<void()>& move)>;
  void set_fault(Fault fault) const { memory_->fault = std::move(fault); }
  int calls() const { return memory_->calls; }
  std::size_t largest() const { return memory_->largest; }
  std::size_t bytes() const { return memory_->bytes; }

 private:
  struct Memory {
    explicit Memory(const Tensor& content)
        : size(item_size(content.dtype())), elements(content.nbytes()) {
      const Tensor dense = content.contiguous();
      Bytes copy(dense.bytes().begin(), dense.bytes().end());
      move(0, copy.data(), copy.size(), true);
    }
    void move(std::uint64_t offset, std::byte* host, std::size_t bytes_, bool to_device = false) {
      for (std::size_t i = 0; i < bytes_; i += size) {
        std::byte* const own = elements.data() + elements.size() - size - (offset + i);
        for (std::size_t byte = 0; byte < size; ++byte)
          (to_device ? own[byte] : host[i + byte]) = ~(to_device ? host[i + byte] : own[byte]);
      }
    }
    void count(std::size_t piece) {
      ++calls;
      largest = std::max(largest.load(), piece);
      bytes += piece;
    }
    std::size_t size;
    Bytes elements;
    Fault fault = [](std::size_t piece, const std::function<void()>& move) {
      move();
      return piece;
    };
    std::atomic<int> calls = 0;
    std::atomic<std::size_t> largest = 0;
    std::atomic<std::size_t> bytes = 0;
  };
  DType dtype_;
  Shape shape_;
  std::shared_ptr<Memory> memory_;
};

std::vector<Tensor> contents() {
  return {counting({9, kPieceFloats / 4}), counting({3, 5}, 100), counting({0, 4}),
          counting({}, 42)};
}

StateDict state_of(const std::vector<Reversed>& tensors) {
  std::vector<Tensor> handles;
  for (const Reversed& tensor : tensors) handles.push_back(tensor.tensor());
  return testing::state_of(handles);
}

std::vector<Reversed> reversed(const std::vector<Tensor>& contents) {
  return {contents.begin(), contents.end()};
}

std::vector<Tensor> zeros_like(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> zeros;
  for (const Tensor& tensor : tensors)
    zeros.push_back(Tensor::zeros(tensor.dtype(), tensor.shape()));
  return zeros;
}

TEST(CallbackRuntime, Conforms) {
  const auto allocate = [](std::size_t bytes) {
    const Reversed memory(Tensor::zeros(DType::kUInt8, {static_cast<std::int64_t>(bytes)}));
    const Tensor tensor = memory.tensor();
    return std::shared_ptr<std::byte>(tensor.mutable_data(), [tensor](std::byte*) {});
  };
  const ConformanceReport report = check_device(*callback_runtime(), allocate);
  EXPECT_THAT(report.problems, ::testing::IsEmpty());
  EXPECT_EQ(report.checks, 11);
}

TEST(CallbackTensors, AreStoredLikeThoseOfTheCpuAndLoaded) {
  const TempDir dir;
  const auto tensors = reversed(contents());
  save(state_of(tensors), dir / "saved");
  const StateDict stored = load_plain_tensors(dir / "saved");
  for (std::size_t i = 0; i < contents().size(); ++i)
    EXPECT_TRUE(equal(stored.at("weights." + std::to_string(i)).as_tensor(), contents()[i]));
  EXPECT_LE(tensors[0].largest(), PageLockedPool::kPieceBytes) << "no copy of the whole";
  EXPECT_EQ(tensors[0].bytes(), contents()[0].nbytes()) << "each element is read once";

  const auto loaded = reversed(zeros_like(contents()));
  StateDict state = state_of(loaded);
  load(state, dir / "saved");
  for (std::size_t i = 0; i < contents().size(); ++i)
    EXPECT_TRUE(equal(loaded[i].content(), contents()[i])) << i;
  EXPECT_LE(loaded[0].largest(), PageLockedPool::kPieceBytes);
}

TEST(CallbackTensors, HaveViewsWhoseElementsAreReached) {
  const TempDir dir;
  const Reversed whole(counting({6, 8}));
  StateDict state = Value::dict();
  state["columns"] = ShardedTensor::whole("columns", whole.tensor().narrow(1, 2, 3));
  state["row"] = ShardedTensor::whole("row", whole.tensor().narrow(0, 4, 1).view({2, 4}));
  const Tensor both = whole.tensor();
  state["turned"] = ShardedTensor::whole(
      "turned", {both.dtype(), {8, 6}, {1, 8}, both.mutable_data(), both.owner(), both.device()});
  save(state, dir / "saved");
  const StateDict stored = load_plain_tensors(dir / "saved");
  const Tensor expected = counting({6, 8});
  EXPECT_TRUE(equal(stored.at("columns").as_tensor(), expected.narrow(1, 2, 3)));
  EXPECT_TRUE(equal(stored.at("row").as_tensor(), expected.narrow(0, 4, 1).view({2, 4})));
  EXPECT_TRUE(equal(stored.at("turned").as_tensor(), transposed(expected)));

  const Reversed target(Tensor::zeros(DType::kFloat32, {6, 8}));
  StateDict part = Value::dict();
  part["columns"] = ShardedTensor::whole("columns", target.tensor().narrow(1, 2, 3));
  load(part, dir / "saved");
  EXPECT_TRUE(equal(target.content().narrow(1, 2, 3), expected.narrow(1, 2, 3)));
  EXPECT_EQ(target.content().data<float>()[0], 0);
}

TEST(CallbackTensors, AreReadUntilTheSnapshotOfABackgroundSaveIsComplete) {
  const TempDir dir;
  for (const std::uint64_t staging : {std::uint64_t{1} << 20, std::uint64_t{64} << 20}) {
    const auto tensors = reversed(contents());
    SaveOptions options;
    options.overwrite = true;
    options.async.staging_memory = staging;
    const auto comm = single_rank();
    AsyncSaver saver(options, *comm);
    const PendingSave pending = saver.save(state_of(tensors), dir / "saved");
    pending.wait_staged();
    const int calls = tensors[0].calls();
    tensors[0].set_fault([](std::size_t, const auto&) -> std::size_t { std::abort(); });
    pending.wait();
    EXPECT_EQ(tensors[0].calls(), calls);
    EXPECT_TRUE(
        equal(load_plain_tensors(dir / "saved").at("weights.0").as_tensor(), contents()[0]));
  }
}

TEST(CallbackTensors, OfSeveralRanksAreExchangedCastAndSent) {
  const TempDir dir;
  const Tensor content = counting({8, 6});
  save(testing::state_of({content}), dir / "saved");
  run_ranks(2, [&](Communicator& comm) {
    const auto columns = [&](const Tensor& tensor) {
      StateDict state = Value::dict();
      state["weights.0"] = ShardedTensor::from_rank_offsets(
          "weights.0", tensor, {{.axis = 1, .rank = comm.rank(), .count = 2}});
      return state;
    };
    const Tensor own = content.narrow(1, 3 * comm.rank(), 3).contiguous();
    LoadOptions together;
    together.parallel = {.enabled = true, .exchange = Exchange::kAllToAll};
    const Reversed half(Tensor::zeros(DType::kFloat32, {8, 3}));
    StateDict state = columns(half.tensor());
    load(state, dir / "saved", together, comm);
    EXPECT_TRUE(equal(half.content(), own));

    LoadOptions cast;
    cast.cast = Cast::kAllow;
    const Reversed wide(Tensor::zeros(DType::kFloat64, {8, 3}));
    state = columns(wide.tensor());
    load(state, dir / "saved", cast, comm);
    EXPECT_EQ(wide.content().data<double>()[5], own.data<float>()[5]);

    const Reversed rows(Tensor::zeros(DType::kFloat32, {4, 6}));
    StateDict by_rows = Value::dict();
    by_rows["weights.0"] = ShardedTensor::from_rank_offsets(
        "weights.0", rows.tensor(), {{.axis = 0, .rank = comm.rank(), .count = 2}});
    transfer(columns(half.tensor()), by_rows, comm);
    EXPECT_TRUE(equal(rows.content(), content.narrow(0, 4 * comm.rank(), 4)));
  });
}

/// Sets the timeout of callbacks for the lifetime of the object.
struct Timeout {
  explicit Timeout(std::chrono::milliseconds timeout) { register_callbacks({.timeout = timeout}); }
  ~Timeout() { register_callbacks({}); }
};

struct BadCallback {
  const char* message;
  Reversed::Fault fault;
};

/// Callbacks that give or take too little or too much, or throw.
std::vector<BadCallback> bad_callbacks() {
  return {{"of a tensor float32 (3, 5) returned 56 at byte 0; expected the 60 bytes of the piece",
           [](std::size_t size, const auto& move) { return move(), size - 4; }},
          {"returned 61 at byte 0",
           [](std::size_t size, const auto& move) { return move(), size + 1; }},
          {"returned 0 at byte 0", [](std::size_t, const auto&) { return std::size_t{0}; }},
          {"failed at byte 0: unexpected error: the link is down",
           [](std::size_t, const auto&) -> std::size_t {
             throw std::runtime_error("the link is down");
           }},
          {"failed at byte 0: unexpected error of an unknown type",
           [](std::size_t, const auto&) -> std::size_t { throw 1; }}};
}

/// Runs on two ranks, of which rank 1 has a bad callback. Returns the error, which must be the same
/// on both.
CheckpointError error_of_both(const std::function<void(Communicator&, const Tensor&)>& run,
                              const Reversed::Fault& fault) {
  std::vector<std::string> messages(2);
  CheckpointError first(ErrorCode::kInternal, "");
  run_ranks(2, [&](Communicator& comm) {
    const Reversed part(counting({3, 5}));
    if (comm.rank() == 1) part.set_fault(fault);
    const auto error = error_of([&] { run(comm, part.tensor()); });
    messages[static_cast<std::size_t>(comm.rank())] = error.what();
    if (comm.rank() == 0) first = error;
  });
  EXPECT_EQ(messages[0], messages[1]);
  return first;
}

StateDict rows_of(const Communicator& comm, const Tensor& rows) {
  StateDict state = Value::dict();
  state["w"] = ShardedTensor::from_rank_offsets(
      "w", rows, {{.axis = 0, .rank = comm.rank(), .count = comm.size()}});
  return state;
}

TEST(CallbackFaults, AreTheSameErrorOnAllRanksAndNothingIsPublished) {
  const TempDir dir;
  for (const BadCallback& bad : bad_callbacks()) {
    for (const bool background : {false, true}) {
      const auto run = [&](Communicator& comm, const Tensor& rows) {
        if (!background) return save(rows_of(comm, rows), dir / "saved", {}, comm), void();
        AsyncSaver saver(SaveOptions(), comm);
        saver.save(rows_of(comm, rows), dir / "saved").wait();
      };
      EXPECT_THAT(error_of_both(run, bad.fault).what(),
                  ::testing::AllOf(HasSubstr(bad.message), HasSubstr("rank 1")));
      EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
    }
  }
  const auto whole = counting({6, 5});
  save(StateDict(Value::dict({{"w", ShardedTensor::whole("w", whole)}})), dir / "good");
  for (const BadCallback& bad : bad_callbacks()) {
    const auto run = [&](Communicator& comm, const Tensor& rows) {
      StateDict state = rows_of(comm, rows);
      load(state, dir / "good", {}, comm);
    };
    EXPECT_THAT(error_of_both(run, bad.fault).what(), HasSubstr(bad.message));
  }
}

TEST(CallbackFaults, ACallThatHangsIsAnErrorAfterTheTimeout) {
  const TempDir dir;
  const Timeout timeout(std::chrono::milliseconds(50));
  std::mutex mutex;
  std::condition_variable changed;
  bool released = false;
  std::atomic<int> inside = 0;
  for (const bool background : {false, true}) {
    const auto run = [&](Communicator& comm, const Tensor& rows) {
      if (!background) return save(rows_of(comm, rows), dir / "saved", {}, comm), void();
      AsyncSaver saver(SaveOptions(), comm);
      saver.save(rows_of(comm, rows), dir / "saved").wait();
    };
    const auto error = error_of_both(run, [&](std::size_t size, const auto&) {
      ++inside;
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return released; });
      --inside;
      changed.notify_all();
      return size;
    });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("has not moved its piece within 0.05 s; the limit is set"));
    EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  }
  std::unique_lock lock(mutex);
  EXPECT_EQ(inside, 2) << "the calls still hang";
  released = true;
  changed.notify_all();
  changed.wait(lock, [&] { return inside == 0; });
}

TEST(CallbackFaults, LeaveTheMemoryForTheNextSaves) {
  const TempDir dir;
  const Reversed part(counting({3, 5}));
  const StateDict state = Value::dict({{"w", ShardedTensor::whole("w", part.tensor())}});
  part.set_fault([](std::size_t, const auto&) { return std::size_t{0}; });
  for (int attempt = 0; attempt < 40; ++attempt)  // more than the pool has pieces
    error_of([&] { save(state, dir / "saved"); });
  part.set_fault([](std::size_t size, const auto& move) { return move(), size; });
  save(state, dir / "saved");
  EXPECT_TRUE(equal(load_plain_tensors(dir / "saved").at("w").as_tensor(), counting({3, 5})));
}

TEST(CallbackFaults, WhatACallbackTensorDoesNotHaveIsAnError) {
  const TempDir dir;
  const auto nothing = [](std::uint64_t, auto piece) { return piece.size(); };
  const Tensor read_only = callback_tensor(DType::kFloat32, {2}, {.read = nothing});
  const Tensor write_only = callback_tensor(DType::kFloat32, {2}, {.write = nothing});
  EXPECT_THAT(error_of([&] { callback_tensor(DType::kFloat32, {2}, {}); }).message(),
              HasSubstr("the callbacks of the tensor float32 (2,) are both missing"));
  EXPECT_EQ(error_of([&] { callback_tensor(DType::kFloat32, {-2}, {.read = nothing}); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(
      error_of([&] {
        save(StateDict(Value::dict({{"w", ShardedTensor::whole("w", write_only)}})), dir / "saved");
      }).what(),
      HasSubstr("have no function `read`, which this operation needs"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  save(testing::state_of({counting({2})}), dir / "saved");
  StateDict state = testing::state_of({read_only});
  EXPECT_THAT(error_of([&] { load(state, dir / "saved"); }).what(),
              HasSubstr("the destination of 'weights.0' has no callback `write`"));
  EXPECT_THAT(error_of([&] { read_only.data<float>(); }).message(),
              HasSubstr("reached through callbacks alone"));
  EXPECT_THAT(error_of([&] { to_dlpack(read_only); }).message(), HasSubstr("cannot export"));
}

TEST(CallbackTensors, KeepTheirCallbacksAsLongAsAHandle) {
  auto watched = std::make_shared<int>(1);
  const std::weak_ptr<int> still = watched;
  auto part = std::make_unique<Tensor>(
      callback_tensor(DType::kFloat32, {4},
                      {.read = [own = std::move(watched)](
                                   std::uint64_t, MutableByteView to) { return to.size(); }})
          .narrow(0, 1, 2));
  EXPECT_FALSE(still.expired());
  part.reset();
  EXPECT_TRUE(still.expired());
}

}  // namespace
}  // namespace dckpt::callback_tensors_test
