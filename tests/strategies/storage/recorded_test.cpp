#include "strategies/storage/recorded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "strategies/storage/counting.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "tests/support/code_of.h"
#include "tests/support/temp_dir.h"

namespace dckpt::recorded_test {
namespace {

namespace fs = std::filesystem;

class Recorded : public ::testing::Test {
 protected:
  Recorded() {
    fs::create_directory(directory_ / "d");
    std::ofstream(directory_ / "a") << "0123456789";
    std::ofstream(directory_ / "d" / "b") << "below";
  }

  /// Storages opened here, and by another process with what was learned here.
  std::shared_ptr<Storage> learned() const { return recorded_storage(counted_, record_); }
  std::shared_ptr<StorageRecord> received() const {
    auto copy = std::make_shared<StorageRecord>(record_->head());
    const std::vector<MutableByteView> from = record_->contents();
    const std::vector<MutableByteView> to = copy->contents();
    for (std::size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i], to[i].begin());
    return copy;
  }

  static std::string read(const ReadableFile& file, std::uint64_t offset, std::size_t length) {
    Bytes into(length);
    file.read(offset, into);
    return std::string(as_text(into));
  }
  static std::string read(Storage& storage, const std::string& name, std::uint64_t offset,
                          std::size_t length) {
    return read(*storage.open(name), offset, length);
  }
  std::uint64_t asked() const {
    return counters_->lookups + counters_->files_opened + counters_->reads;
  }

  TempDir directory_;
  std::shared_ptr<StorageCounters> counters_ = std::make_shared<StorageCounters>();
  std::shared_ptr<Storage> counted_ = counting_storage(posix_storage(directory_.path()), counters_);
  std::shared_ptr<StorageRecord> record_ = std::make_shared<StorageRecord>();
};

TEST_F(Recorded, WhatWasAskedOnceIsAnsweredEverywhereWithoutTheStorage) {
  const auto ask = [](Storage& storage) {
    EXPECT_EQ(storage.list("").size(), 2U);
    EXPECT_EQ(storage.stat("a")->size, 10U);
    EXPECT_FALSE(storage.stat("c"));
    EXPECT_TRUE(storage.stat_target(""));
    EXPECT_EQ(read(storage, "a", 2, 5), "23456");
    EXPECT_EQ(read(storage, "a", 3, 2), "34");
    EXPECT_EQ(read(storage, "d/b", 0, 5), "below");
    EXPECT_EQ(read(*storage.subtree("d"), "b", 1, 4), "elow");
  };
  ask(*learned());
  const auto other = received();
  const std::uint64_t before = asked();
  ask(*learned());
  ask(*recorded_storage(counted_, other));
  EXPECT_EQ(asked(), before);
}

TEST_F(Recorded, WhatIsNotKnownComesFromTheFile) {
  read(*learned(), "a", 2, 5);
  const auto storage = recorded_storage(counted_, received());
  const auto file = storage->open("a");
  EXPECT_EQ(counters_->files_opened, 1U);
  EXPECT_EQ(read(*file, 0, 10), "0123456789");
  EXPECT_EQ(counters_->files_opened, 2U);
  EXPECT_EQ(read(*storage, "d/b", 0, 1), "b");
  EXPECT_EQ(code_of([&] { read(*file, 8, 3); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage->open("../a"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage->open("c"); }), "incomplete");
}

TEST_F(Recorded, OverlappingReadsAreAllKnownAfterwards) {
  const std::vector<std::pair<std::uint64_t, std::size_t>> reads = {{4, 1}, {3, 4}, {5, 5}, {0, 2},
                                                                    {6, 1}, {0, 4}, {2, 6}};
  const auto file = learned()->open("a");
  for (const auto& [offset, length] : reads) read(*file, offset, length);
  const auto again = recorded_storage(counted_, received())->open("a");
  for (const auto& [offset, length] : reads)
    EXPECT_EQ(read(*again, offset, length), std::string("0123456789").substr(offset, length));
  EXPECT_EQ(counters_->files_opened, 1U);
}

TEST_F(Recorded, OnceItHasEndedEverythingPassesThrough) {
  const auto storage = learned();
  const auto file = storage->open("a");
  read(*file, 0, 10);
  record_->end();
  std::ofstream(directory_ / "new") << "x";
  EXPECT_EQ(storage->list("").size(), 3U);
  EXPECT_EQ(read(*storage, "new", 0, 1), "x");
  EXPECT_EQ(read(*file, 1, 2), "12");
  EXPECT_EQ(record_->contents_size(), 0U);
}

TEST_F(Recorded, ARecordIsOfTheFilesThatWereRead) {
  EXPECT_FALSE(record_->is_of(counted_));  // nothing was read that proves it
  read(*learned()->subtree("d"), "b", 0, 1);
  EXPECT_TRUE(received()->is_of(counted_));
  fs::last_write_time(directory_ / "a", fs::file_time_type::clock::now());  // was not read
  EXPECT_TRUE(received()->is_of(counted_));
  const TempDir elsewhere;
  EXPECT_FALSE(record_->is_of(posix_storage(elsewhere.path())));
  fs::last_write_time(directory_ / "d" / "b", fs::file_time_type::clock::now());
  EXPECT_FALSE(record_->is_of(counted_));
}

TEST_F(Recorded, FilesWithoutATimeAreNeverTheSame) {
  const auto memory = memory_storage();
  memory->create("a")->append(as_bytes("x"));
  read(*recorded_storage(memory, record_), "a", 0, 1);
  EXPECT_FALSE(record_->is_of(memory));
}

TEST_F(Recorded, AHeadThatIsCutShortIsRefused) {
  learned()->list("");
  read(*learned(), "a", 2, 5);
  const Bytes head = record_->head();
  for (std::size_t length = 0; length < head.size(); ++length)
    EXPECT_EQ(code_of([&] { StorageRecord(ByteView(head).first(length)); }), "corrupt");
}

}  // namespace
}  // namespace dckpt::recorded_test
