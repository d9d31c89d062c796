#include "strategies/torch_dist/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "strategies/storage/memory.h"
#include "strategies/torch_dist/reader.h"
#include "tests/support/expect_error.h"

namespace dckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Every byte is zero.
class Zeros final : public ItemSource {
 public:
  Bytes object(const WriteItem& item) override { return Bytes(item.nbytes); }
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    sink(Bytes(item.nbytes));
  }
};

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

/// The keys of a plan by the files that rank 3 writes them to, in the order of a file.
std::vector<std::pair<std::string, std::vector<std::string>>> files_of(const SavePlan& plan,
                                                                       int files_per_rank,
                                                                       std::string_view hint) {
  const auto storage = memory_storage();
  Zeros zeros;
  const WrittenItems written =
      write_data_files(*storage, "", 3, plan, zeros, {.files_per_rank = files_per_rank}, hint);
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

/// Delivers an item when as many threads ask for one as there should be.
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
                   {.threads = 2, .files_per_rank = 2}, "");
  EXPECT_TRUE(two.met());
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
}  // namespace dckpt
