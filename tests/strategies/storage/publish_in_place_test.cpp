#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "strategies/storage/publication.h"
#include "tests/support/object_store.h"

namespace dckpt::publish_in_place_test {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kName = "run/iter_5";
constexpr std::chrono::milliseconds kLease{400};

class PublishInPlace : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel level, std::string_view text) {
      if (level == LogLevel::kWarning) warnings_.emplace_back(text);
    });
    store_->make_directory("run");
  }
  void TearDown() override {
    set_log_sink({});
    EXPECT_EQ(store_->forbidden(), 0);
  }

  void write(const std::string& name, const std::string& content) {
    const auto file = store_->create(name, {});
    file->append(as_bytes(content));
    file->close();
  }
  std::string content(const std::string& name) const {
    return std::string(as_text(read_file(*store_->open(name), 1000)));
  }
  std::vector<std::string> names(const std::string& directory) const {
    std::vector<std::string> found;
    for (const FileInfo& entry : store_->list(directory)) found.push_back(entry.name);
    return found;
  }

  Publication begin(const std::string& token, Publication::Options options = {}) {
    options.markers = {"marker"};
    return Publication::begin(store_, kName, token, std::move(options));
  }
  void publish(Publication publication, const std::string& content) {
    write(publication.staging() + "/data", content);
    publication.commit([&] { write(publication.staging() + "/marker", "all is there"); });
  }
  static ErrorCode code_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(kName));
      return error.code();
    }
    return ErrorCode::kInternal;
  }

  const std::shared_ptr<ObjectStore> store_ = std::make_shared<ObjectStore>(ObjectStore::Pace{});
  std::vector<std::string> warnings_;
};

TEST_F(PublishInPlace, NothingIsLeftBesideWhatWasWritten) {
  publish(begin("a"), "1");
  EXPECT_THAT(names("run"), ElementsAre("iter_5"));
  EXPECT_THAT(names(kName), ElementsAre("data", "marker"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(PublishInPlace, WhatIsAbandonedIsRemoved) {
  {
    const Publication publication = begin("a");
    write(publication.staging() + "/data", "half");
  }
  EXPECT_THAT(names("run"), IsEmpty());
  publish(begin("b"), "1");
  EXPECT_THAT(names(kName), ElementsAre("data", "marker"));
}

TEST_F(PublishInPlace, OneJobWritesAtATime) {
  Publication first = begin("first");
  try {
    const Publication second = begin("second");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("another job writes this checkpoint, 'first'"));
    EXPECT_THAT(std::string(error.what()),
                AnyOf(HasSubstr("its claim ends by itself in 121 s"),
                      HasSubstr("its claim ends by itself in 120 s")));  // a second may have passed
  }
  publish(std::move(first), "1");
  EXPECT_EQ(content("run/iter_5/data"), "1");
}

TEST_F(PublishInPlace, WithoutTimesAClaimIsRemovedByHand) {
  struct Timeless final : ForwardingStorage {
    using ForwardingStorage::ForwardingStorage;
    std::optional<FileInfo> stat(const std::string& name) const override {
      std::optional<FileInfo> found = ForwardingStorage::stat(name);
      if (found) found->modified = 0;
      return found;
    }
  };
  const Publication first = begin("first");
  try {
    const Publication second =
        Publication::begin(std::make_shared<Timeless>(store_), kName, "second", {});
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("if it has died, remove 'objects:run/iter_5/.dckpt.saving-1'"));
  }
}

TEST_F(PublishInPlace, TheClaimOfAWriterThatHasEndedIsPassed) {
  store_->make_directory(kName);
  write("run/iter_5/.dckpt.saving-1", "dead");
  const auto has_ended = [](std::string_view token) { return token == "dead"; };
  Publication heir = begin("heir", {.has_ended = has_ended});
  EXPECT_EQ(code_of([&] { const Publication refused = begin("late", {.has_ended = has_ended}); }),
            ErrorCode::kAborted);
  publish(std::move(heir), "1");
  EXPECT_THAT(names(kName), ElementsAre(".dckpt.saving-1", "data", "marker"));
}

TEST_F(PublishInPlace, AClaimThatIsNotRenewedEnds) {
  store_->make_directory(kName);
  write("run/iter_5/.dckpt.saving-1", "on another host");
  std::this_thread::sleep_for(kLease);
  publish(begin("heir", {.lease = kLease}), "1");
  EXPECT_EQ(content("run/iter_5/data"), "1");
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("'on another host' has not renewed its claim")));
  EXPECT_THAT(names(kName), ElementsAre(".dckpt.saving-1", "data", "marker"));
}

TEST_F(PublishInPlace, AWriterThatTakesLongerThanItsLeaseRenewsIt) {
  Publication slow = begin("slow", {.lease = kLease});
  std::this_thread::sleep_for(2 * kLease);
  EXPECT_EQ(code_of([&] { const Publication refused = begin("late", {.lease = kLease}); }),
            ErrorCode::kAborted);
  publish(std::move(slow), "1");
  EXPECT_THAT(names(kName), ElementsAre("data", "marker"));
}

/// A writer whose renewals fail, as if its process had been stopped.
TEST_F(PublishInPlace, AWriterThatWasStoppedForTooLongPublishesNothing) {
  struct Stopped final : ForwardingStorage {
    using ForwardingStorage::ForwardingStorage;
    void put(const std::string&, ByteView) override {
      throw CheckpointError(ErrorCode::kIo, "no answer");
    }
  };
  std::optional<Publication> stopped =
      Publication::begin(std::make_shared<Stopped>(store_), kName, "stopped",
                         {.markers = {"marker"}, .lease = kLease});
  write("run/iter_5/data", "half");
  std::this_thread::sleep_for(2 * kLease);
  publish(begin("heir", {.lease = kLease}), "of the heir");

  EXPECT_EQ(code_of([&] { stopped->commit([] { FAIL() << "a marker was written"; }); }),
            ErrorCode::kAborted);
  stopped.reset();
  EXPECT_EQ(content("run/iter_5/data"), "of the heir");
  EXPECT_THAT(names(kName), ElementsAre(".dckpt.saving-1", "data", "marker"));
}

TEST_F(PublishInPlace, WhatIsThereIsReplacedOnRequestOnly) {
  publish(begin("a"), "old");
  EXPECT_EQ(code_of([&] { const Publication refused = begin("b"); }), ErrorCode::kAlreadyExists);
  EXPECT_EQ(content("run/iter_5/data"), "old");

  write("run/iter_5/notes.txt", "mine");
  publish(begin("b", {.overwrite = true,
                      .foreign = [] { return std::vector<std::string>{"notes.txt"}; }}),
          "new");
  EXPECT_EQ(content("run/iter_5/data"), "new");
  EXPECT_EQ(content("run/iter_5/notes.txt"), "mine");
  EXPECT_THAT(names(kName), ElementsAre("data", "marker", "notes.txt"));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("is replaced in its place")));
}

TEST_F(PublishInPlace, AReplacedCheckpointIsIncompleteBeforeAnythingElseOfItGoes) {
  publish(begin("a"), "old");
  const Publication replacing = begin("b", {.overwrite = true});
  EXPECT_FALSE(store_->stat("run/iter_5/marker"));
}

/// The other job claims, writes and ends between the first check of a job and its claim.
TEST_F(PublishInPlace, WhatAnotherJobFinishesMeanwhileStays) {
  struct Overtaken final : ForwardingStorage {
    using ForwardingStorage::ForwardingStorage;
    void make_directory(const std::string& name) override {
      ForwardingStorage::make_directory(name);
      if (auto work = std::exchange(meanwhile, {})) work();
    }
    std::function<void()> meanwhile;
  };
  const auto overtaken = std::make_shared<Overtaken>(store_);
  overtaken->meanwhile = [&] { publish(begin("other"), "of the other"); };
  EXPECT_EQ(code_of([&] {
              const Publication late =
                  Publication::begin(overtaken, kName, "late", {.markers = {"marker"}});
            }),
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(content("run/iter_5/data"), "of the other");
  EXPECT_THAT(names(kName), ElementsAre("data", "marker"));
}

TEST_F(PublishInPlace, AFileIsNoCheckpoint) {
  write(kName, "a file");
  EXPECT_EQ(code_of([&] { const Publication refused = begin("a", {.overwrite = true}); }),
            ErrorCode::kAlreadyExists);
}

}  // namespace
}  // namespace dckpt::publish_in_place_test
