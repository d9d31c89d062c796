#include "strategies/torch_dist/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "strategies/formats/torch_archive/tensor_blob.h"
#include "strategies/storage/hashed_file.h"
#include "strategies/storage/hashing.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "strategies/torch_dist/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/temp_dir.h"

namespace dckpt::writer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Delivers zeros.
class Zeros final : public ItemSource {
 public:
  Bytes object(const WriteItem& item) override { return Bytes(item.nbytes); }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    sink(Bytes(item.nbytes));
  }
};

/// Returns what is known before anything is written.
std::vector<StorageInfo> without_crcs(std::vector<StorageInfo> places) {
  for (StorageInfo& place : places) place.crc = 0;
  return places;
}

WriteItem object(const std::string& key, std::uint64_t bytes = 10) {
  WriteItem item;
  item.kind = WriteItem::Kind::kObject;
  item.key = key;
  item.nbytes = bytes;
  return item;
}

WriteItem tensor(const std::string& key, std::int64_t elements) {
  WriteItem item;
  item.key = key;
  item.properties.dtype = DType::kUInt8;
  item.size = {elements};
  item.chunk = whole(item.size);
  item.nbytes = static_cast<std::uint64_t>(elements);
  return item;
}

/// Returns the keys of a plan by the files that rank 3 writes them to, in the order of each file.
std::vector<std::pair<std::string, std::vector<std::string>>> files_of(const SavePlan& plan,
                                                                       int files_per_rank,
                                                                       std::string_view hint) {
  const auto storage = memory_storage();
  Zeros zeros;
  const WrittenItems written = write_data_files(
      *storage, "", 3, plan, zeros, {{.files_per_rank = files_per_rank}, std::string(hint)});
  std::vector<std::pair<std::string, std::vector<std::string>>> files;
  for (std::size_t file = 0; file < written.files.size(); ++file) {
    std::map<std::uint64_t, std::string> by_offset;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (written.places[i].file == file) by_offset.emplace(written.places[i].offset, plan[i].key);
    }
    auto& keys = files.emplace_back(written.files[file], std::vector<std::string>{}).second;
    for (const auto& [offset, key] : by_offset) keys.push_back(key);
    EXPECT_TRUE(storage->stat(written.files[file]));
  }
  EXPECT_EQ(storage->list("").size(), written.files.size());
  return files;
}

using Keys = std::vector<std::string>;

TEST(DataFiles, ObjectsComeFirstAndTensorsAreSpreadByBytes) {
  const SavePlan plan{tensor("small", 1), tensor("large", 9000), object("object"),
                      tensor("middle", 5000)};
  EXPECT_THAT(files_of(plan, 1, ""),
              ElementsAre(std::pair("__3_0.distcp", Keys{"object", "small", "large", "middle"})));
  EXPECT_THAT(files_of(plan, 2, ""),
              ElementsAre(std::pair("__3_0.distcp", Keys{"object", "small", "middle"}),
                          std::pair("__3_1.distcp", Keys{"large"})));
  EXPECT_THAT(files_of({}, 2, ""), IsEmpty());
}

TEST(DataFiles, KeysWithTheHintAreKeptApartAndFilesAreNumberedThrough) {
  const SavePlan plan{tensor("opt.a", 9000), tensor("model.a", 1), object("opt.o"),
                      tensor("model.opt.", 1), tensor("opt.b", 9000)};
  EXPECT_THAT(files_of(plan, 1, "opt."),
              ElementsAre(std::pair("__3_0.distcp", Keys{"model.a", "model.opt."}),
                          std::pair("opt.__3_1.distcp", Keys{"opt.o", "opt.a", "opt.b"})));
  EXPECT_THAT(files_of(plan, 2, "opt."),
              ElementsAre(std::pair("__3_0.distcp", Keys{"model.a"}),
                          std::pair("__3_1.distcp", Keys{"model.opt."}),
                          std::pair("opt.__3_2.distcp", Keys{"opt.o", "opt.b"}),
                          std::pair("opt.__3_3.distcp", Keys{"opt.a"})));
}

/// Delivers an item when the expected number of threads request one.
class Meeting final : public ItemSource {
 public:
  explicit Meeting(int threads) : missing_(threads) {}
  Bytes object(const WriteItem& item) override { return Bytes(item.nbytes); }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    std::unique_lock lock(mutex_);
    --missing_;
    all_here_.notify_all();
    met_ = all_here_.wait_for(lock, std::chrono::seconds(10), [&] { return missing_ <= 0; });
    sink(Bytes(item.nbytes));
  }
  bool met() const { return met_; }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  int missing_;
  bool met_ = false;
};

TEST(DataFiles, AreWrittenByAsManyThreadsAsThereMayBe) {
  const auto storage = memory_storage();
  Meeting two(2);
  write_data_files(*storage, "", 0, {tensor("a", 5), tensor("b", 5)}, two,
                   {{.threads = 2, .files_per_rank = 2}});
  EXPECT_TRUE(two.met());
}

TEST(DataFiles, OneFileIsWrittenByAsManyThreadsAsThereMayBe) {
  const auto storage = memory_storage();
  Meeting two(2);
  constexpr std::int64_t kSection = std::int64_t{16} << 20;
  write_data_files(*storage, "", 0, {tensor("a", kSection), tensor("b", kSection)}, two,
                   {{.threads = 2}});
  EXPECT_TRUE(two.met());
}

/// Delivers bytes that depend on the item, in pieces of odd lengths.
class Patterns final : public ItemSource {
 public:
  Patterns() {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i * 7 >> 3);
  }
  Bytes object(const WriteItem& item) override {
    const ByteView bytes = ByteView(bytes_).first(item.nbytes);
    return {bytes.begin(), bytes.end()};
  }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    ByteView all = ByteView(bytes_).subspan(item.key.size() * 100 + item.nbytes % 97, item.nbytes);
    while (!all.empty()) {
      const ByteView piece = all.first(std::min<std::size_t>(all.size(), 1'000'003));
      sink(piece);
      all = all.subspan(piece.size());
    }
  }

 private:
  Bytes bytes_ = Bytes(10'000'000);
};

/// Returns a file of three sections.
SavePlan three_sections() {
  SavePlan plan{object("o"), tensor("empty", 0)};
  for (int i = 0; i < 4; ++i) plan.push_back(tensor("large" + std::to_string(i), 9'000'001 + i));
  for (int i = 0; i < 200; ++i) plan.push_back(tensor("small" + std::to_string(i), 137 * (i % 9)));
  plan.push_back(object("p", 77));
  return plan;
}

TEST(DataFiles, TheirBytesDependNeitherOnThreadsNorOnTheEngineNorOnTheStorage) {
  const SavePlan plan = three_sections();
  Patterns patterns;
  for (const bool checksums : {true, false}) {
    std::set<std::map<std::string, FileDigest>> digests;
    const auto write = [&](const std::shared_ptr<Storage>& storage, int threads, IoEngine engine) {
      const WriteOptions io{.engine = engine,
                            .threads = threads,
                            .files_per_rank = checksums ? 1 : 2,
                            .fsync = false,
                            .checksums = checksums};
      const WrittenItems written = write_data_files(*storage, "", 0, plan, patterns, {io});
      EXPECT_EQ(without_crcs(written.places), measure_data_files(0, plan, {io}).places);
      std::map<std::string, FileDigest> of_files;
      for (const std::string& file : written.files) {
        const auto opened = storage->open(file);
        of_files[file] = {file_sha256(*opened), opened->size()};
      }
      digests.insert(of_files);
    };
    for (const int threads : {1, 2, 7}) {
      for (const IoEngine engine : {IoEngine::kBuffered, IoEngine::kDirect}) {
        const TempDir directory;
        write(posix_storage(directory.path()), threads, engine);
      }
    }
    write(memory_storage(), 2, IoEngine::kAuto);
    const auto hashed = std::make_shared<FileDigests>();  // hashes the files front to back
    write(hashing_storage(memory_storage(), hashed), 2, IoEngine::kAuto);
    digests.insert(hashed->in(""));
    EXPECT_EQ(digests.size(), 1u) << "checksums " << checksums;
  }
}

constexpr std::int64_t kPart = ItemSource::kPartBytes;

/// Delivers bytes that depend on their place, also in parts, one of which may be missing.
class Parts final : public ItemSource {
 public:
  explicit Parts(bool in_parts = true, std::optional<std::uint64_t> missing = std::nullopt)
      : in_parts_(in_parts), missing_(missing) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i * 7 >> 3);
  }
  Bytes object(const WriteItem& item) override { return Bytes(item.nbytes); }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    deliver(0, item.nbytes, sink);
  }
  bool has_parts(const WriteItem&) const override { return in_parts_; }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override {
    EXPECT_EQ(begin % kPartBytes, 0U);
    EXPECT_GT(item.nbytes, kPartBytes) << "smaller ones are requested whole";
    EXPECT_LT(begin, item.nbytes);
    if (begin == missing_) throw CheckpointError(ErrorCode::kIo, "this part is missing");
    deliver(begin, std::min(item.nbytes, begin + kPartBytes), sink);
  }

 private:
  void deliver(std::uint64_t begin, std::uint64_t end, const std::function<void(ByteView)>& sink) {
    while (begin < end) {
      const auto at = static_cast<std::size_t>(begin % bytes_.size());
      const ByteView piece =
          ByteView(bytes_).subspan(at, std::min<std::size_t>(bytes_.size() - at, end - begin));
      sink(piece);
      begin += piece.size();
    }
  }

  bool in_parts_;
  std::optional<std::uint64_t> missing_;
  Bytes bytes_ = Bytes(1'000'003);
};

/// Returns tensors of about one, two and three parts, with small ones in between.
SavePlan large_tensors() {
  return {object("o"),
          tensor("first", kPart + 1),
          tensor("small", 137),
          tensor("empty", 0),
          tensor("one", kPart),
          tensor("two", 2 * kPart),
          tensor("three", 3 * kPart - 5)};
}

TEST(DataFiles, TheirBytesDoNotDependOnWhetherThreadsShareATensor) {
  const SavePlan plan = large_tensors();
  for (const bool checksums : {true, false}) {
    std::set<std::string> digests;
    const auto write = [&](const std::shared_ptr<Storage>& storage, int threads, IoEngine engine,
                           bool in_parts) {
      Parts source(in_parts);
      const WriteOptions io{
          .engine = engine, .threads = threads, .fsync = false, .checksums = checksums};
      const WrittenItems written = write_data_files(*storage, "", 0, plan, source, {io});
      EXPECT_EQ(without_crcs(written.places), measure_data_files(0, plan, {io}).places);
      digests.insert(file_sha256(*storage->open(written.files.front())));
    };
    for (const int threads : {1, 2, 3, 7}) {
      for (const IoEngine engine : {IoEngine::kBuffered, IoEngine::kDirect}) {
        const TempDir directory;
        write(posix_storage(directory.path()), threads, engine, true);
      }
    }
    write(memory_storage(), 2, IoEngine::kAuto, true);
    write(memory_storage(), 2, IoEngine::kAuto, false);
    write(hashing_storage(memory_storage(), std::make_shared<FileDigests>()), 2, IoEngine::kAuto,
          true);
    EXPECT_EQ(digests.size(), 1U) << "checksums " << checksums;
  }
}

TEST(DataFiles, AThreadWritesSeveralPartsOfAVeryLargeTensor) {
  const SavePlan plan{tensor("huge", 17 * kPart + 5), tensor("not shared", 2 * kPart)};
  std::set<std::string> digests;
  for (const bool in_parts : {false, true}) {
    const TempDir directory;
    const auto storage = posix_storage(directory.path());
    Parts source(in_parts);
    const WrittenItems written =
        write_data_files(*storage, "", 0, plan, source, {{.threads = 2, .fsync = false}});
    digests.insert(file_sha256(*storage->open(written.files.front())));
  }
  EXPECT_EQ(digests.size(), 1U);
}

TEST(DataFiles, ChecksumsOfSharedTensorsAreThoseOfTheirBytes) {
  const SavePlan plan = large_tensors();
  const auto storage = memory_storage();
  Parts source;
  const WrittenItems written = write_data_files(*storage, "", 0, plan, source, {{.threads = 3}});
  const auto file = storage->open(written.files.front());
  for (std::size_t i = 1; i < plan.size(); ++i) {
    const StorageInfo& place = written.places[i];
    EXPECT_TRUE(check_tensor_blob(*file, place.offset, place.length)) << plan[i].key;
    EXPECT_EQ(place.crc, locate_tensor_blob(*file, place.offset, place.length).crc) << plan[i].key;
  }
}

TEST(DataFiles, AMissingPartIsAnErrorOfItsTensor) {
  for (const std::uint64_t part : {0, 1, 2}) {
    for (const int threads : {2, 3}) {
      Parts source(true, part * kPart);
      const auto error = testing::error_of([&] {
        write_data_files(*memory_storage(), "", 0, {tensor("three", 3 * kPart)}, source,
                         {{.threads = threads}});
      });
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_EQ(error.context().key, "three");
    }
  }
}

/// Delivers a part when another thread also requests one.
class MeetingParts final : public ItemSource {
 public:
  Bytes object(const WriteItem& item) override { return Bytes(item.nbytes); }
  void tensor(const WriteItem&, const std::function<void(ByteView)>&) override { FAIL(); }
  bool has_parts(const WriteItem&) const override { return true; }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override {
    meeting_.tensor(item, [](ByteView) {});
    sink(Bytes(std::min(item.nbytes - begin, kPartBytes)));
  }
  bool met() const { return meeting_.met(); }

 private:
  Meeting meeting_{2};
};

TEST(DataFiles, OneTensorIsWrittenByAsManyThreadsAsThereMayBe) {
  MeetingParts two;
  write_data_files(*memory_storage(), "", 0, {tensor("a", kPart + 1)}, two, {{.threads = 2}});
  EXPECT_TRUE(two.met());
}

TEST(DataFiles, AFailureOfAnyOperationIsReportedByName) {
  const SavePlan plan{object("o"), tensor("large", 9'000'000), tensor("larger", 9'000'001),
                      tensor("small", 3), tensor("in parts", kPart + 1)};
  Parts patterns;
  const WriteOptions io{.threads = 3, .checksums = false};
  FaultyStorage counted(memory_storage());
  write_data_files(counted, "", 0, plan, patterns, {io});
  for (std::uint64_t at = 1; at <= counted.operations(); ++at) {
    FaultyStorage storage(memory_storage(), {Fault::Kind::kError, at});
    EXPECT_THAT(testing::error_of([&] {
                  write_data_files(storage, "", 0, plan, patterns, {io});
                }).message(),
                ::testing::HasSubstr("injected fault at operation " + std::to_string(at)));
  }
}

TEST(DataFiles, OneOfTheTwoKindsMayBeAbsent) {
  EXPECT_THAT(files_of({tensor("opt.a", 1)}, 2, "opt."),
              ElementsAre(std::pair("opt.__3_0.distcp", Keys{"opt.a"})));
  EXPECT_THAT(files_of({tensor("a", 1)}, 2, "opt."),
              ElementsAre(std::pair("__3_0.distcp", Keys{"a"})));
}

TEST(DataFiles, TheCommonStateIsNeverKeptApart) {
  EXPECT_THAT(files_of({object(kCommonStateKey), object("common_x/shard_0_1")}, 1, "common"),
              ElementsAre(std::pair("__3_0.distcp", Keys{kCommonStateKey}),
                          std::pair("common__3_1.distcp", Keys{"common_x/shard_0_1"})));
}

TEST(DataFiles, AHintIsCheckedBeforeAFileIsMade) {
  EXPECT_EQ(testing::error_of([] { files_of({tensor("a", 1)}, 1, "../a"); }).code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace dckpt::writer_test
