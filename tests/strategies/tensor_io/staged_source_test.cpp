#include "strategies/tensor_io/staged_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "mapping/base/parallel_for.h"
#include "tests/support/expect_error.h"
#include "tests/support/random.h"

namespace dckpt::staged_source_test {
namespace {

using dckpt::testing::error_of;

/// A state of byte tensors and its plan: one item per tensor.
struct State {
  explicit State(const std::vector<std::int64_t>& sizes) {
    for (std::uint32_t i = 0; i < sizes.size(); ++i) {
      Tensor tensor = Tensor::empty(DType::kUInt8, {sizes[i]});
      for (std::int64_t at = 0; at < sizes[i]; ++at)
        tensor.data()[at] = static_cast<std::byte>((at * 31 + i) % 251);
      tensors.push_back(tensor);
      WriteItem item;
      item.key = "t" + std::to_string(i);
      item.source = i;
      item.nbytes = tensor.nbytes();
      item.properties.dtype = DType::kUInt8;
      item.chunk = whole(tensor.shape());
      plan.push_back(item);
    }
  }
  void overwrite() {
    for (Tensor& tensor : tensors) std::memset(tensor.data(), 0xEE, tensor.nbytes());
  }

  std::vector<Tensor> tensors;
  SavePlan plan;
};

bool is_original(const Bytes& bytes, std::size_t tensor) {
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (bytes[at] != static_cast<std::byte>((at * 31 + tensor) % 251)) return false;
  }
  return true;
}

Bytes bytes_of(StagedSource& source, const WriteItem& item) {
  Bytes bytes;
  source.tensor(item, [&](ByteView part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
  return bytes;
}

TEST(StagedSource, WhatWasCopiedDoesNotChangeWithTheState) {
  State state({100, 3'000'000, 0, 1, 600'000, 5});
  StagingPool pool(16 << 20);
  StagedSource source(state.plan, state.tensors, {}, pool);
  source.stage(1);
  state.overwrite();
  for (std::size_t i = 0; i < state.plan.size(); ++i) {
    const Bytes bytes = bytes_of(source, state.plan[i]);
    EXPECT_EQ(bytes.size(), state.plan[i].nbytes);
    EXPECT_TRUE(is_original(bytes, i)) << i;
  }
  EXPECT_EQ(pool.available() + 1, pool.capacity()) << "all but the block that small items share";
}

TEST(StagedSource, MemoryIsKeptForTheNextSave) {
  State state({3'000'000});
  StagingPool pool(8 << 20);
  std::vector<const std::byte*> first;
  for (int round = 0; round < 2; ++round) {
    StagedSource source(state.plan, state.tensors, {}, pool);
    source.stage(1);
    std::vector<const std::byte*> seen;
    source.tensor(state.plan[0], [&](ByteView part) { seen.push_back(part.data()); });
    if (round == 0)
      first = seen;
    else
      EXPECT_THAT(seen, ::testing::IsSubsetOf(first));
  }
  EXPECT_EQ(pool.available(), pool.capacity());
}

TEST(StagedSource, AWriterThatComesFirstTakesFromTheStateWhatDoesNotFit) {
  State state({2'000'000, 10});
  StagingPool pool(1 << 20);
  StagedSource source(state.plan, state.tensors, {}, pool);
  const std::byte* seen = nullptr;
  source.tensor(state.plan[0], [&](ByteView part) { seen = part.data(); });
  EXPECT_EQ(seen, state.tensors[0].data());
  source.stage(1);
  EXPECT_TRUE(is_original(bytes_of(source, state.plan[1]), 1));
}

TEST(StagedSource, AWriterThatComesFirstWaitsForCopiesIfAllFit) {
  State state({2'000'000, 10});
  StagingPool pool(8 << 20);
  for (int round = 0; round < 2; ++round) {
    StagedSource source(state.plan, state.tensors, {}, pool);
    const std::byte* seen = nullptr;
    std::jthread writer(
        [&] { source.tensor(state.plan[0], [&](ByteView part) { seen = part.data(); }); });
    source.stage(1);
    state.overwrite();
    writer.join();
    EXPECT_NE(seen, nullptr);
    EXPECT_NE(seen, state.tensors[0].data());
    EXPECT_EQ(bytes_of(source, state.plan[1]).size(), 10U);
  }
}

TEST(StagedSource, WhatDoesNotFitIsWrittenFromTheStateItself) {
  State state({2'000'000, 10});
  const auto bytes = std::make_shared<StagedBytes>();
  StagingPool pool(1 << 20);
  StagedSource source(state.plan, state.tensors, {}, pool, bytes);
  const std::byte* seen = nullptr;
  std::jthread writer(
      [&] { source.tensor(state.plan[0], [&](ByteView part) { seen = part.data(); }); });
  source.stage(1);
  writer.join();
  EXPECT_EQ(seen, state.tensors[0].data());
  EXPECT_EQ(bytes->released, 2'000'010U);
  EXPECT_EQ(bytes->written, 2'000'000U);
  EXPECT_EQ(bytes->total, 2'000'010U);
}

TEST(StagedSource, TheTensorsAreLetGoAsSoonAsTheyMayChange) {
  State state({2'000'000, 10});
  StagingPool pool(8 << 20);
  const std::weak_ptr<const void> memory = state.tensors[0].owner();
  StagedSource source(state.plan, std::exchange(state.tensors, {}), {}, pool);
  EXPECT_FALSE(memory.expired());
  source.stage(1);
  EXPECT_TRUE(memory.expired());
  EXPECT_TRUE(is_original(bytes_of(source, state.plan[0]), 0));
}

TEST(StagedSource, CancellingLetsTheTensorsGoInTheMiddleOfAnItem) {
  State state({9'000'000});
  StagingPool pool(1 << 20);
  StagedSource source(state.plan, state.tensors, {}, pool);
  std::optional<CheckpointError> error;
  int parts = 0;
  std::jthread writer([&] {
    error = error_of([&] {
      source.tensor(state.plan[0], [&](ByteView) {
        ++parts;
        source.cancel();
      });
    });
  });
  source.stage(1);
  writer.join();
  EXPECT_EQ(error->code(), ErrorCode::kCancelled);
  EXPECT_EQ(parts, 1);
}

TEST(StagedSource, AnItemIsDeliveredOnce) {
  State state({10});
  StagingPool pool(1 << 20);
  StagedSource source(state.plan, state.tensors, {}, pool);
  source.stage(1);
  bytes_of(source, state.plan[0]);
  EXPECT_EQ(error_of([&] { bytes_of(source, state.plan[0]); }).code(), ErrorCode::kInvalidArgument);
}

TEST(StagedSource, StagingEndsWhenTheWriterHasGivenUp) {
  State state({3'000'000, 3'000'000});
  StagingPool pool(4 << 20);
  StagedSource source(state.plan, state.tensors, {}, pool);
  std::jthread writer([&] { source.finish(); });
  source.stage(2);
}

TEST(StagedSource, AFailingWriterGivesItsMemoryBack) {
  State state({3'000'000});
  StagingPool pool(4 << 20);
  StagedSource source(state.plan, state.tensors, {}, pool);
  source.stage(1);
  EXPECT_THROW(
      source.tensor(state.plan[0], [](ByteView) { throw std::runtime_error("disk full"); }),
      std::runtime_error);
  EXPECT_EQ(pool.available(), pool.capacity());
}

constexpr std::int64_t kPart = ItemSource::kPartBytes;

TEST(StagedSource, PartsAreCopiedAndWrittenByThemselvesInAnyOrder) {
  State state({2 * kPart + 5, kPart, 10});
  const auto bytes = std::make_shared<StagedBytes>();
  StagingPool pool(40 << 20);
  StagedSource source(state.plan, state.tensors, {}, pool, bytes);
  const WriteItem& item = state.plan[0];
  EXPECT_TRUE(source.has_parts(item));
  Bytes whole(item.nbytes);
  const auto take = [&](std::int64_t begin) {
    auto to = whole.begin() + begin;
    source.part(item, static_cast<std::uint64_t>(begin),
                [&](ByteView part) { to = std::ranges::copy(part, to).out; });
    return to - whole.begin();
  };
  EXPECT_EQ(take(kPart), 2 * kPart) << "from the state: nothing is copied yet";
  EXPECT_EQ(bytes->released, static_cast<std::uint64_t>(kPart));
  source.stage(2);
  state.overwrite();
  EXPECT_EQ(source.staged().bytes, static_cast<std::uint64_t>(2 * kPart + 15));
  EXPECT_EQ(take(2 * kPart), 2 * kPart + 5);
  EXPECT_EQ(take(0), kPart);
  EXPECT_TRUE(is_original(whole, 0));
  EXPECT_EQ(error_of([&] { take(0); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { source.part(item, 3 * kPart, [](ByteView) {}); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(is_original(bytes_of(source, state.plan[1]), 1)) << "whole";
  EXPECT_EQ(bytes->released, bytes->total);
  EXPECT_EQ(bytes->written, bytes->total - 10);
}

TEST(StagedSource, CancellingStopsBetweenParts) {
  State state({2 * kPart});
  StagingPool pool(1 << 20);
  StagedSource source(state.plan, state.tensors, {}, pool);
  std::jthread writer([&] {
    source.part(state.plan[0], 0, [](ByteView) {});
    source.cancel();
    EXPECT_EQ(error_of([&] { source.part(state.plan[0], kPart, [](ByteView) {}); }).code(),
              ErrorCode::kCancelled);
  });
  source.stage(1);
}

TEST(StagedSource, ThreadsShareATensorThatIsLargerThanThePool) {
  State state({100, 3 * kPart - 1, 2 * kPart});
  for (const std::uint64_t budget : {20, 40}) {
    for (const int threads : {1, 3}) {
      StagingPool pool(budget << 20);
      StagedSource source(state.plan, state.tensors, {}, pool);
      Bytes written(state.plan[1].nbytes);
      std::jthread writer([&] {
        parallel_for(3, threads, [&](std::size_t i) {
          auto to = written.begin() + static_cast<std::ptrdiff_t>(i * kPart);
          source.part(state.plan[1], i * kPart,
                      [&](ByteView part) { to = std::ranges::copy(part, to).out; });
        });
        EXPECT_TRUE(is_original(bytes_of(source, state.plan[2]), 2));
        bytes_of(source, state.plan[0]);
        source.finish();
      });
      source.stage(2);
      writer.join();
      EXPECT_TRUE(is_original(written, 1));
    }
  }
}

TEST(StateSource, PartsOfATensorWithStridesAreThoseOfItsElements) {
  Tensor whole = Tensor::empty(DType::kComplex64, {3000, 1000});
  for (std::size_t at = 0; at < whole.nbytes(); ++at)
    whole.data()[at] = static_cast<std::byte>(at * 31 % 251);
  const Tensor transposed(whole.dtype(), {1000, 3000}, {1, 1000}, whole.mutable_data(),
                          whole.owner());
  WriteItem item;
  item.source_begin = 1234;  // a flattened range
  item.properties.dtype = whole.dtype();
  item.chunk.sizes = {3'000'000 - 2345};
  item.nbytes = (3'000'000 - 2345) * 8;
  StateSource source({transposed}, {});
  ASSERT_TRUE(source.has_parts(item));
  Bytes expected;
  source.tensor(item,
                [&](ByteView part) { expected.insert(expected.end(), part.begin(), part.end()); });
  Bytes rest;
  Bytes all;
  source.part(item, kPart,
              [&](ByteView part) { rest.insert(rest.end(), part.begin(), part.end()); });
  source.part(item, 0, [&](ByteView part) { all.insert(all.end(), part.begin(), part.end()); });
  EXPECT_EQ(all.size(), static_cast<std::size_t>(kPart));
  all.insert(all.end(), rest.begin(), rest.end());
  EXPECT_TRUE(all == expected);
  EXPECT_TRUE(std::ranges::equal(ByteView(expected).first(8),
                                 whole.bytes().subspan((1234 % 3000) * 1000 * 8, 8)));
}

/// Whatever the sizes, budget, number of threads on both sides, and order of requests, each byte is
/// unchanged and no thread waits forever.
TEST(StagedSource, CopiesAndWritesAtTheSameTimeInAnyOrder) {
  dckpt::testing::Random random;
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(random.trace(round));
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(random.between(1, 30)));
    for (auto& size : sizes) size = random.between(0, random.chance(25) ? 3'000'000 : 50'000);
    State state(sizes);
    StagingPool pool(std::uint64_t{1} << random.between(20, 23));
    StagedSource source(state.plan, state.tensors, {}, pool);
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    std::vector<Bytes> written(sizes.size());
    std::jthread writer([&, threads = static_cast<int>(random.between(1, 3))] {
      parallel_for(order.size(), threads, [&](std::size_t i) {
        written[order[i]] = bytes_of(source, state.plan[order[i]]);
      });
      source.finish();
    });
    source.stage(static_cast<int>(random.between(1, 3)));
    state.overwrite();
    writer.join();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(written[i].size(), static_cast<std::size_t>(sizes[i]));
      EXPECT_TRUE(is_original(written[i], i)) << "item " << i;
    }
  }
}

}  // namespace
}  // namespace dckpt::staged_source_test
