// Tensors in memory that the CPU must not touch, saved and loaded on a simulated device.

#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/device_conformance.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "strategies/comm/threads.h"
#include "strategies/device/page_locked_pool.h"
#include "strategies/tensor_io/staged_source.h"
#include "strategies/tensor_io/staging_pool.h"
#include "strategies/tensor_io/state_source.h"
#include "tests/strategies/device/device_states.h"
#include "tests/support/expect_error.h"
#include "tests/support/simulated_device.h"
#include "tests/support/temp_dir.h"

namespace dckpt::device_tensors_test {
namespace {

using testing::counting;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kPieceFloats;
using testing::RegisteredSimulation;
using testing::state_of;
using testing::transposed;

/// Returns tensors: larger than two pieces, small, empty, and one that is not row-major.
std::vector<Tensor> contents() {
  return {counting({9, kPieceFloats / 4}), counting({3, 5}, 100), counting({0, 4}),
          transposed(counting({700, 300}, 7)), counting({}, 42)};
}

/// Returns the plan of a rank that saves all of these tensors whole.
SavePlan plan_of(const std::vector<Tensor>& tensors) {
  SavePlan plan;
  for (const Tensor& tensor : tensors) {
    WriteItem item;
    item.key = "weights." + std::to_string(plan.size());
    item.source = static_cast<std::uint32_t>(plan.size());
    item.nbytes = tensor.nbytes();
    item.properties.dtype = tensor.dtype();
    item.chunk = whole(tensor.shape());
    plan.push_back(item);
  }
  return plan;
}

TEST(DeviceConformance, TheSimulationConforms) {
  testing::SimulatedDevice device;
  const auto allocate = [&](std::size_t bytes) {
    const Tensor memory =
        device.on_device(Tensor::zeros(DType::kUInt8, {static_cast<std::int64_t>(bytes)}));
    return std::shared_ptr<std::byte>(memory.mutable_data(), [memory](std::byte*) {});
  };
  const ConformanceReport report = check_device(device, allocate);
  EXPECT_THAT(report.problems, ::testing::IsEmpty());
  EXPECT_EQ(report.checks, 11);
  EXPECT_EQ(device.leaked(), 0);
  EXPECT_EQ(device.misuse(), "");
}

TEST(DeviceConformance, FindsCopiesThatFail) {
  testing::SimulatedDevice device;
  device.fail_after(7);
  const auto allocate = [](std::size_t bytes) { return std::make_shared<std::byte[]>(bytes); };
  EXPECT_FALSE(check_device(device, [&](std::size_t bytes) {
                 const auto memory = allocate(bytes);  // not the device's memory
                 return std::shared_ptr<std::byte>(memory, memory.get());
               }).problems.empty());
}

class DeviceTensors : public ::testing::Test {
 protected:
  std::vector<Tensor> on_device(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> out;
    for (const Tensor& tensor : tensors) out.push_back(simulation->on_device(tensor));
    return out;
  }
  std::vector<Tensor> zeros_on_device() {
    std::vector<Tensor> out;
    for (const Tensor& tensor : contents()) {
      const Tensor zeros = Tensor::zeros(tensor.dtype(), tensor.shape());
      out.push_back(simulation->on_device(zeros));
    }
    return out;
  }
  void expect_loaded(const std::vector<Tensor>& tensors) {
    const std::vector<Tensor> expected = contents();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_TRUE(equal(simulation->on_cpu(tensors[i]), expected[i]));
    }
  }
  void TearDown() override { EXPECT_EQ(simulation->misuse(), ""); }

  TempDir dir;
  RegisteredSimulation simulation{
      {.page_locked = 6 * PageLockedPool::kPieceBytes, .timeout = std::chrono::seconds(30)}};
};

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(DeviceTensors, GoThroughTheHostAndBack) {
  save(state_of(on_device(contents())), dir / "saved");
  const std::vector<Tensor> tensors = zeros_on_device();
  StateDict state = state_of(tensors);
  const LoadReport report = load(state, dir / "saved");
  expect_loaded(tensors);
  EXPECT_EQ(report.bytes_unchecked, 0);
}

TEST_F(DeviceTensors, AreStoredLikeThoseOfTheCpu) {
  save(state_of(on_device(contents())), dir / "device");
  save(state_of(contents()), dir / "cpu");
  EXPECT_EQ(bytes_of(dir / "device" / "__0_0.distcp"), bytes_of(dir / "cpu" / "__0_0.distcp"));
}

TEST_F(DeviceTensors, ManySmallOnesAreWaitedForTogether) {
  constexpr std::int64_t kTensors = 10'000;
  const Tensor rows = counting({kTensors, 256});
  const Tensor on_gpu = simulation->on_device(rows);
  std::vector<Tensor> tensors;
  std::vector<Tensor> expected;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    expected.push_back(rows.narrow(0, i, 1));
    tensors.push_back(on_gpu.narrow(0, i, 1));
  }
  save(state_of(expected), dir / "cpu");
  const int before = simulation->recorded();
  save(state_of(tensors), dir / "device");
  EXPECT_LT(simulation->recorded() - before, 10);
  EXPECT_EQ(bytes_of(dir / "device" / "__0_0.distcp"), bytes_of(dir / "cpu" / "__0_0.distcp"));
}

/// Returns tensors of many sizes, types and strides, some larger than two pieces.
std::vector<Tensor> a_mixture() {
  std::vector<Tensor> tensors = contents();
  for (int i = 0; i < 60; ++i) {
    tensors.push_back(counting({i % 7, 1 + i % 40}, static_cast<float>(i)));
    const auto bytes = static_cast<std::size_t>(i % 11);
    tensors.push_back(Tensor::from_bytes(DType::kUInt8, {i % 11}, Bytes(bytes, std::byte{7})));
    tensors.push_back(transposed(counting({3 + i % 5, 4}, static_cast<float>(i))));
    if (i == 30) tensors.push_back(transposed(counting({1000, 1100}, 3)));
  }
  return tensors;
}

std::map<std::string, std::string> data_files(const std::filesystem::path& path) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() == ".distcp" || entry.path().extension() == ".safetensors")
      files[entry.path().filename()] = bytes_of(entry.path());
  }
  return files;
}

TEST_F(DeviceTensors, AreStoredAlikeWhateverThePoolTheThreadsAndTheirNeighbors) {
  const std::vector<Tensor> expected = a_mixture();
  for (const char* const strategy : {"torch_dist", "safetensors"}) {
    SaveOptions options;
    options.strategy.name = strategy;
    options.io.fsync = false;
    options.overwrite = true;
    save(state_of(expected), dir / "cpu", options);
    const auto files = data_files(dir / "cpu");
    EXPECT_THAT(files, ::testing::Not(::testing::IsEmpty()));
    for (const auto& [pieces, threads] : {std::pair(1, 1), {1, 4}, {3, 4}}) {
      SCOPED_TRACE(::testing::Message() << strategy << ", " << pieces << " pieces, " << threads);
      const RegisteredSimulation pair{{.page_locked = pieces * PageLockedPool::kPieceBytes}, 2};
      std::vector<Tensor> tensors;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        // The tensors are first on one device, with some in CPU memory, then alternate between two.
        const bool on_cpu = i % 5 == 3;
        const int device = i < 100 ? 0 : static_cast<int>(i % 2);
        tensors.push_back(on_cpu ? expected[i] : pair->on_device(expected[i], device));
      }
      options.io.threads = threads;
      save(state_of(tensors), dir / "device", options);
      EXPECT_TRUE(data_files(dir / "device") == files);
      EXPECT_LE(pair->page_locked(), pieces * PageLockedPool::kPieceBytes);
      EXPECT_EQ(pair->misuse(), "");
    }
  }
}

TEST_F(DeviceTensors, AreDeliveredInTheOrderThatWasSaid) {
  const std::vector<Tensor> expected = {counting({4}), counting({5}, 10), counting({6}, 100)};
  const std::vector<Tensor> tensors = {simulation->on_device(expected[0]), expected[1],
                                       simulation->on_device(expected[2])};
  const SavePlan plan = plan_of(tensors);
  StateSource source(tensors, {});
  const std::vector<std::size_t> on_cpu{1};
  EXPECT_EQ(source.in_order(plan, on_cpu), nullptr) << "needs no copy";
  const std::vector<std::size_t> order{2, 1, 0};
  const auto in_order = source.in_order(plan, order);
  for (const std::size_t i : order) {
    in_order->tensor(plan[i], [&](ByteView bytes) {
      EXPECT_TRUE(equal(Tensor::from_bytes(DType::kFloat32, expected[i].shape(),
                                           Bytes(bytes.begin(), bytes.end())),
                        expected[i]));
    });
  }
  const auto again = source.in_order(plan, order);
  const auto ignore = [](ByteView) {};
  EXPECT_THAT(error_of([&] { again->tensor(plan[0], ignore); }).message(),
              HasSubstr("in another order than it said"));
}

TEST_F(DeviceTensors, AreSavedInTheBackground) {
  for (const Snapshot snapshot : {Snapshot::kEager, Snapshot::kLazy}) {
    SaveOptions options;
    options.async.snapshot = snapshot;
    options.async.staging_memory = std::uint64_t{16} << 20;
    const auto alone = single_rank();
    const std::string name(name_of(kSnapshotNames, snapshot));
    {
      AsyncSaver saver(options, *alone);
      const PendingSave pending = saver.save(state_of(on_device(contents())), dir / name);
      pending.wait();
    }
    const std::vector<Tensor> tensors = zeros_on_device();
    StateDict state = state_of(tensors);
    load(state, dir / name);
    expect_loaded(tensors);
  }
}

TEST_F(DeviceTensors, AreCopiedAfterTheKernelsThatFillThem) {
  const Tensor content = counting({1000});
  const Tensor tensor = simulation->on_device(Tensor::zeros(DType::kFloat32, {1000}));
  simulation->produce(tensor, content, std::chrono::milliseconds(50));
  save(state_of({tensor}), dir / "saved");
  EXPECT_TRUE(equal(load_plain_tensors(dir / "saved").at("weights.0").as_tensor(), content));
}

TEST_F(DeviceTensors, OfSeveralRanksAreReadOnce) {
  save(state_of(contents()), dir / "saved");
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : contents()) bytes += tensor.nbytes();
  LoadOptions options;
  options.parallel = {.enabled = true, .exchange = Exchange::kAllToAll};
  run_ranks(2, [&](Communicator& comm) {
    // One tensor is in CPU memory on rank 0, and all are on rank 1's device.
    std::vector<Tensor> tensors = zeros_on_device();
    if (comm.rank() == 0) tensors[1] = Tensor::zeros(DType::kFloat32, {3, 5});
    StateDict state = Value::dict();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string key = "weights." + std::to_string(i);
      state[key] =
          ShardedTensor::from_rank_offsets(key, tensors[i], {}, {.replica_id = {comm.rank()}});
    }
    const LoadReport report = load(state, dir / "saved", options, comm);
    const std::array<std::int64_t, 1> mine{static_cast<std::int64_t>(report.bytes_read)};
    const std::int64_t read = comm.all_reduce(mine, ReduceOp::kSum).front();
    EXPECT_LE(static_cast<double>(read), static_cast<double>(bytes) * 1.05 + 1e5);
    if (comm.rank() == 0) {
      EXPECT_TRUE(equal(tensors[1], contents()[1]));
      tensors[1] = simulation->on_device(tensors[1]);
    }
    expect_loaded(tensors);
  });
}

TEST_F(DeviceTensors, ThatRanksExchangeAreWaitedForTogether) {
  const Tensor rows = counting({1500, 16});
  std::vector<Tensor> expected;
  for (std::int64_t i = 0; i < rows.shape()[0]; ++i) expected.push_back(rows.narrow(0, i, 1));
  save(state_of(expected), dir / "saved");
  LoadOptions options;
  options.parallel = {.enabled = true, .exchange = Exchange::kAllToAll};
  const int before = simulation->recorded();
  run_ranks(2, [&](Communicator& comm) {
    // Each rank has everything twice.
    const Tensor zeros = Tensor::zeros(rows.dtype(), rows.shape());
    const std::array<Tensor, 2> places{simulation->on_device(zeros), simulation->on_device(zeros)};
    StateDict state = Value::dict();
    for (std::int64_t i = 0; i < rows.shape()[0]; ++i) {
      for (int place = 0; place < 2; ++place)
        state[std::to_string(i) + "." + std::to_string(place)] = ShardedTensor::whole(
            "weights." + std::to_string(i), places[static_cast<std::size_t>(place)].narrow(0, i, 1),
            {.replica_id = {comm.rank(), place}});
    }
    load(state, dir / "saved", options, comm);
    for (const Tensor& place : places) EXPECT_TRUE(equal(simulation->on_cpu(place), rows));
  });
  EXPECT_LT(simulation->recorded() - before, 40);
}

TEST_F(DeviceTensors, OfWhichRanksWantInterleavedRunsAreReadOnce) {
  const Tensor whole = counting({3000, 64});
  save(state_of({whole}), dir / "saved");
  LoadOptions options;
  options.parallel = {.enabled = true, .exchange = Exchange::kAllToAll};
  run_ranks(4, [&](Communicator& comm) {
    // Halves of the columns, each on two ranks, on devices except for the last rank. Rank 0 wants
    // its half in two places.
    const Tensor zeros = Tensor::zeros(DType::kFloat32, {3000, 32});
    const bool on_cpu = comm.rank() == 3;
    const int half = comm.rank() % 2;
    std::vector<Tensor> places;
    for (int i = 0; i < (comm.rank() == 0 ? 2 : 1); ++i)
      places.push_back(on_cpu ? zeros : simulation->on_device(zeros));
    StateDict state = Value::dict();
    for (std::size_t i = 0; i < places.size(); ++i)
      state[std::to_string(i)] = ShardedTensor::from_rank_offsets(
          "weights.0", places[i], {{.axis = 1, .rank = half, .count = 2}},
          {.replica_id = {comm.rank() / 2 + 2 * static_cast<int>(i)}});
    const LoadReport report = load(state, dir / "saved", options, comm);
    const std::array<std::int64_t, 1> mine{static_cast<std::int64_t>(report.bytes_read)};
    const std::int64_t read = comm.all_reduce(mine, ReduceOp::kSum).front();
    EXPECT_LE(static_cast<double>(read), static_cast<double>(whole.nbytes()) * 1.05 + 1e5);
    for (const Tensor& place : places)
      EXPECT_TRUE(equal(on_cpu ? place : simulation->on_cpu(place),
                        whole.narrow(1, 32 * half, 32).contiguous()));
  });
}

TEST_F(DeviceTensors, AreCastAndPaddedWithZeros) {
  save(state_of({counting({3, 5})}), dir / "saved");
  const Tensor wide =
      simulation->on_device(Tensor::from_bytes(DType::kFloat64, {4, 5}, Bytes(160, std::byte{1})));
  StateDict state = state_of({wide});
  LoadOptions options;
  options.cast = Cast::kAllow;
  options.allow_shape_mismatch = {"*"};
  load(state, dir / "saved", options);
  const Tensor loaded = simulation->on_cpu(wide);
  EXPECT_EQ(loaded.data<double>()[14], 14);
  EXPECT_EQ(loaded.data<double>()[15], 0);
  const int before = simulation->recorded();
  StateDict padded = Value::dict();
  for (std::size_t i = 0; i < 100; ++i)
    padded[std::to_string(i)] = ShardedTensor::whole("weights.0", on_device({counting({4, 5})})[0],
                                                     {.replica_id = {static_cast<int>(i)}});
  load(padded, dir / "saved", options);
  EXPECT_LT(simulation->recorded() - before, 10);
  options.padding = Padding::kReplicate;
  EXPECT_THAT(error_of([&] { load(state, dir / "saved", options); }).message(),
              HasSubstr("needs a destination in CPU memory"));
}

TEST_F(DeviceTensors, NeedNoPageLockedMemory) {
  for (const std::uint64_t pieces : {0, 1, 3}) {
    const RegisteredSimulation poor;
    poor->limit_page_locked(pieces * PageLockedPool::kPieceBytes);
    const std::vector<Tensor> expected = contents();
    std::vector<Tensor> tensors;
    for (const Tensor& tensor : expected) tensors.push_back(poor->on_device(tensor));
    const std::filesystem::path path = dir / std::to_string(pieces);
    save(state_of(tensors), path);
    StateDict state = state_of(tensors);
    load(state, path);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(equal(poor->on_cpu(tensors[i]), expected[i]));
    EXPECT_EQ(poor->misuse(), "");
    tensors.clear();
    state = Value::dict();
  }
}

TEST_F(DeviceTensors, AHangingKernelIsAnErrorAfterTheTimeout) {
  save(state_of(contents()), dir / "before");
  RegisteredSimulation hanging{{.timeout = std::chrono::milliseconds(30)}};
  const Tensor tensor = hanging->on_device(counting({1000}));
  StateDict state = state_of({tensor});
  hanging->hang(true);
  const auto timed_out = HasSubstr("has not copied a piece within 0.03 s");
  EXPECT_THAT(error_of([&] { save(state, dir / "saved"); }).message(), timed_out);
  EXPECT_FALSE(std::filesystem::exists(dir / "saved"));
  hanging->hang(false);
  save(state, dir / "saved");  // reuses the memory of the copies that have ended now
  EXPECT_EQ(hanging->misuse(), "");
}

TEST_F(DeviceTensors, AHangingKernelIsAnErrorOfManySmallOnes) {
  RegisteredSimulation hanging{{.timeout = std::chrono::milliseconds(30)}};
  const auto rows_of = [](const Tensor& tensor) {
    std::vector<Tensor> rows;
    for (std::int64_t i = 0; i < tensor.shape()[0]; ++i) rows.push_back(tensor.narrow(0, i, 1));
    return rows;
  };
  const Tensor content = counting({2000, 4});
  save(state_of(rows_of(content)), dir / "before");
  StateDict state = state_of(rows_of(hanging->on_device(content)));
  const auto timed_out = HasSubstr("has not copied a piece within 0.03 s");
  hanging->hang(true);
  EXPECT_THAT(error_of([&] { save(state, dir / "saved"); }).message(), timed_out);
  EXPECT_THAT(error_of([&] { load(state, dir / "before"); }).message(), timed_out);
  const auto alone = single_rank();
  AsyncSaver saver(SaveOptions(), *alone);
  EXPECT_THAT(error_of([&] { saver.save(state, dir / "saved").wait(); }).message(), timed_out);
  hanging->hang(false);
  EXPECT_EQ(hanging->misuse(), "");
}

TEST_F(DeviceTensors, TheGreatestLimitsAreNone) {
  RegisteredSimulation patient{
      {.page_locked = UINT64_MAX, .timeout = std::chrono::milliseconds::max()}};
  save(state_of({patient->on_device(counting({1000}))}), dir / "saved");
  EXPECT_EQ(patient->misuse(), "");
}

/// Copies tensors into the pool, and expects that it then holds their content.
void expect_staged(const std::vector<Tensor>& tensors, const std::vector<Tensor>& expected,
                   StagingPool& pool) {
  const SavePlan plan = plan_of(tensors);
  StagedSource source(plan, tensors, {}, pool);
  source.stage(1);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    Bytes staged;
    source.tensor(plan[i],
                  [&](ByteView part) { staged.insert(staged.end(), part.begin(), part.end()); });
    EXPECT_TRUE(
        equal(Tensor::from_bytes(DType::kFloat32, expected[i].shape(), staged), expected[i]))
        << i;
  }
}

TEST_F(DeviceTensors, AreCopiedStraightIntoPageLockedStagingMemory) {
  std::vector<Tensor> expected = contents();
  for (int i = 0; i < 200; ++i) expected.push_back(counting({7, i}, static_cast<float>(i)));
  const std::vector<Tensor> tensors = on_device(expected);
  StagingPool pool(std::uint64_t{16} << 20);
  expect_staged(expected, expected, pool);
  EXPECT_EQ(simulation->page_locked(), 0);
  for (const int save : {1, 2}) {
    SCOPED_TRACE(save);
    expect_staged(tensors, expected, pool);
    EXPECT_EQ(simulation->page_locked(), 16 * StagingPool::kBlockBytes) << "the pool's, no ring";
  }
}

TEST_F(DeviceTensors, AreStagedInOrdinaryMemoryWhereNoneIsPageLocked) {
  simulation->limit_page_locked(3 * StagingPool::kBlockBytes);
  StagingPool pool(std::uint64_t{16} << 20);
  for (const int save : {1, 2}) {
    SCOPED_TRACE(save);
    expect_staged(on_device(contents()), contents(), pool);
    EXPECT_EQ(simulation->page_locked(), 3 * StagingPool::kBlockBytes);
  }
}

TEST_F(DeviceTensors, WhateverFailsWhileTheyAreStagedReachesTheWriter) {
  const std::vector<Tensor> tensors = on_device({counting({400, 400}), counting({500, 500})});
  const SavePlan plan = plan_of(tensors);
  int failures = 0;
  for (int calls = 0;; ++calls) {
    SCOPED_TRACE(calls);
    StagingPool pool(std::uint64_t{16} << 20);
    simulation->fail_after(calls);
    StagedSource source(plan, tensors, {}, pool);
    source.stage(1);
    const bool has_failed = simulation->has_failed();
    simulation->fail_after(-2);
    for (const WriteItem& item : plan) {
      try {
        source.tensor(item, [](ByteView) {});
      } catch (const CheckpointError& error) {
        EXPECT_THAT(error.message(), HasSubstr("the simulated device fails"));
        ++failures;
      }
    }
    if (!has_failed) break;
  }
  EXPECT_GT(failures, 10);
}

TEST_F(DeviceTensors, StagingMemoryIsUsedAgainOnceCopiesThatHungHaveEnded) {
  RegisteredSimulation hanging{{.timeout = std::chrono::milliseconds(30)}};
  const Tensor content = counting({1000});
  const StateDict state = state_of({hanging->on_device(content)});
  {
    SaveOptions options;
    options.async.staging_memory = StagingPool::kBlockBytes;
    options.async.snapshot = Snapshot::kLazy;
    const auto alone = single_rank();
    AsyncSaver saver(options, *alone);
    hanging->hang(true);
    const auto first = saver.save(state, dir / "first");
    EXPECT_THAT(error_of([&] { first.wait(); }).message(), HasSubstr("has not copied a piece"));
    hanging->hang(false);
    while (!hanging->is_idle()) std::this_thread::yield();
    saver.save(state, dir / "second").wait();
  }
  EXPECT_TRUE(equal(load_plain_tensors(dir / "second").at("weights.0").as_tensor(), content));
  register_device(Device::Kind::kCuda, nullptr);
  EXPECT_EQ(hanging->leaked(), 0);
  EXPECT_EQ(hanging->misuse(), "");
}

TEST(PageLockedPool, FreesAbandonedMemoryWhenTheCopyHasEnded) {
  for (const bool hangs : {false, true}) {
    const auto device = std::make_shared<testing::SimulatedDevice>(1);
    const DeviceRuntime::Stream stream = device->create_stream(0);
    {
      PageLockedPool pool(device, PageLockedPool::kPieceBytes);
      std::byte* const piece = pool.acquire(0);
      auto ended = std::make_shared<CopyEvent>(device, 0);
      device->hang(true);
      ended->record(stream);
      if (!hangs) device->hang(false);
      pool.abandon(piece, std::move(ended));
    }
    EXPECT_EQ(device->page_locked(), hangs ? PageLockedPool::kPieceBytes : 0U);
    device->destroy_stream(0, stream);
  }
}

TEST(UnregisteredDevice, IsNamedWithWhatToLink) {
  const TempDir dir;
  std::optional<RegisteredSimulation> simulation(std::in_place);
  StateDict state = state_of({(*simulation)->on_device(counting({4}))});
  save(state, dir / "saved");
  register_device(Device::Kind::kCuda, nullptr);
  const auto names_the_target = HasSubstr("link dckpt::cuda and call register_cuda()");
  EXPECT_THAT(error_of([&] { save(state, dir / "again"); }).message(), names_the_target);
  EXPECT_THAT(error_of([&] { load(state, dir / "saved"); }).message(), names_the_target);
  state = Value::dict();
}

}  // namespace
}  // namespace dckpt::device_tensors_test
