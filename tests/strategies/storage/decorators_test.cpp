#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <stop_token>
#include <thread>

#include "mapping/base/error.h"
#include "mapping/base/windowed_file.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/hashed_file.h"
#include "strategies/storage/hashing.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/read_ahead_file.h"
#include "strategies/storage/throttled.h"

namespace dckpt::decorators_test {
namespace {

class Decorators : public ::testing::Test {
 protected:
  Decorators() { storage_->create("a")->append(as_bytes("0123456789")); }

  static std::string read(const ReadableFile& file, std::uint64_t offset, std::size_t length) {
    Bytes into(length);
    file.read(offset, into);
    return std::string(as_text(into));
  }

  std::shared_ptr<StorageCounters> counters_ = std::make_shared<StorageCounters>();
  std::shared_ptr<Storage> storage_ = counting_storage(memory_storage(), counters_);
};

TEST_F(Decorators, CountersCountBytesAndOperations) {
  const auto file = storage_->open("a");
  read(*file, 0, 4);
  read(*file, 2, 4);
  EXPECT_THROW(read(*file, 8, 4), CheckpointError);
  storage_->make_directory("d");
  storage_->rename("d", "e");
  storage_->list("");
  storage_->stat("a");
  storage_->sync_directory("");
  EXPECT_EQ(counters_->files_created, 1u);
  EXPECT_EQ(counters_->bytes_written, 10u);
  EXPECT_EQ(counters_->appends, 1u);
  EXPECT_EQ(counters_->files_opened, 1u);
  EXPECT_EQ(counters_->bytes_read, 8u);
  EXPECT_EQ(counters_->reads, 2u);
  EXPECT_EQ(counters_->directory_changes, 2u);
  EXPECT_EQ(counters_->lookups, 2u);
  EXPECT_EQ(counters_->syncs, 1u);
}

TEST_F(Decorators, CountersAddUpOverThreads) {
  const auto file = storage_->open("a");
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int turn = 0; turn < 500; ++turn) read(*file, 3, 2);
      });
    }
  }
  EXPECT_EQ(counters_->bytes_read, 4000u);
  EXPECT_EQ(counters_->reads, 2000u);
}

TEST_F(Decorators, AWindowServesWhatItHoldsAndTheFileTheRest) {
  const auto file = storage_->open("a");
  const Bytes window = to_bytes("DEFG");  // differs from the file, to show which one answers
  const WindowedFile windowed(*file, 3, window);
  EXPECT_EQ(windowed.size(), 10u);
  EXPECT_EQ(windowed.name(), file->name());
  EXPECT_EQ(read(windowed, 3, 4), "DEFG");
  EXPECT_EQ(read(windowed, 4, 2), "EF");
  EXPECT_EQ(read(windowed, 7, 0), "");
  EXPECT_EQ(counters_->reads, 0u);
  EXPECT_EQ(read(windowed, 2, 2), "23");
  EXPECT_EQ(read(windowed, 5, 3), "567");
  EXPECT_EQ(read(windowed, 0, 10), "0123456789");
  EXPECT_EQ(counters_->reads, 3u);
  EXPECT_THROW(read(windowed, 8, 3), CheckpointError);
}

TEST_F(Decorators, AWindowPassesOnOnlyPrefetchesThatLeaveIt) {
  const auto file = storage_->open("a");
  const Bytes window = to_bytes("3456");
  const WindowedFile windowed(*file, 3, window);
  windowed.prefetch(3, 4);
  EXPECT_EQ(counters_->prefetches, 0u);
  windowed.prefetch(3, 5);
  EXPECT_EQ(counters_->prefetches, 1u);
}

TEST_F(Decorators, ShortReadsFromFrontToBackShareGrowingWindows) {
  Bytes content(std::size_t{1} << 20);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * 7 >> 5);
  storage_->create("large")->append(content);
  const auto file = storage_->open("large");
  const ReadAheadFile ahead(*file);
  const auto expect_read = [&](std::uint64_t offset, std::size_t length) {
    EXPECT_TRUE(std::ranges::equal(as_bytes(read(ahead, offset, length)),
                                   ByteView(content).subspan(offset, length)))
        << offset;
  };
  for (std::size_t offset = 0; offset + 1000 <= content.size(); offset += 1000)
    expect_read(offset, 1000);
  expect_read(content.size() - 10, 10);
  expect_read(content.size(), 0);
  EXPECT_LT(counters_->reads, 10u);
  EXPECT_LT(counters_->bytes_read, content.size() + 10000);

  std::uint64_t before = counters_->bytes_read;
  for (std::size_t jump = 0; jump < 4; ++jump) expect_read(700000 - 200000 * jump, 100);
  EXPECT_EQ(counters_->bytes_read - before, 4 * ReadAheadFile::kFirstWindow);
  before = counters_->bytes_read;
  expect_read(5, ReadAheadFile::kLongRead);
  EXPECT_EQ(counters_->bytes_read - before, ReadAheadFile::kLongRead);
}

TEST_F(Decorators, ReadingAheadFailsOnlyWhereTheFileDoes) {
  struct Torn final : ReadableFile {
    const std::string name_ = "torn";
    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return 1000; }
    void read(std::uint64_t offset, MutableByteView into) const override {
      if (offset + into.size() > 500) throw CheckpointError(ErrorCode::kIo, "bad sector");
      std::ranges::fill(into, std::byte{'x'});
    }
    void prefetch(std::uint64_t, std::uint64_t) const override {}
  } torn;
  const ReadAheadFile ahead(torn);
  EXPECT_EQ(read(ahead, 490, 10), "xxxxxxxxxx");
  EXPECT_THROW(read(ahead, 495, 10), CheckpointError);
  EXPECT_EQ(read(ahead, 495, 5), "xxxxx");
  EXPECT_THROW(read(ahead, 999, 2), CheckpointError) << "beyond the end";
}

TEST_F(Decorators, AHashIsMadeOfWhatIsReadAnyway) {
  const std::shared_ptr<const ReadableFile> file = storage_->open("a");
  const auto read_for_hash = [&](std::initializer_list<std::uint64_t> offsets) {
    PassingHash hash;
    const HashedFile hashed(file, hash);
    for (const std::uint64_t offset : offsets) read(hashed, offset, 4);
    const std::uint64_t before = counters_->bytes_read;
    EXPECT_EQ(hash.finish_hex(*file), sha256_hex(as_bytes("0123456789")));
    return counters_->bytes_read - before;
  };
  EXPECT_EQ(read_for_hash({0, 4, 6}), 0u);
  EXPECT_EQ(read_for_hash({6}), 0u) << "what is before it has been read then";
  EXPECT_EQ(read_for_hash({4, 0}), 2u) << "what was skipped is not read twice";
  EXPECT_EQ(read_for_hash({}), 10u);
}

TEST_F(Decorators, FilesAreHashedAsTheyAreWritten) {
  const auto digests = std::make_shared<FileDigests>();
  const std::shared_ptr<Storage> hashing = hashing_storage(storage_, digests);
  hashing->make_directory("d");
  const auto file = hashing->create("d/x");
  const ByteView parts[] = {as_bytes("abc"), as_bytes("def")};
  file->append(parts);
  file->append(as_bytes("g"));
  EXPECT_TRUE(digests->in("d").empty()) << "not closed";
  file->close();
  hashing->create("dx")->close();
  using Digests = std::map<std::string, FileDigest>;
  const FileDigest of_x{sha256_hex(as_bytes("abcdefg")), 7};
  const FileDigest of_nothing{sha256_hex({}), 0};
  EXPECT_EQ(digests->in("d"), (Digests{{"x", of_x}}));
  EXPECT_EQ(digests->in(""), (Digests{{"d/x", of_x}, {"dx", of_nothing}}));
  hashing->rename("dx", "e");
  hashing->rename("d", "f");
  EXPECT_EQ(digests->in(""), (Digests{{"e", of_nothing}, {"f/x", of_x}}));
  hashing->rename("e", "f/x");
  EXPECT_EQ(digests->in(""), (Digests{{"f/x", of_nothing}})) << "what was there is replaced";
  hashing->remove_all("f");
  EXPECT_TRUE(digests->in("").empty());
}

TEST_F(Decorators, AReadWaitsForWhatOthersHaveRead) {
  storage_->make_directory("d");
  storage_->create("d/a")->append(as_bytes("0123456789"));
  const auto rate = std::make_shared<ReadRate>(200);
  const auto throttled = throttled_storage(storage_, rate);
  const auto file = throttled->open("a");
  const auto other = throttled->subtree("d")->open("a");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(read(i % 2 == 0 ? *file : *other, 0, 10), "0123456789");
  // The last read waits until the 90 bytes before it are paid.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(400));
  file->prefetch(0, 10);
  EXPECT_EQ(counters_->prefetches, 0u) << "it would not be counted";
}

TEST_F(Decorators, AStoppedReadEnds) {
  std::stop_source stop;
  const auto rate = std::make_shared<ReadRate>(1, stop.get_token());
  const auto file = throttled_storage(storage_, rate)->open("a");
  read(*file, 0, 10);
  std::jthread stopper([&] { stop.request_stop(); });
  EXPECT_THROW(read(*file, 0, 10), CheckpointError);
}

}  // namespace
}  // namespace dckpt::decorators_test
