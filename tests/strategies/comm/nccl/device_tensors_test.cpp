// Ranks that load tensors in GPU memory together, connected by NCCL, on the simulated machine: the
// data that they exchange do not pass through the host.

#include <cuda_runtime.h>
#include <gmock/gmock.h>

#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/comm/device_exchange.h"
#include "strategies/comm/nccl/communicator.h"
#include "strategies/comm/threads.h"
#include "strategies/device/cuda/current_device.h"
#include "strategies/device/cuda/runtime.h"
#include "tests/strategies/comm/nccl/fake_machine.h"
#include "tests/strategies/comm/nccl/fake_nccl.h"
#include "tests/support/arange.h"
#include "tests/support/temp_dir.h"

namespace dckpt::device_tensors_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// Allocates memory of a device. The fake's memory can be read and written directly.
std::shared_ptr<std::byte> allocate(int device, std::size_t bytes) {
  const cuda::OnDevice current(device);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory), [device](std::byte* freed) {
            const cuda::OnDevice there(device);
            cudaFree(freed);
          }};
}

/// Returns a float32 tensor of this shape on a device, with the strides of its transpose if
/// `transposed`.
Tensor on_device(int device, Shape shape, bool transposed = false) {
  const auto bytes = static_cast<std::size_t>(numel(shape)) * sizeof(float);
  Shape strides = row_major_strides(shape);
  if (transposed) strides = {1, shape[0]};
  const auto memory = allocate(device, bytes);
  return {DType::kFloat32, std::move(shape), strides,
          memory.get(),    memory,           {Device::Kind::kCuda, device}};
}

/// Returns the content of a tensor in CPU memory.
Tensor seen(const Tensor& tensor) {
  Tensor copy = Tensor::empty(tensor.dtype(), tensor.shape());
  strided_copy(tensor.shape(), item_size(tensor.dtype()), tensor.data(), {0, tensor.strides()},
               copy.data(), {0, copy.strides()});
  return copy;
}

class NcclDeviceTensors : public ::testing::Test {
 protected:
  NcclDeviceTensors() {
    prepare();
    StateDict state;
    state["w"] = ShardedTensor::whole("w", part_of_arange({kRows, kColumns}, whole()), {});
    save(state, dir_ / "saved");
  }
  ~NcclDeviceTensors() override { register_device(Device::Kind::kCuda, nullptr); }

  static constexpr std::int64_t kRows = 1500;
  static constexpr std::int64_t kColumns = 1200;
  static constexpr std::uint64_t kBytes = kRows * kColumns * sizeof(float);
  static Box whole() { return {{0, 0}, {kRows, kColumns}}; }

  static void prepare() {
    fake_nccl::reset(6);
    register_cuda({.device = {.page_locked = std::uint64_t{16} << 20}});
  }

  /// Runs ranks as threads, rank r with device r + 1. Returns the error of each.
  static std::vector<std::string> errors_on(
      int size, const std::function<void(Communicator&)>& body,
      std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    std::vector<std::string> errors(static_cast<std::size_t>(size));
    run_ranks(size, [&](Communicator& bootstrap) {
      fake_nccl::bind_thread(bootstrap.rank());
      try {
        const auto comm = nccl_communicator(bootstrap, bootstrap.rank() + 1,
                                            {.timeout = timeout, .staging = std::size_t{8} << 20});
        body(*comm);
      } catch (const CheckpointError& error) {
        errors[static_cast<std::size_t>(bootstrap.rank())] = error.what();
      }
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    });
    register_device(Device::Kind::kCuda, nullptr);
    EXPECT_EQ(fake_nccl::left_over() + fake_nccl::misuse(), "");
    return errors;
  }

  /// Loads the box of "w" into each of the tensors.
  void load_into(const std::vector<Tensor>& tensors, const Box& box, Communicator& comm) const {
    StateDict state;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      state[std::to_string(i)] =
          ShardedTensor::from_box("w", tensors[i], {kRows, kColumns}, box.offsets,
                                  {.replica_id = {comm.rank(), static_cast<int>(i)}});
    }
    LoadOptions options;
    options.validate_access_integrity = false;
    options.parallel = {.enabled = true, .exchange = Exchange::kAllToAll};
    load(state, dir_ / "saved", options, comm);
    for (const Tensor& tensor : tensors)
      EXPECT_TRUE(equal(seen(tensor), part_of_arange({kRows, kColumns}, box)));
  }

  TempDir dir_;
};

TEST_F(NcclDeviceTensors, OfReplicasReachADeviceOnceAndTravelBetweenDevices) {
  for (const int size : {2, 3, 4}) {
    prepare();
    std::vector<fake_nccl::Copied> copied(static_cast<std::size_t>(size));
    EXPECT_THAT(
        errors_on(
            size,
            [&](Communicator& comm) {
              const Tensor tensor = on_device(comm.rank() + 1, {kRows, kColumns}, comm.rank() == 1);
              std::vector<Tensor> tensors = {tensor};
              if (comm.rank() == 0) tensors.push_back(on_device(1, {kRows, kColumns}));
              load_into(tensors, whole(), comm);
              copied[static_cast<std::size_t>(comm.rank())] = fake_nccl::copied(tensor.data());
              EXPECT_EQ(fake_nccl::copied(tensors.back().data()).to_host, 0);
            }),
        Each(""));
    std::uint64_t from_host = 0;
    for (const fake_nccl::Copied& rank : copied) {
      from_host += rank.from_host;
      EXPECT_EQ(rank.to_host, 0);
      // Each rank copies its own part once per other rank, rank 0 once more for its second place;
      // the rest is received.
      const int copies = size - 1 + (&rank == &copied.front() ? 1 : 0);
      EXPECT_EQ(rank.on_device,
                kBytes - rank.from_host + rank.from_host * static_cast<std::uint64_t>(copies));
    }
    EXPECT_EQ(from_host, kBytes);
    // The ranks' small messages go through the host.
    EXPECT_LT(fake_nccl::copied().from_host, kBytes + kBytes / 20);
    EXPECT_LT(fake_nccl::copied().to_host, kBytes / 20);
  }
}

TEST_F(NcclDeviceTensors, ThatRanksShareInPartAndWantTwiceAreRight) {
  // Halves of the columns, which are read in slabs, on two ranks each; rank 0 wants its half twice.
  EXPECT_THAT(
      errors_on(4,
                [&](Communicator& comm) {
                  const Box half{{0, kColumns / 2 * (comm.rank() % 2)}, {kRows, kColumns / 2}};
                  std::vector<Tensor> tensors = {on_device(comm.rank() + 1, half.sizes)};
                  if (comm.rank() == 0) tensors.push_back(on_device(1, half.sizes, true));
                  load_into(tensors, half, comm);
                  for (const Tensor& tensor : tensors)
                    EXPECT_EQ(fake_nccl::copied(tensor.data()).to_host, 0);
                }),
      Each(""));
  EXPECT_LT(fake_nccl::copied().from_host, kBytes + kBytes / 20);
  EXPECT_LT(fake_nccl::copied().to_host, kBytes / 20);
}

TEST_F(NcclDeviceTensors, GoThroughTheHostWhereOneSideIsElsewhere) {
  prepare();
  EXPECT_THAT(errors_on(4,
                        [&](Communicator& comm) {
                          std::vector<Tensor> tensors;
                          switch (comm.rank()) {
                            case 0:  // in CPU memory
                              tensors = {Tensor::zeros(DType::kFloat32, {kRows, kColumns})};
                              break;
                            case 1:  // on a device that is not the communicator's
                              tensors = {on_device(5, {kRows, kColumns}, true)};
                              break;
                            case 2:  // both cases
                              tensors = {Tensor::zeros(DType::kFloat32, {kRows, kColumns}),
                                         on_device(3, {kRows, kColumns})};
                              break;
                            default: tensors = {on_device(4, {kRows, kColumns})};
                          }
                          load_into(tensors, whole(), comm);
                        }),
              Each(""));
}

TEST_F(NcclDeviceTensors, AreReceivedBehindTheKernelsThatStillUseThem) {
  cudaStream_t producer = nullptr;
  register_cuda({.producer_stream = [&](int device) { return device == 2 ? producer : nullptr; }});
  EXPECT_THAT(errors_on(2,
                        [&](Communicator& comm) {
                          const Box few{{0, 0}, {10, kColumns}};  // read by rank 0 alone
                          const Tensor tensor = on_device(comm.rank() + 1, few.sizes);
                          if (comm.rank() == 0) return load_into({tensor}, few, comm);
                          const cuda::OnDevice current(2);
                          cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking);
                          producer->enqueue([&] {
                            std::this_thread::sleep_for(std::chrono::milliseconds(50));
                            std::memset(tensor.mutable_data(), 0xFF, tensor.nbytes());
                          });
                          load_into({tensor}, few, comm);
                          EXPECT_EQ(fake_nccl::copied(tensor.data()).from_host, 0);
                          cudaStreamDestroy(producer);
                        }),
              Each(""));
}

TEST_F(NcclDeviceTensors, WhateverFailsIsAnErrorOnAllRanksAndEverythingIsFreed) {
  const auto run = [&](int thread, const std::string& function, int call) {
    prepare();
    bool loaded = false;
    auto errors = errors_on(
        2,
        [&](Communicator& comm) {
          const Tensor tensor = on_device(comm.rank() + 1, {kRows, kColumns}, comm.rank() == 1);
          comm.barrier();
          if (comm.rank() == 1) fake_nccl::fail(thread, function, call);
          try {
            load_into({tensor}, whole(), comm);
          } catch (const CheckpointError&) {
            if (thread == 1) {
              EXPECT_TRUE(fake_nccl::idle(comm.rank() + 1)) << "the tensor may be freed";
            }
            throw;
          }
          if (comm.rank() == 1) loaded = true;
          comm.barrier();  // the other rank is notified of a failure of the last call only here
        },
        std::chrono::seconds(20));
    EXPECT_TRUE(loaded || !errors[0].empty()) << errors[1];
    EXPECT_TRUE(errors[0].empty() || !errors[1].empty()) << errors[0];
    return errors;
  };
  constexpr int kReader = -1;  // one of the library's own threads
  for (const std::string function : {"cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaEventRecord"}) {
    const auto errors = run(kReader, function, 1);
    EXPECT_TRUE(fake_nccl::has_failed());
    EXPECT_EQ(errors[0].substr(0, errors[0].find(" [")), errors[1].substr(0, errors[1].find(" [")));
    EXPECT_THAT(errors[0], HasSubstr("reading tensors failed on rank"));
  }
  for (const std::string function : {"cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaEventRecord",
                                     "ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"}) {
    SCOPED_TRACE(function);
    int failures = 0;
    for (int call = 1; call < 3000; call += 1 + call / 8) {
      const auto errors = run(1, function, call);
      if (!fake_nccl::has_failed()) break;
      failures += errors[1].empty() ? 0 : 1;
    }
    EXPECT_GT(failures, 10);
  }
}

/// Returns a message of bytes and then those of a tensor: element (i, j) on the device of a rank.
std::vector<MessagePart> parts_of(const Tensor& tensor, std::byte* head, std::uint64_t head_bytes) {
  return {{.bytes = head_bytes, .host = head},
          {.bytes = tensor.nbytes(),
           .boxes = {{tensor.mutable_data(),
                      item_size(tensor.dtype()),
                      tensor.shape(),
                      {0, tensor.strides()}}}}};
}

TEST_F(NcclDeviceTensors, AreMessagesOfOneSideAndBuffersOfTheOther) {
  // Pieces of 4 MiB end inside elements.
  const Tensor content = part_of_arange({1500, 1200}, {{0, 0}, {1500, 1200}});
  EXPECT_THAT(errors_on(3,
                        [&](Communicator& comm) {
                          Bytes head(comm.rank() == 0 ? 5 : 0, std::byte{42});
                          Bytes all = head;
                          const ByteView bytes = content.bytes();
                          all.insert(all.end(), bytes.begin(), bytes.end());
                          const Tensor tensor = on_device(comm.rank() + 1, {1500, 1200}, true);
                          auto& exchange = dynamic_cast<DeviceExchange&>(comm);
                          EXPECT_EQ(exchange.device().index, comm.rank() + 1);
                          std::vector<std::vector<MessagePart>> none(3);
                          if (comm.rank() == 0) {  // a buffer to a tensor
                            comm.all_to_all(std::vector<Bytes>{{}, all, {}});
                            std::vector<Bytes> got = comm.all_to_all(std::vector<Bytes>(3));
                            EXPECT_TRUE(got[1] == all);
                          } else if (comm.rank() == 1) {  // and back
                            Bytes received(5);
                            auto incoming = none;
                            incoming[0] = parts_of(tensor, received.data(), 5);
                            exchange.all_to_all(none, incoming);
                            EXPECT_EQ(received, Bytes(5, std::byte{42}));
                            EXPECT_TRUE(equal(seen(tensor), content));
                            auto outgoing = none;
                            outgoing[0] = parts_of(tensor, received.data(), 5);
                            exchange.all_to_all(outgoing, none);
                          } else {
                            exchange.all_to_all(none, none);
                            exchange.all_to_all(none, none);
                          }
                        }),
              Each(""));
}

TEST_F(NcclDeviceTensors, OfAnotherSizeThanWhatIsSentAreAnError) {
  const auto errors = errors_on(
      2,
      [&](Communicator& comm) {
        const Tensor tensor = on_device(comm.rank() + 1, {10, 10});
        std::vector<std::vector<MessagePart>> messages(2);
        if (comm.rank() == 1) messages[0] = parts_of(tensor, nullptr, 0);
        dynamic_cast<DeviceExchange&>(comm).all_to_all(std::vector<std::vector<MessagePart>>(2),
                                                       messages);
      },
      std::chrono::seconds(2));
  EXPECT_THAT(errors[1], HasSubstr("rank 0 sent 0 bytes, but 400 were expected"));
}

}  // namespace
}  // namespace dckpt::device_tensors_test
