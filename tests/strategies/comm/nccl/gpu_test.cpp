#include <cuda_runtime.h>

#include <thread>

#include "strategies/comm/device_exchange.h"
#include "strategies/comm/nccl/communicator.h"
#include "tests/strategies/comm/communicator_conformance.h"

namespace dckpt::gpu_test {
namespace {

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/// Runs ranks as threads, each with a GPU.
void run_gpu_ranks(int size, const std::function<void(Communicator&)>& body,
                   std::chrono::milliseconds timeout) {
  const NcclId id = nccl_unique_id();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(*nccl_communicator(id, rank, size, rank, {.timeout = timeout}));
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

class NcclGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "this machine has no GPU";
  }

  static void on_gpus(const std::function<void(Communicator&)>& body) {
    run_gpu_ranks(gpu_count(), body, std::chrono::minutes(1));
  }

  static Bytes letter(int from, int to, std::size_t size) {
    return Bytes(size, static_cast<std::byte>(16 * from + to));
  }
};

TEST_F(NcclGpu, EveryGpuIsARank) {
  on_gpus([](Communicator& comm) {
    const int size = comm.size();
    const std::vector<std::int64_t> one = {1, comm.rank()};
    EXPECT_EQ(comm.all_reduce(one, ReduceOp::kSum),
              (std::vector<std::int64_t>{size, size * (size - 1) / 2}));
    EXPECT_EQ(comm.all_gather(letter(comm.rank(), 0, 3)).size(), static_cast<std::size_t>(size));
    EXPECT_EQ(comm.broadcast(letter(comm.rank(), 1, 9'000'000), size - 1),
              letter(size - 1, 1, 9'000'000));
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4} << 20, std::size_t{20'000'001}}) {
      std::vector<Bytes> parts;
      for (int to = 0; to < size; ++to)
        parts.push_back(letter(comm.rank(), to, bytes + static_cast<std::size_t>(to)));
      const std::vector<Bytes> all = comm.all_to_all(std::move(parts));
      for (int from = 0; from < size; ++from)
        EXPECT_TRUE(all[static_cast<std::size_t>(from)] ==
                    letter(from, comm.rank(), bytes + static_cast<std::size_t>(comm.rank())));
    }
  });
}

/// Every rank sends the columns of a matrix to the rank after it, which receives them as rows.
TEST_F(NcclGpu, BoxesOfTensorsTravelBetweenGpus) {
  constexpr std::int64_t kRows = 1001;
  constexpr std::int64_t kColumns = 2003;
  constexpr std::size_t kItem = sizeof(std::uint16_t);
  constexpr std::size_t kBytes = kRows * kColumns * kItem;
  on_gpus([](Communicator& comm) {
    const int size = comm.size();
    if (size == 1) return;
    auto& exchange = dynamic_cast<DeviceExchange&>(comm);
    ASSERT_EQ(cudaSetDevice(exchange.device().index), cudaSuccess);
    std::vector<std::uint16_t> mine(kRows * kColumns);
    for (std::size_t i = 0; i < mine.size(); ++i)
      mine[i] = static_cast<std::uint16_t>(i * 7 + static_cast<std::size_t>(comm.rank()));
    void* memory[2] = {};
    for (void*& side : memory) ASSERT_EQ(cudaMalloc(&side, kBytes), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(memory[0], mine.data(), kBytes, cudaMemcpyHostToDevice), cudaSuccess);
    const auto part = [&](void* side, Shape strides) {
      return MessagePart{
          .bytes = kBytes,
          .boxes = {
              {static_cast<std::byte*>(side), kItem, {kColumns, kRows}, {0, std::move(strides)}}}};
    };
    std::vector<std::vector<MessagePart>> outgoing(static_cast<std::size_t>(size));
    std::vector<std::vector<MessagePart>> incoming(static_cast<std::size_t>(size));
    const int from = (comm.rank() + size - 1) % size;
    outgoing[static_cast<std::size_t>((comm.rank() + 1) % size)] = {part(memory[0], {1, kColumns})};
    incoming[static_cast<std::size_t>(from)] = {part(memory[1], {kRows, 1})};
    exchange.all_to_all(outgoing, incoming);
    std::vector<std::uint16_t> got(mine.size());
    EXPECT_EQ(cudaMemcpy(got.data(), memory[1], kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
    bool same = true;
    for (std::size_t column = 0; column < kColumns; ++column)
      for (std::size_t row = 0; row < kRows; ++row)
        same = same && got[column * kRows + row] ==
                           static_cast<std::uint16_t>((row * kColumns + column) * 7 +
                                                      static_cast<std::size_t>(from));
    EXPECT_TRUE(same);
    for (void* side : memory) cudaFree(side);
  });
}

TEST_F(NcclGpu, GroupsAreUsedAtTheSameTime) {
  on_gpus([](Communicator& comm) {
    const auto copy = comm.split(0);
    std::jthread background([&] {
      for (int turn = 0; turn < 100; ++turn)
        EXPECT_EQ(copy->all_gather(to_bytes("background")).size(),
                  static_cast<std::size_t>(copy->size()));
    });
    for (int turn = 0; turn < 100; ++turn)
      EXPECT_EQ(comm.broadcast(as_bytes("x"), 0), to_bytes("x"));
  });
}

TEST_F(NcclGpu, ARankThatIsNotThereIsAnErrorWithinTheTimeout) {
  const NcclId id = nccl_unique_id();
  EXPECT_THROW(nccl_communicator(id, 0, 2, 0, {.timeout = std::chrono::seconds(2)}),
               CheckpointError);
}

/// Returns the worlds of the suite, which has up to five ranks; NCCL requires a GPU for each.
std::vector<CommunicatorWorld> worlds() {
  return gpu_count() < 5 ? std::vector<CommunicatorWorld>()
                         : std::vector<CommunicatorWorld>{{"gpus", run_gpu_ranks}};
}
INSTANTIATE_TEST_SUITE_P(NcclGpu, CommunicatorConformance, ::testing::ValuesIn(worlds()),
                         name_of_world);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorConformance);

}  // namespace
}  // namespace dckpt::gpu_test
