#include "strategies/tensor_io/read_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>
#include <thread>

#include "mapping/base/parallel_for.h"
#include "strategies/storage/posix.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/no_threads.h"
#include "tests/support/page_cache.h"
#include "tests/support/process_usage.h"
#include "tests/support/temp_dir.h"

namespace dckpt::read_tensors_test {
namespace {

using testing::counting;
using testing::FakeReader;
using ::testing::HasSubstr;
using testing::memory_in_use;

template <typename Body>
void expect_corrupt(const std::string& part, const Body& body) {
  const CheckpointError error = testing::error_of(body);
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr(part));
}

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Samples the peak of memory_in_use() whenever a file is read.
class WatchedFile final : public ReadableFile {
 public:
  WatchedFile(std::unique_ptr<ReadableFile> file, std::atomic<std::uint64_t>& peak)
      : file_(std::move(file)), peak_(peak) {}
  const std::string& name() const noexcept override { return file_->name(); }
  std::uint64_t size() const noexcept override { return file_->size(); }
  void prefetch(std::uint64_t, std::uint64_t) const override {}
  void read(std::uint64_t offset, MutableByteView into) const override {
    file_->read(offset, into);
    const std::uint64_t now = memory_in_use();
    for (std::uint64_t peak = peak_; peak < now && !peak_.compare_exchange_weak(peak, now);) {
    }
  }

 private:
  std::unique_ptr<ReadableFile> file_;
  std::atomic<std::uint64_t>& peak_;
};

/// Opens watched files; no other operation is used.
class WatchedStorage final : public Storage {
 public:
  explicit WatchedStorage(const Storage& base) : base_(base) {}
  StorageCapabilities capabilities() const override { return base_.capabilities(); }
  std::string display_path(const std::string& name) const override {
    return base_.display_path(name);
  }
  std::vector<FileInfo> list(const std::string& directory) const override {
    return base_.list(directory);
  }
  std::optional<FileInfo> stat(const std::string& name) const override { return base_.stat(name); }
  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    return std::make_unique<WatchedFile>(base_.open(name), peak);
  }
  std::unique_ptr<WritableFile> create(const std::string&, const CreateOptions&) override {
    return nullptr;
  }
  void make_directory(const std::string&) override {}
  void rename(const std::string&, const std::string&) override {}
  bool exchange(const std::string&, const std::string&) override { return false; }
  void remove_all(const std::string&) override {}
  void sync_directory(const std::string&) override {}

  mutable std::atomic<std::uint64_t> peak = 0;

 private:
  const Storage& base_;
};

/// A fake checkpoint of float32 whose reader reports payloads modified by `bend`.
class Bent final : public CheckpointReader {
 public:
  explicit Bent(const Shape& shape, std::vector<Box> boxes = {}, std::size_t tensors = 1) {
    for (std::size_t i = 0; i < tensors; ++i)
      base_.tensor("t" + std::to_string(i), DType::kFloat32, shape,
                   counting<float>(static_cast<std::size_t>(numel(shape))), boxes);
    base_.write();
  }
  std::function<void(ChunkPayload&, const StorageInfo&)> bend = [](ChunkPayload&,
                                                                   const StorageInfo&) {};

  /// Records a CRC of every chunk, correct or of other content.
  void record_crcs(std::uint32_t damage = 0) {
    bend = [this, damage](ChunkPayload& payload, const StorageInfo& place) {
      Bytes bytes(place.length);
      base_.storage().open("data")->read(place.offset, bytes);
      payload.record = {place.offset, place.length, crc32(bytes) ^ damage};
    };
  }

  const CheckpointInfo& info() const noexcept override { return base_.info(); }
  const Metadata& metadata() const noexcept override { return base_.metadata(); }
  const WatchedStorage& storage() const noexcept override { return storage_; }
  Value common_state() const override { return {}; }
  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    ChunkPayload payload = base_.locate(tensor, chunk, file);
    bend(payload, metadata().tensors[tensor].places[chunk]);
    return payload;
  }
  Bytes object_bytes(std::size_t) const override { return {}; }
  Value decode_object(std::size_t, ByteView) const override { return {}; }
  bool check_chunk(std::size_t, std::size_t, const ReadableFile&) const override { return false; }
  bool check_object(std::size_t) const override { return false; }

 private:
  FakeReader base_;
  WatchedStorage storage_{base_.storage()};
};

std::vector<float> floats(const Tensor& tensor) {
  const auto* const first = reinterpret_cast<const float*>(tensor.data());
  return {first, first + tensor.numel()};
}

ReadStats read_part(const CheckpointReader& reader, const Box& box,
                    const ReadOptions& options = {}) {
  const Tensor into = Tensor::empty(DType::kFloat32, box.sizes);
  const WantedShard wanted{.tensor = 0, .destination = 0, .box = box};
  return read_tensors(reader, plan_reads(reader.metadata(), {&wanted, 1}), {&into, 1}, options);
}

constexpr auto kEverything = [](const Bent& reader) {
  return whole(reader.metadata().tensors[0].size);
};

// Checksums

TEST(ReadTensors, ComparesWhatSeveralThreadsReadOfOneRecord) {
  Bent reader({40, 256, 1024});  // 40 MiB: three parts
  reader.record_crcs();
  EXPECT_EQ(read_part(reader, kEverything(reader), {.threads = 3}).bytes_unchecked, 0u);
  reader.record_crcs(1);
  expect_corrupt("not match the CRC-32 recorded",
                 [&] { read_part(reader, kEverything(reader), {.threads = 3}); });
  EXPECT_EQ(read_part(reader, kEverything(reader), {.verify = false}).bytes_unchecked, 40 * kMiB);
}

TEST(ReadTensors, CountsWhatNothingIsRecordedForAndWhatIsReadInPart) {
  Bent reader({1024, 1024});
  EXPECT_EQ(read_part(reader, kEverything(reader)).bytes_unchecked, 4 * kMiB) << "no CRC";
  reader.record_crcs();
  EXPECT_EQ(read_part(reader, {{0, 0}, {512, 1024}}).bytes_unchecked, 2 * kMiB) << "half a record";
  Bent small({8, 8}, {}, 3);
  small.record_crcs(1);
  expect_corrupt("not match the CRC-32", [&] {
    read_part(small, {{0, 0}, {1, 8}});
  });  // read as a whole, for it is small
}

TEST(ReadTensors, GoesOnWithARecordInTheNextCallAndOnTheNextRank) {
  Bent reader({1024, 1024});
  for (const std::uint32_t damage : {0u, 1u}) {
    reader.record_crcs(damage);
    const auto check = [&](const std::function<void()>& last) {
      damage == 0 ? last() : expect_corrupt("not match the CRC-32", last);
    };
    RecordChecks here(reader.metadata());
    read_part(reader, {{0, 0}, {100, 1024}}, {.checks = &here});
    EXPECT_EQ(here.unchecked_bytes(), 100u * 4096);
    RecordChecks there(reader.metadata());
    read_part(reader, {{100, 0}, {924, 1024}}, {.checks = &there});
    check([&] { there.take(here.incomplete(), "rank 0's checksums"); });
    check([&] { read_part(reader, {{100, 0}, {924, 1024}}, {.checks = &here}); });
    EXPECT_EQ(here.unchecked_bytes() + there.unchecked_bytes(), 0u);
  }
}

TEST(RecordChecks, RefusesAnotherRanksRubbish) {
  const Bent reader({4});
  RecordChecks checks(reader.metadata());
  for (const char* const rubbish :
       {"\x01", "\x01\x05\x01\x01\x01\x01\x01", "\x01\x00\x01\x01\x04\x01\x01"}) {
    expect_corrupt("rank 1's checksums",
                   [&] { checks.take(as_bytes(rubbish), "rank 1's checksums"); });
  }
}

// Payload reports of a reader

TEST(ReadTensors, NeverTouchesBytesOutsideAChunksPlaceWhateverTheReaderSays) {
  const std::vector<std::function<void(ChunkPayload&, const StorageInfo&)>> lies{
      [](ChunkPayload& payload, const StorageInfo&) { payload.offset += 4; },
      [](ChunkPayload& payload, const StorageInfo&) { payload.offset -= 4; },
      [](ChunkPayload& payload, const StorageInfo&) { payload.offset = UINT64_MAX; },
      [](ChunkPayload& payload, const StorageInfo&) { payload.dtype = DType::kFloat64; },
      [](ChunkPayload& payload, const StorageInfo&) {
        payload.contiguous = false, payload.strides = {1024, 1};
      },
      [](ChunkPayload& payload, const StorageInfo&) {
        payload.contiguous = false, payload.strides = {-8, 1};
      },
      [](ChunkPayload& payload, const StorageInfo&) {
        payload.contiguous = false, payload.strides = {INT64_MAX, INT64_MAX};
      },
      [](ChunkPayload& payload, const StorageInfo&) {
        payload.contiguous = false, payload.strides = {1};
      },
      [](ChunkPayload& payload, const StorageInfo& place) {
        payload.record = {place.offset, place.length + 1, 0};
      },
  };
  for (const Shape& shape : {Shape{8, 8}, Shape{512, 512}}) {  // read in batches, and in ranges
    Bent reader(shape, {}, 3);
    for (const auto& lie : lies) {
      reader.bend = lie;
      const Tensor into = Tensor::empty(DType::kFloat32, shape);
      const WantedShard wanted{.tensor = 1, .destination = 0, .box = whole(shape)};
      expect_corrupt("outside the place of their chunk", [&] {
        read_tensors(reader, plan_reads(reader.metadata(), {&wanted, 1}), {&into, 1});
      });
    }
  }
}

// Short runs with gaps

/// A reader's data as a file of the system, which can be mapped.
class OnDisk {
 public:
  explicit OnDisk(const CheckpointReader& reader) {
    const Bytes content = read_file(*reader.storage().open("data"), 64 * kMiB);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
  }
  std::unique_ptr<ReadableFile> open(const std::string&) const { return open_posix_file(path_); }
  void shrink() const { std::filesystem::resize_file(path_, kMiB); }
  const std::filesystem::path& path() const { return path_; }

 private:
  TempDir folder_;
  std::filesystem::path path_ = folder_ / "data";
};

TEST(ReadTensors, CopiesColumnsOutOfAFileAndReadsNothingElse) {
  const Bent reader({2048, 4096});  // 32 MiB
  const OnDisk disk(reader);
  for (const std::int64_t columns : {1, 500, 1024}) {
    const Box box{{3, 1001}, {2000, columns}};
    for (const int threads : {1, 3}) {
      const Tensor into = Tensor::empty(DType::kFloat32, box.sizes);
      const WantedShard wanted{.box = box};
      const ReadStats stats = read_tensors(
          reader, plan_reads(reader.metadata(), {&wanted, 1}), {&into, 1},
          {.threads = threads, .open = [&](const std::string& name) { return disk.open(name); }});
      EXPECT_EQ(stats.bytes_read, into.nbytes());
      const std::vector<float> got = floats(into);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < into.numel(); ++i)
        wrong += got[static_cast<std::size_t>(i)] !=
                 static_cast<float>((3 + i / columns) * 4096 + 1001 + i % columns);
      EXPECT_EQ(wrong, 0) << columns << " columns, " << threads << " threads";
    }
  }
}

TEST(ReadTensors, AFileThatShrinksUnderAMappingIsAnError) {
  const Bent reader({2048, 4096});
  const OnDisk disk(reader);
  expect_corrupt("something truncated it meanwhile", [&] {
    read_part(reader, {{0, 0}, {2048, 256}}, {.open = [&](const std::string& name) {
                auto file = disk.open(name);
                disk.shrink();
                return file;
              }});
  });
}

TEST(ReadTensors, LongRunsAreReadPastThePageCacheIfItDoesNotHoldThem) {
  Bent reader({4000, 4100});  // 63 MiB
  reader.record_crcs();
  const OnDisk disk(reader);
  if (!testing::can_be_cold(disk.path())) GTEST_SKIP() << "this file system is never read so";
  const auto pages_after = [&](const ReadOptions& options) {
    const Tensor into = read_box(reader, 0, {{0, 0}, {4000, 4100}}, options);
    EXPECT_EQ(floats(into), counting<float>(4000 * 4100));
    return testing::cached_pages(disk.path());
  };
  ReadOptions options{.open = [&](const std::string& name) { return disk.open(name); }};
  const std::size_t half = 4000 * 4100 * sizeof(float) / 4096 / 2;  // the system reclaims some

  testing::drop_from_cache(disk.path());
  options.engine = ReadEngine::kAuto;
  EXPECT_LT(pages_after(options), half / 5);
  options.staging = kMiB;
  EXPECT_GT(pages_after(options), half) << "there is no memory for it";
  options.staging = 64 * kMiB;
  EXPECT_GT(pages_after(options), half) << "what is in the cache is read from there";
  testing::drop_from_cache(disk.path());
  options.engine = ReadEngine::kDirect;
  EXPECT_LT(pages_after(options), half / 5);
  options.engine = ReadEngine::kBuffered;
  EXPECT_GT(pages_after(options), half);

  reader.record_crcs(1);
  options.engine = ReadEngine::kDirect;
  expect_corrupt("CRC", [&] { pages_after(options); });
}

TEST(ReadTensors, RunsOfOneMiBAreLongEnough) {
  const Bent reader({12, 300'000});  // rows of 1.1 MiB
  const OnDisk disk(reader);
  if (!testing::can_be_cold(disk.path())) GTEST_SKIP() << "this file system is never read so";
  testing::drop_from_cache(disk.path());
  const ReadStats stats =
      read_part(reader, {{5, 0}, {1, 300'000}},
                {.engine = ReadEngine::kAuto,
                 .open = [&](const std::string& name) { return disk.open(name); }});
  EXPECT_EQ(stats.bytes_direct, 300'000 * sizeof(float));
  EXPECT_EQ(testing::cached_pages(disk.path()), 0u);
}

TEST(ReadTensors, SoAreSmallChunksThatLieCloseTogether) {
  Bent reader({64, 100}, {}, 1000);  // 24 MiB in chunks of 25 KiB
  reader.record_crcs();
  const OnDisk disk(reader);
  if (!testing::can_be_cold(disk.path())) GTEST_SKIP() << "this file system is never read so";
  std::vector<WantedShard> wanted;
  for (std::uint32_t i = 0; i < 1000; ++i) wanted.push_back({i, i, {{0, 0}, {64, 100}}});
  const auto items = plan_reads(reader.metadata(), wanted);
  const auto pages_after = [&](ReadEngine engine, int threads) {
    testing::drop_from_cache(disk.path());
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      tensors.push_back(Tensor::zeros(DType::kFloat32, {64, 100}));
    const ReadStats stats =
        read_tensors(reader, items, tensors,
                     {.threads = threads, .engine = engine, .open = [&](const std::string& name) {
                        return disk.open(name);
                      }});
    EXPECT_EQ(stats.bytes_read, 1000 * 6400 * sizeof(float));
    EXPECT_EQ(stats.bytes_unchecked, 0);
    for (const Tensor& tensor : tensors) EXPECT_EQ(floats(tensor), counting<float>(6400));
    return testing::cached_pages(disk.path());
  };
  const std::size_t half = 1000 * 6400 * sizeof(float) / 4096 / 2;  // the system reclaims some
  for (const int threads : {1, 3}) {
    EXPECT_LT(pages_after(ReadEngine::kAuto, threads), half / 5);
    EXPECT_LT(pages_after(ReadEngine::kDirect, threads), half / 5);
    EXPECT_GT(pages_after(ReadEngine::kBuffered, threads), half);
  }
  reader.record_crcs(1);
  expect_corrupt("CRC", [&] { pages_after(ReadEngine::kAuto, 1); });
}

// Faults

/// Fails one of the requests of all files.
class FailingFile final : public ReadableFile {
 public:
  FailingFile(std::unique_ptr<ReadableFile> file, std::atomic<int>& requests_left)
      : file_(std::move(file)), requests_left_(requests_left) {}
  const std::string& name() const noexcept override { return file_->name(); }
  std::uint64_t size() const noexcept override { return file_->size(); }
  void prefetch(std::uint64_t, std::uint64_t) const override {}
  void read(std::uint64_t offset, MutableByteView into) const override {
    if (requests_left_-- == 0) throw CheckpointError(ErrorCode::kIo, "injected");
    file_->read(offset, into);
  }

 private:
  std::unique_ptr<ReadableFile> file_;
  std::atomic<int>& requests_left_;
};

TEST(ReadTensors, AFailureOfAnyRequestIsTheErrorOfTheRead) {
  for (const Shape& shape : {Shape{64, 64}, Shape{40, 4096}}) {  // in batches, and in ranges
    const Bent reader(shape, {}, 100);
    std::vector<Tensor> halves;
    std::vector<WantedShard> wanted;
    for (std::uint32_t i = 0; i < 100; ++i) {
      wanted.push_back({i, i, {{0, 0}, {shape[0], shape[1] / 2}}});
      halves.push_back(Tensor::empty(DType::kFloat32, wanted.back().box.sizes));
    }
    const auto items = plan_reads(reader.metadata(), wanted);
    for (const int threads : {1, 3}) {
      int requests = 0;
      for (bool failed = true; failed; requests = requests * 3 / 2 + 1) {
        std::atomic<int> left = requests;
        try {
          read_tensors(reader, items, halves,
                       {.threads = threads, .open = [&](const std::string& name) {
                          return std::make_unique<FailingFile>(reader.storage().open(name), left);
                        }});
          failed = false;
        } catch (const CheckpointError& error) {
          EXPECT_EQ(error.code(), ErrorCode::kIo);
          EXPECT_THAT(error.what(), HasSubstr("injected"));
        }
        EXPECT_EQ(failed, left < 0);
      }
      EXPECT_EQ(floats(halves[99])[static_cast<std::size_t>(shape[1] / 2)],
                static_cast<float>(shape[1]));
    }
  }
}

// Memory

TEST(ReadTensors, StagingIsABoundHoweverManyThreadsThereAre) {
  constexpr std::uint64_t kSlack = 512 << 10;  // plans, files, threads
  for (const bool transposed : {false, true}) {
    Bent reader({1024, 4096}, {}, 4);  // 16 MiB each
    if (transposed)
      reader.bend = [](ChunkPayload& payload, const StorageInfo&) {
        payload.contiguous = false, payload.strides = {1, 1024};
      };
    std::vector<Tensor> columns;
    std::vector<WantedShard> wanted;
    for (std::uint32_t i = 0; i < 4; ++i) {
      columns.push_back(Tensor::empty(DType::kFloat32, {1024, 4000}));
      wanted.push_back({.tensor = i, .destination = i, .box = {{0, 0}, {1024, 4000}}});
    }
    const auto items = plan_reads(reader.metadata(), wanted);
    const std::uint64_t before = memory_in_use();
    reader.storage().peak = 0;
    read_tensors(reader, items, columns, {.threads = 16, .staging = 1 * kMiB});
    EXPECT_LT(reader.storage().peak, before + kMiB + kSlack) << transposed;
    // Element (1, 2) of transposed storage is that at 2 · 1024 + 1.
    EXPECT_EQ(floats(columns[3])[4000 + 2], transposed ? 2 * 1024 + 1 : 4096 + 2);
  }
}

// Threads

TEST(ParallelFor, DoesWithoutThreadsThatTheSystemRefuses) {
  const NoThreads no_threads;
  EXPECT_THROW(std::thread([] {}), std::system_error);
  std::vector<int> calls(100);
  EXPECT_NO_THROW(parallel_for(calls.size(), 8, [&](std::size_t i) { ++calls[i]; }));
  const Bent reader({40, 256, 1024});
  EXPECT_NO_THROW(read_part(reader, kEverything(reader), {.threads = 8}));
  EXPECT_THAT(calls, ::testing::Each(1));
}

}  // namespace
}  // namespace dckpt::read_tensors_test
