// The tests of device_tensors_test.cpp on the GPUs of this machine instead of a simulation.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <numeric>

#include "conformance/device_conformance.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/device/cuda/runtime.h"
#include "tests/support/temp_dir.h"

namespace dckpt::gpu_test {
namespace {

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "this machine has no GPU";
  }
  void TearDown() override { register_device(Device::Kind::kCuda, nullptr); }

  static std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
  }
};

TEST_F(Gpu, CudaConforms) {
  EXPECT_THAT(check_device(*cuda_runtime(), allocate).problems, ::testing::IsEmpty());
}

TEST_F(Gpu, TensorsInItsMemoryGoToTheCheckpointAndBack) {
  register_cuda();
  const TempDir dir;
  constexpr std::int64_t kRows = 5000;
  constexpr std::int64_t kColumns = 1000;
  Tensor host = Tensor::empty(DType::kFloat32, {kRows, kColumns});
  std::iota(host.data<float>(), host.data<float>() + host.numel(), 0.0F);
  const auto memory = allocate(host.nbytes());
  ASSERT_EQ(cudaMemcpy(memory.get(), host.data(), host.nbytes(), cudaMemcpyHostToDevice),
            cudaSuccess);
  const Device gpu{Device::Kind::kCuda, 0};
  for (const bool transposed : {false, true}) {
    const Shape shape = transposed ? Shape{kColumns, kRows} : Shape{kRows, kColumns};
    const Shape strides = transposed ? Shape{1, kColumns} : Shape{kColumns, 1};
    const Tensor tensor(DType::kFloat32, shape, strides, memory.get(), memory, gpu);
    StateDict state = Value::dict();
    state["w"] = ShardedTensor::from_rank_offsets("w", tensor);
    const auto path = dir / (transposed ? "transposed" : "rows");
    save(state, path);
    ASSERT_EQ(cudaMemset(memory.get(), 0, host.nbytes()), cudaSuccess);
    load(state, path);
    Tensor back = Tensor::empty(DType::kFloat32, {kRows, kColumns});
    ASSERT_EQ(cudaMemcpy(back.data(), memory.get(), host.nbytes(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_TRUE(equal(back, host));
  }
}

}  // namespace
}  // namespace dckpt::gpu_test
