// Ranks that load together read no byte of storage twice, however their parts are interleaved.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "mapping/base/error.h"
#include "strategies/comm/threads.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/parallel/parallel_read.h"
#include "strategies/storage/counting.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/random.h"

namespace dckpt::read_once_test {
namespace {

using testing::counting;
using testing::FakeReader;
using ::testing::Values;

/// Counts the reads of all ranks. Tensors whose key begins with "strided" are stored column by
/// column.
class CountedReader final : public ForwardingReader {
 public:
  explicit CountedReader(const FakeReader& base) : ForwardingReader(base) {
    const auto bytes = read_file(*base.storage().open("data"), std::uint64_t{1} << 30);
    auto memory = memory_storage("counted:");
    const auto file = memory->create("data");
    file->append(ByteView(bytes));
    file->close();
    storage_ = counting_storage(memory, counters);
  }

  std::shared_ptr<StorageCounters> counters = std::make_shared<StorageCounters>();

  const Storage& storage() const noexcept override { return *storage_; }
  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    ChunkPayload payload = ForwardingReader::locate(tensor, chunk, file);
    if (!metadata().tensors[tensor].key.starts_with("strided")) return payload;
    payload.strides = {1, metadata().tensors[tensor].chunks.sizes(chunk)[0]};
    payload.contiguous = false;
    return payload;
  }
  bool check_chunk(std::size_t, std::size_t, const ReadableFile&) const override { return true; }
  bool check_object(std::size_t) const override { return true; }

 private:
  std::shared_ptr<Storage> storage_;
};

/// A rank's request of a tensor: a box, or a range of its row-major elements.
struct Wish {
  std::uint32_t tensor = 0;
  Box box;
  std::optional<WantedShard::Range> range{};
};
using Wishes = std::vector<std::vector<Wish>>;  // by rank

std::vector<Box> grid(const Shape& shape, std::int64_t rows, std::int64_t columns) {
  std::vector<Box> boxes;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t top = shape[0] * row / rows, left = shape[1] * column / columns;
      boxes.push_back(
          {{top, left},
           {shape[0] * (row + 1) / rows - top, shape[1] * (column + 1) / columns - left}});
    }
  }
  return boxes;
}

class ReadOnce : public ::testing::TestWithParam<Exchange> {
 protected:
  /// Stores a float tensor whose elements count up.
  void store(const std::string& key, const Shape& shape, const std::vector<Box>& chunks) {
    reader_.tensor(key, DType::kFloat32, shape,
                   counting<float>(static_cast<std::size_t>(numel(shape))), chunks);
  }

  /// Stores the same in one chunk, column by column.
  void store_strided(const Shape& shape) {
    std::vector<float> elements(static_cast<std::size_t>(numel(shape)));
    for (std::int64_t i = 0; i < numel(shape); ++i)
      elements[static_cast<std::size_t>(i % shape[1] * shape[0] + i / shape[1])] =
          static_cast<float>(i);
    reader_.tensor("strided", DType::kFloat32, shape, elements);
  }

  /// Loads the wishes of all ranks, compares values, and returns how many bytes all ranks together
  /// read.
  std::uint64_t load(const Wishes& wishes, std::uint64_t staging = std::uint64_t{16} << 20) {
    if (!reader_.storage().stat("data")) reader_.write();
    const CountedReader reader(reader_);
    std::atomic<std::uint64_t> reported = 0;
    run_ranks(static_cast<int>(wishes.size()), [&](Communicator& comm) {
      const std::vector<Wish>& mine = wishes[static_cast<std::size_t>(comm.rank())];
      std::vector<WantedShard> wanted;
      std::vector<Tensor> destinations;
      for (const Wish& wish : mine) {
        wanted.push_back({.tensor = wish.tensor,
                          .destination = static_cast<std::uint32_t>(destinations.size()),
                          .box = wish.box,
                          .range = wish.range});
        destinations.push_back(
            Tensor::zeros(DType::kFloat32, wish.range ? Shape{wish.range->end - wish.range->begin}
                                                      : wish.box.sizes));
      }
      const auto items = plan_reads(reader.metadata(), wanted);
      reported += read_tensors_parallel(
                      reader, items, destinations, comm,
                      {.exchange = GetParam(), .read = {.threads = 2, .staging = staging}})
                      .bytes_read;
      for (std::size_t i = 0; i < mine.size(); ++i) expect_right(mine[i], destinations[i]);
    });
    reads_ = reader.counters->reads;
    EXPECT_EQ(reported, reader.counters->bytes_read);
    return reader.counters->bytes_read;
  }

  void expect_right(const Wish& wish, const Tensor& got) const {
    const auto* const values = reinterpret_cast<const float*>(got.data());
    const std::int64_t columns = reader_.metadata().tensors[wish.tensor].size[1];
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < got.numel(); ++i) {
      const std::int64_t expected = wish.range
                                        ? wish.range->begin + i
                                        : (wish.box.offsets[0] + i / wish.box.sizes[1]) * columns +
                                              wish.box.offsets[1] + i % wish.box.sizes[1];
      wrong += values[i] != static_cast<float>(expected);
    }
    EXPECT_EQ(wrong, 0) << "of " << got.numel() << " elements";
  }

  /// Returns the bytes that any rank wants. Strided tensors can count as wanted as a whole, since
  /// this is how several ranks read them.
  std::uint64_t wanted_bytes(const Wishes& wishes, bool whole_strided = true) const {
    std::uint64_t bytes = 0;
    for (std::uint32_t tensor = 0; tensor < reader_.metadata().tensors.size(); ++tensor) {
      const TensorStorageMetadata& stored = reader_.metadata().tensors[tensor];
      const std::int64_t columns = stored.size[1];
      std::vector<bool> wanted(static_cast<std::size_t>(numel(stored.size)));
      bool any = false;
      for (const auto& mine : wishes) {
        for (const Wish& wish : mine) {
          if (wish.tensor != tensor) continue;
          const std::int64_t count =
              wish.range ? wish.range->end - wish.range->begin : numel(wish.box.sizes);
          any |= count > 0;
          for (std::int64_t i = 0; i < count; ++i) {
            wanted[static_cast<std::size_t>(
                wish.range ? wish.range->begin + i
                           : (wish.box.offsets[0] + i / wish.box.sizes[1]) * columns +
                                 wish.box.offsets[1] + i % wish.box.sizes[1])] = true;
          }
        }
      }
      const bool all = any && whole_strided && stored.key.starts_with("strided");
      bytes += 4 * static_cast<std::uint64_t>(all ? numel(stored.size)
                                                  : std::count(wanted.begin(), wanted.end(), true));
    }
    return bytes;
  }

  FakeReader reader_;
  std::uint64_t reads_ = 0;
};

TEST_P(ReadOnce, ColumnsWithShortRunsComeFromSlabs) {
  const Shape shape{4096, 512};  // 8 MiB; each of four ranks wants runs of 512 bytes, 1.5 KiB apart
  store("a", shape, grid(shape, 2, 1));
  Wishes wishes;
  for (const Box& box : grid(shape, 1, 4)) wishes.push_back({{0, box}});
  EXPECT_EQ(load(wishes), 4U * 4096 * 512);
  EXPECT_LE(reads_, 100U) << "not one for every run";
}

TEST_P(ReadOnce, ColumnsFarApartAreNotReadOneByOne) {
  const Shape shape{256, 8192};  // 8 MiB; runs of 4 KiB, 28 KiB apart
  store("a", shape, grid(shape, 1, 1));
  Wishes wishes;
  for (const Box& box : grid(shape, 1, 8)) wishes.push_back({{0, box}});
  EXPECT_EQ(load(wishes), 4U * 256 * 8192);
  EXPECT_LE(reads_, 100U);
}

TEST_P(ReadOnce, HalvesOfSmallChunksAreOneRead) {
  const Shape shape{64, 512};  // 128 KiB
  for (int i = 0; i < 40; ++i) store("t" + std::to_string(i), shape, {whole(shape)});
  Wishes wishes(2);
  for (std::uint32_t tensor = 0; tensor < 40; ++tensor) {
    const auto halves = grid(shape, tensor % 2 == 0 ? 2 : 1, tensor % 2 == 0 ? 1 : 2);
    for (std::size_t rank = 0; rank < 2; ++rank) wishes[rank].push_back({tensor, halves[rank]});
  }
  EXPECT_EQ(load(wishes), 40U * 4 * 64 * 512);
  EXPECT_LE(reads_, 40U);
}

TEST_P(ReadOnce, SmallChunksThatRanksWantByTurnsAreNotReadByBoth) {
  const Shape shape{8, 512};  // 16 KiB
  for (int i = 0; i < 100; ++i) store("t" + std::to_string(i), shape, {whole(shape)});
  Wishes wishes(2);
  for (std::uint32_t tensor = 0; tensor < 100; ++tensor)
    wishes[tensor % 2].push_back({tensor, whole(shape)});
  wishes[0].push_back({1, whole(shape)});  // gives the ranks something to exchange
  EXPECT_LE(load(wishes), 101U * 4 * 8 * 512);
}

TEST_P(ReadOnce, ReplicasOfManySmallTensorsAreReadInFewRequests) {
  const Shape shape{8, 512};  // 16 KiB
  for (int i = 0; i < 512; ++i) store("t" + std::to_string(i), shape, {whole(shape)});
  Wishes wishes(4);
  for (auto& mine : wishes) {
    for (std::uint32_t tensor = 0; tensor < 512; ++tensor) mine.push_back({tensor, whole(shape)});
  }
  EXPECT_EQ(load(wishes), 512U * 4 * 8 * 512);
  EXPECT_LE(reads_, 512U / 4);
}

TEST_P(ReadOnce, AChunkThatCanOnlyBeReadAsAWholeIsReadByOneRank) {
  const Shape shape{1024, 1024};  // 4 MiB
  store_strided(shape);
  for (const bool by_rows : {true, false}) {
    Wishes wishes;
    for (const Box& box : by_rows ? grid(shape, 3, 1) : grid(shape, 1, 3))
      wishes.push_back({{0, box}});
    EXPECT_EQ(load(wishes), 4U * 1024 * 1024);
  }
  EXPECT_EQ(load(Wishes(3, {{0, whole(shape)}})), 4U * 1024 * 1024) << "replicas";
}

TEST_P(ReadOnce, WhatNobodyWantsIsNotReadInSlabs) {
  const Shape shape{
      512, 2048};  // 4 MiB; of 8 KiB a row, ranks want 512 bytes each with as much between them
  store("a", shape, {whole(shape)});
  Wishes wishes(4);
  for (std::int64_t rank = 0; rank < 4; ++rank)
    wishes[static_cast<std::size_t>(rank)].push_back({0, {{0, rank * 256}, {512, 128}}});
  EXPECT_EQ(load(wishes), wanted_bytes(wishes));
}

TEST_P(ReadOnce, ReplicasOfColumnsGetThemFromWhoGotThemFirst) {
  const Shape shape{2048, 512};
  store("a", shape, {whole(shape)});
  Wishes wishes;
  for (int replica = 0; replica < 3; ++replica) {
    for (const Box& box : grid(shape, 1, 2)) wishes.push_back({{0, box}});
  }
  EXPECT_EQ(load(wishes), 4U * 2048 * 512);
}

TEST_P(ReadOnce, RandomLayoutsAreReadWithATwentiethMoreAtMost) {
  testing::Random random;
  for (int round = 0; round < 25; ++round) {
    SCOPED_TRACE(random.trace(round));
    reader_ = FakeReader();
    const auto ranks = static_cast<std::size_t>(random.between(2, 5));
    Wishes wishes(ranks);
    const auto tensors = static_cast<std::uint32_t>(random.between(1, 4));
    for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) {
      const bool small = random.chance(50);
      const Shape shape{random.between(1, small ? 40 : 700), random.between(1, small ? 90 : 900)};
      if (random.chance(10)) {
        store_strided(shape);
      } else {
        store("t" + std::to_string(tensor), shape,
              grid(shape, random.between(1, std::min<std::int64_t>(shape[0], 4)),
                   random.between(1, std::min<std::int64_t>(shape[1], 3))));
      }
      const std::int64_t parts = random.between(1, static_cast<std::int64_t>(ranks));
      const std::int64_t kind = random.between(0, 4);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (random.chance(10)) continue;
        const std::int64_t part = static_cast<std::int64_t>(rank) % parts;
        const std::int64_t count = numel(shape);
        if (kind == 0)
          wishes[rank].push_back({tensor, grid(shape, parts, 1)[static_cast<std::size_t>(part)]});
        if (kind == 1)
          wishes[rank].push_back({tensor, grid(shape, 1, parts)[static_cast<std::size_t>(part)]});
        if (kind == 2)
          wishes[rank].push_back(
              {tensor, whole(shape),
               WantedShard::Range{count * part / parts, count * (part + 1) / parts}});
        for (std::int64_t boxes = kind == 3 ? random.between(1, 3) : 0; boxes > 0; --boxes) {
          Box box = whole(shape);
          for (std::size_t axis = 0; axis < 2; ++axis) {
            box.offsets[axis] = random.between(0, shape[axis] - 1);
            box.sizes[axis] = random.between(1, shape[axis] - box.offsets[axis]);
          }
          wishes[rank].push_back({tensor, box});
        }
        if (kind == 4) wishes[rank].push_back({tensor, whole(shape)});
      }
      for (auto& mine : wishes)
        std::erase_if(mine, [](const Wish& wish) {
          return numel(wish.box.sizes) == 0 || (wish.range && wish.range->begin == wish.range->end);
        });
    }
    const std::uint64_t read = load(wishes, std::uint64_t{1} << random.between(16, 22));
    const std::uint64_t wanted = wanted_bytes(wishes);
    EXPECT_GE(read, wanted_bytes(wishes, false));
    if (GetParam() != Exchange::kAuto) {  // reads small things several times if that is faster
      EXPECT_LE(read, wanted + wanted / 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Exchanges, ReadOnce, Values(Exchange::kAuto, Exchange::kAllToAll),
                         [](const auto& test) {
                           return std::string(name_of(kExchangeNames, test.param));
                         });

}  // namespace
}  // namespace dckpt::read_once_test
