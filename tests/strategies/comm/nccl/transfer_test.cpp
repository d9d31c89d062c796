// Transfers between ranks on the simulated machine: tensors in GPU memory travel without the host,
// whatever the layouts, and others through it.

#include <cuda_runtime.h>
#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <vector>

#include "strategies/comm/nccl/communicator.h"
#include "strategies/comm/threads.h"
#include "strategies/device/cuda/current_device.h"
#include "strategies/device/cuda/runtime.h"
#include "tests/strategies/comm/nccl/fake_nccl.h"
#include "tests/support/arange.h"
#include "tests/support/random_transfer.h"
#include "transfer/transfer.h"

namespace dckpt::transfer_test {
namespace {

using testing::Random;
using testing::RandomTransfer;

/// Returns a tensor in memory of a device, which the simulation lets tests access.
Tensor on_device(int device, DType dtype, Shape shape, Shape strides) {
  const Tensor like = testing::in_cpu_memory(0, dtype, shape, strides);
  std::int64_t extent = 1;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    extent += std::max<std::int64_t>(shape[axis] - 1, 0) * strides[axis];
  const auto bytes = static_cast<std::size_t>(extent) * item_size(dtype);
  const cuda::OnDevice current(device);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
  std::memcpy(memory, like.data(), bytes);
  const std::shared_ptr<void> owner(memory, [device](void* freed) {
    const cuda::OnDevice there(device);
    cudaFree(freed);
  });
  return {
      dtype, std::move(shape), std::move(strides), memory, owner, {Device::Kind::kCuda, device}};
}

class NcclTransfer : public ::testing::Test {
 protected:
  ~NcclTransfer() override { register_device(Device::Kind::kCuda, nullptr); }

  static void prepare() {
    fake_nccl::reset(7);
    register_cuda({.device = {.page_locked = std::uint64_t{16} << 20}});
  }

  /// Runs ranks as threads, rank r with device r + 1. Returns the first error.
  static std::string error_of(std::size_t ranks, const std::function<void(Communicator&)>& body) {
    try {
      run_ranks(static_cast<int>(ranks), [&](Communicator& bootstrap) {
        fake_nccl::bind_thread(bootstrap.rank());
        const auto comm = nccl_communicator(
            bootstrap, bootstrap.rank() + 1,
            {.timeout = std::chrono::seconds(60), .staging = std::size_t{8} << 20});
        body(*comm);
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      });
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(NcclTransfer, GoesFromDeviceToDevice) {
  constexpr std::int64_t kRows = 300, kColumns = 500;
  prepare();
  std::vector<fake_nccl::Copied> copied(4);
  const std::string error = error_of(4, [&](Communicator& comm) {
    const auto rank = static_cast<std::int64_t>(comm.rank());
    StateDict from, to;
    const bool holds = rank < 2;
    const std::size_t axis = holds ? 0 : 1;
    Box box{{0, 0}, {kRows, kColumns}};
    box.sizes[axis] /= 2;
    box.offsets[axis] = rank % 2 * box.sizes[axis];
    const Tensor tensor = on_device(comm.rank() + 1, DType::kFloat32, box.sizes,
                                    holds ? row_major_strides(box.sizes) : Shape{1, kRows});
    const Tensor expected = part_of_arange({kRows, kColumns}, box);
    if (holds) std::memcpy(tensor.mutable_data(), expected.data(), expected.nbytes());
    (holds ? from : to)["w"] = ShardedTensor::from_box("w", tensor, {kRows, kColumns}, box.offsets);
    const TransferReport report = transfer(from, to, comm, {.staging = 400'000});
    EXPECT_EQ(report.bytes_sent + report.bytes_received, expected.nbytes());
    EXPECT_GT(report.rounds, 1U);
    copied[static_cast<std::size_t>(rank)] = fake_nccl::copied(tensor.data());
    if (holds) return;
    for (std::int64_t i = 0; i < kRows; ++i) {
      for (std::int64_t j = 0; j < kColumns / 2; ++j)
        ASSERT_EQ(reinterpret_cast<const float*>(tensor.data())[i + j * kRows],
                  reinterpret_cast<const float*>(expected.data())[i * kColumns / 2 + j]);
    }
  });
  EXPECT_EQ(error, "");
  for (const fake_nccl::Copied& rank : copied) {
    EXPECT_EQ(rank.to_host + rank.from_host, 0U);
    EXPECT_EQ(rank.on_device, kRows * kColumns * 4U / 2);
  }
}

TEST_F(NcclTransfer, OfAFewBytesGoesBetweenTheHostAndADevice) {
  // Short buffers travel in the header of a message, but not those of devices.
  for (const int holder : {0, 1}) {
    prepare();
    EXPECT_EQ(error_of(2,
                       [&](Communicator& comm) {
                         const Tensor few = arange({4});
                         const Tensor tensor = comm.rank() == 0
                                                   ? untouched({4})
                                                   : on_device(2, DType::kFloat32, {4}, {1});
                         StateDict from, to;
                         const bool holds = comm.rank() == holder;
                         if (holds) std::memcpy(tensor.mutable_data(), few.data(), few.nbytes());
                         (holds ? from : to)["w"] = ShardedTensor::whole("w", tensor);
                         transfer(from, to, comm);
                         EXPECT_EQ(std::memcmp(tensor.data(), few.data(), few.nbytes()), 0);
                       }),
              "");
    register_device(Device::Kind::kCuda, nullptr);
  }
}

TEST_F(NcclTransfer, OfRandomLayoutsIsExact) {
  Random random;
  for (int round = 0; round < testing::random_cases(40) && !HasFailure(); ++round) {
    SCOPED_TRACE(random.trace(round));
    prepare();
    {
      RandomTransfer random_transfer = testing::random_transfer(
          random, [&](std::size_t rank, DType dtype, Shape shape, Shape strides) {
            if (random.chance(20))
              return testing::in_cpu_memory(rank, dtype, std::move(shape), std::move(strides));
            const int device = random.chance(10) ? 6 : static_cast<int>(rank) + 1;
            return on_device(device, dtype, std::move(shape), std::move(strides));
          });
      const auto staging = static_cast<std::uint64_t>(random.between(50, 1000));
      const std::string error = error_of(random_transfer.ranks.size(), [&](Communicator& comm) {
        const auto rank = static_cast<std::size_t>(comm.rank());
        RandomTransfer::Rank& mine = random_transfer.ranks[rank];
        transfer(mine.from, mine.to, comm, {.staging = staging});
        EXPECT_EQ(random_transfer.wrong_elements(rank), 0) << "rank " << rank;
      });
      EXPECT_EQ(error, "");
    }
    register_device(Device::Kind::kCuda, nullptr);
    EXPECT_EQ(fake_nccl::left_over() + fake_nccl::misuse(), "");
  }
}

}  // namespace
}  // namespace dckpt::transfer_test
