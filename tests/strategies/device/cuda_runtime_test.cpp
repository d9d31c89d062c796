// The CUDA implementation on a machine of GPUs that are threads, in place of the CUDA runtime.

#include "strategies/device/cuda/runtime.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "conformance/device_conformance.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/huge_pages.h"
#include "mapping/state/producer_stream.h"
#include "tests/strategies/comm/nccl/fake_nccl.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::cuda_runtime_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Two GPUs, with the tensors on the second one.
class CudaRuntime : public ::testing::Test {
 protected:
  CudaRuntime() {
    fake_nccl::reset(2);
    fake_nccl::bind_thread(0);
  }
  void TearDown() override {
    register_device(Device::Kind::kCuda, nullptr);
    EXPECT_EQ(fake_nccl::misuse(), "");
    EXPECT_EQ(fake_nccl::left_over(), "");
  }

  static std::shared_ptr<std::byte> allocate(int device, std::size_t bytes) {
    int before = 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaGetDevice(&before);
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaSetDevice(device);
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    if (fake_nccl::contexts().contains(before)) cudaSetDevice(before);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
  }

  /// Returns a float32 tensor (200, 300), or its transpose; the fake's device memory can be written
  /// directly.
  static StateDict state_on(const std::shared_ptr<std::byte>& memory, bool transposed) {
    const Tensor tensor(DType::kFloat32, transposed ? Shape{300, 200} : Shape{200, 300},
                        transposed ? Shape{1, 300} : Shape{300, 1}, memory.get(), memory,
                        {Device::Kind::kCuda, 1});
    StateDict state = Value::dict();
    state["w"] = ShardedTensor::from_rank_offsets("w", tensor);
    return state;
  }
  static constexpr std::size_t kElements = 200 * 300;
};

TEST_F(CudaRuntime, Conforms) {
  fake_nccl::take_ordinary_memory();
  const auto runtime = cuda_runtime();
  EXPECT_THAT(check_device(*runtime, [](std::size_t bytes) { return allocate(0, bytes); }).problems,
              IsEmpty());
}

TEST_F(CudaRuntime, SavesAndLoadsWithoutTouchingOtherGpus) {
  register_cuda();
  const TempDir dir;
  const auto memory = allocate(1, kElements * sizeof(float));
  auto* const elements = reinterpret_cast<float*>(memory.get());
  for (const bool transposed : {false, true}) {
    std::iota(elements, elements + kElements, 0.0F);
    StateDict state = state_on(memory, transposed);
    const auto path = dir / std::to_string(transposed);
    save(state, path);
    std::memset(memory.get(), 0, kElements * sizeof(float));
    load(state, path);
    EXPECT_EQ(elements[kElements - 1], kElements - 1);
    EXPECT_EQ(elements[301], 301);
  }
  EXPECT_THAT(fake_nccl::contexts(), ElementsAre(1));
}

TEST_F(CudaRuntime, RowsMayBeFartherApartThanOneCallOfCudaAllows) {
  register_cuda();
  const TempDir dir;
  constexpr std::int64_t kApart = std::int64_t{1} << 31;
  const auto memory = allocate(1, kApart + 2);  // two of its pages are used
  const Tensor tensor(DType::kInt8, {2, 2}, {kApart, 1}, memory.get(), memory,
                      {Device::Kind::kCuda, 1});
  StateDict state = Value::dict();
  state["w"] = ShardedTensor::from_rank_offsets("w", tensor);
  const auto row = [&](int number) { return memory.get() + number * kApart; };
  std::memcpy(row(0), "ab", 2);
  std::memcpy(row(1), "cd", 2);
  save(state, dir / "saved");
  std::memset(row(0), 0, 2);
  std::memset(row(1), 0, 2);
  load(state, dir / "saved");
  EXPECT_EQ(std::memcmp(row(0), "ab", 2), 0);
  EXPECT_EQ(std::memcmp(row(1), "cd", 2), 0);
}

/// Returns the flags of the mapping that holds this address: "VmFlags: rd wr … dc hg", or "" if
/// there is none.
std::string flags_of_mapping(const std::byte* address) {
  std::ifstream lines("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    std::uintptr_t first = 0, last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2)
      found = first <= reinterpret_cast<std::uintptr_t>(address) &&
              reinterpret_cast<std::uintptr_t>(address) < last;
    if (found && line.starts_with("VmFlags:")) return line;
  }
  return {};
}

TEST_F(CudaRuntime, PageLockedMemoryIsInHugePagesThatForksDoNotShare) {
  const auto runtime = cuda_runtime();
  std::byte* const memory = runtime->allocate_page_locked(1, 3 * kHugePage + 1);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % kHugePage, 0U);
  EXPECT_THAT(flags_of_mapping(memory), HasSubstr(" dc"));
  if (std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
    EXPECT_THAT(flags_of_mapping(memory), HasSubstr(" hg"));
  }
  memory[3 * kHugePage] = std::byte{1};
  runtime->free_page_locked(memory);
  EXPECT_EQ(flags_of_mapping(memory), "");
}

TEST_F(CudaRuntime, AllocatesPageLockedMemoryWhereNoneCanBeRegistered) {
  fake_nccl::fail(0, "cudaHostRegister");
  const auto runtime = cuda_runtime();
  std::byte* const memory = runtime->allocate_page_locked(1, kHugePage);
  EXPECT_THAT(flags_of_mapping(memory), Not(HasSubstr(" dc")));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  runtime->free_page_locked(memory);
}

TEST_F(CudaRuntime, WhateverFailsIsAnErrorAndEverythingIsFreed) {
  const TempDir dir;
  const auto memory = allocate(1, kElements * sizeof(float));
  StateDict state = state_on(memory, true);
  register_cuda();
  save(state, dir / "saved");
  constexpr int kCaller = 0;
  constexpr int kReader = -1;  // one of the library's own threads
  const std::pair<const char*, int> kCalls[] = {{"cudaStreamCreateWithFlags", kCaller},
                                                {"cudaEventCreateWithFlags", kCaller},
                                                {"cudaEventRecord", kCaller},
                                                {"cudaStreamWaitEvent", kCaller},
                                                {"cudaEventCreateWithFlags", kReader},
                                                {"cudaEventRecord", kReader},
                                                {"cudaEventQuery", kReader},
                                                {"cudaMemcpy2DAsync", kReader}};
  for (const auto& [function, thread] : kCalls) {
    SCOPED_TRACE(function);
    register_cuda();  // a new pool
    fake_nccl::fail(thread, function);
    const auto failure = error_of([&] { load(state, dir / "saved"); });
    EXPECT_EQ(failure.code(), ErrorCode::kIo);
    load(state, dir / "saved");
  }
}

TEST_F(CudaRuntime, TheProducersStreamIsTheProgramsOrThatOfWhatMadeTensors) {
  static int streams[2];
  EXPECT_EQ(cuda_runtime()->producer_stream(1), nullptr) << "the default stream";
  set_producer_stream([](const Device& device) -> void* { return &streams[device.index]; });
  EXPECT_EQ(cuda_runtime()->producer_stream(1), &streams[1]);
  EXPECT_EQ(cuda_runtime([](int) { return &streams[0]; })->producer_stream(1), &streams[0]);
  set_producer_stream(nullptr);
}

TEST_F(CudaRuntime, WithoutGpusRegisteringIsAnError) {
  fake_nccl::reset(0);
  EXPECT_EQ(cuda_devices(), 0);
  EXPECT_THAT(error_of([] { register_cuda(); }).message(), HasSubstr("CUDA cannot be used"));
}

}  // namespace
}  // namespace dckpt::cuda_runtime_test
