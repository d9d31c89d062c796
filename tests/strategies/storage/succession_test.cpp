// Stops a publisher before each of its storage operations (testing::Sweep), lets a successor
// publish something else under the same name, and wakes the first one up: whatever it does then,
// the successor's result stays as it is. A second sweep fails another operation of the stopped
// publisher as well, so that it also undoes steps; then nothing of the successor's is ever lost.

#include <gmock/gmock.h>

#include <chrono>
#include <map>
#include <thread>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/hidden_sibling.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/publication.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/object_store.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace dckpt::succession_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

using Files = std::map<std::string, std::string>;

constexpr const char* kName = "run/iter_5";
const Files kOld = {{"a", "old"}, {"marker", "old"}};
const Files kLate = {{"a", "of the first"}, {"b", "of the first"}, {"marker", "of the first"}};
const Files kSuccessor = {{"a", "right"}, {"b", "right"}, {"marker", "right"}};

Files files_in(const Storage& storage, const std::string& directory) {
  Files files;
  if (!storage.stat(directory)) return files;
  for (const FileInfo& entry : storage.list(directory))
    files[entry.name] = as_text(read_file(*storage.open(join_name(directory, entry.name)), 1000));
  return files;
}

void write(Storage& storage, const std::string& name, const std::string& content) {
  const auto file = storage.create(name);
  file->append(as_bytes(content));
  file->close();
}

void publish(const std::shared_ptr<Storage>& storage, const Files& files, const std::string& token,
             Publication::Options options) {
  options.markers = {"marker"};
  Publication publication = Publication::begin(storage, kName, token, std::move(options));
  for (const auto& [name, content] : files) {
    if (name != "marker") write(*storage, join_name(publication.staging(), name), content);
  }
  publication.commit(
      [&] { write(*storage, join_name(publication.staging(), "marker"), files.at("marker")); });
}

/// Removes what the stopped publisher has left, or brings it back, as a job does that believes it
/// to have ended.
void clean(Storage& storage) {
  for (const FileInfo& entry : storage.list("run")) {
    const auto sibling = parse_hidden_sibling(entry.name);
    if (!sibling) continue;
    if (sibling->purpose == "replaced" && !storage.stat(kName))
      storage.rename(join_name("run", entry.name), kName);
    else
      storage.remove_all(join_name("run", entry.name));
  }
}

struct Situation {
  std::string name;
  Files before{};  ///< at the name
  bool overwrite = false;
  bool can_exchange = true;
  bool cleans = false;  ///< the successor removes what the first has left
  bool on_disk = false;
  bool empty_directory = false;
};

void PrintTo(const Situation& situation, std::ostream* out) {
  *out << situation.name;
}

class Succession : public ::testing::TestWithParam<Situation> {
 protected:
  void SetUp() override {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  void TearDown() override { set_log_sink({}); }

  /// Runs the publisher, which is stopped at one operation and fails at another. Returns whether it
  /// was stopped.
  bool run(std::uint64_t stop, Fault fault) {
    const Situation& situation = GetParam();
    const TempDir directory;
    storage_ = situation.on_disk ? posix_storage(directory.path()) : memory_storage();
    storage_->make_directory("run");
    if (!situation.before.empty()) publish(storage_, situation.before, "earlier", {});
    if (situation.empty_directory) storage_->make_directory(kName);
    const auto succeed = [&](std::string_view) {
      if (situation.cleans) clean(*storage_);
      publish(std::make_shared<FaultyStorage>(storage_, Fault{}, situation.can_exchange),
              kSuccessor, "successor", {.overwrite = true, .sync = !situation.on_disk});
    };
    const auto failing =
        std::make_shared<FaultyStorage>(storage_, std::move(fault), situation.can_exchange);
    const auto stopped =
        std::make_shared<FaultyStorage>(failing, Fault{Fault::Kind::kStop, stop, succeed});
    try {
      publish(stopped, kLate, "first",
              {.overwrite = situation.overwrite, .sync = !situation.on_disk});
    } catch (const CheckpointError&) {  // it may publish nothing
    }
    found_ = files_in(*storage_, kName);
    hidden_.clear();
    for (const FileInfo& entry : storage_->list("run")) {
      if (parse_hidden_sibling(entry.name))
        hidden_.push_back(files_in(*storage_, join_name("run", entry.name)));
    }
    return stopped->fired();
  }

  std::shared_ptr<Storage> storage_;
  Files found_;
  std::vector<Files> hidden_;
};

TEST_P(Succession, WhoeverWakesUpLateLeavesTheResultOfItsSuccessor) {
  // Before a publisher has looked at the name, it is only another job, which may replace it.
  testing::Sweep sweep;
  std::uint64_t at = GetParam().overwrite ? 2 : 1;
  for (; run(at, {}); at = sweep.after(at)) {
    SCOPED_TRACE(sweep.trace(at));
    EXPECT_EQ(found_, kSuccessor);
    EXPECT_THAT(hidden_, Not(Contains(kSuccessor)));
  }
  EXPECT_GT(at, 15u);
}

class FailingSuccession : public Succession {};

TEST_P(FailingSuccession, ALatePublisherThatFailsAsWellLosesNothingOfItsSuccessor) {
  testing::Random random;
  for (int round = 0; round < 200; ++round) {
    const auto stop = static_cast<std::uint64_t>(random.between(2, 40));
    const Fault fault{random.chance(50) ? Fault::Kind::kError : Fault::Kind::kErrorAfterEffect,
                      static_cast<std::uint64_t>(random.between(1, 50))};
    SCOPED_TRACE(random.trace(round) + ": stopped before operation " + std::to_string(stop) +
                 ", fails at " + std::to_string(fault.at));
    if (!run(stop, fault)) continue;
    hidden_.push_back(found_);
    EXPECT_THAT(hidden_, Contains(kSuccessor));
  }
}

std::vector<Situation> situations(bool on_disk) {
  std::vector<Situation> all;
  for (const bool cleans : {false, true}) {
    const std::vector<Situation> kinds = {
        {.name = "Rename"},
        {.name = "EmptyDirectory", .empty_directory = true},
        {.name = "OverwritingNothing", .overwrite = true},
        {.name = "NoExchange", .before = kOld, .overwrite = true, .can_exchange = false},
        {.name = "Exchange", .before = kOld, .overwrite = true}};
    for (Situation situation : kinds) {
      situation.name += std::string(cleans ? "Cleaned" : "") + (on_disk ? "OnDisk" : "");
      situation.cleans = cleans;
      situation.on_disk = on_disk;
      all.push_back(std::move(situation));
    }
  }
  return all;
}

constexpr auto kNameOf = [](const auto& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(InMemory, Succession, ::testing::ValuesIn(situations(false)), kNameOf);
INSTANTIATE_TEST_SUITE_P(OnDisk, Succession, ::testing::ValuesIn(situations(true)), kNameOf);
INSTANTIATE_TEST_SUITE_P(InMemory, FailingSuccession, ::testing::ValuesIn(situations(false)),
                         kNameOf);

// In place, a successor waits until the claim of the stopped writer has expired.
class SuccessionInPlace : public ::testing::TestWithParam<bool> {};

TEST_P(SuccessionInPlace, WhoeverWakesUpLateLeavesTheResultOfItsSuccessor) {
  set_log_sink([](LogLevel, std::string_view) {});
  constexpr std::chrono::milliseconds kLease{200};  // longer than a busy machine stops a thread
  const bool overwrites = GetParam();
  testing::Sweep sweep;
  std::uint64_t at = overwrites ? 3 : 1;  // not before it has looked
  for (bool fired = true; fired; at = sweep.after(at)) {
    SCOPED_TRACE(sweep.trace(at));
    const auto store = std::make_shared<ObjectStore>(ObjectStore::Pace{});
    store->make_directory("run");
    if (overwrites) publish(store, kOld, "earlier", {});
    bool removes = false;
    const auto succeed = [&](std::string_view operation) {
      removes = operation == "remove_all";
      for (bool done = false; !done;) {
        try {
          publish(store, kSuccessor, "successor", {.overwrite = true, .lease = kLease});
          done = true;
        } catch (const CheckpointError& error) {
          ASSERT_EQ(error.code(), ErrorCode::kAborted) << error.what();
          std::this_thread::sleep_for(kLease / 4);
        }
      }
    };
    const auto stopped =
        std::make_shared<FaultyStorage>(store, Fault{Fault::Kind::kStop, at, succeed});
    std::string refusal;
    try {
      publish(stopped, kLate, "first", {.overwrite = overwrites, .lease = kLease});
    } catch (const CheckpointError& error) {  // it may publish nothing
      refusal = error.what();
    }
    fired = stopped->fired();
    if (!fired) continue;
    Files found = files_in(*store, kName);
    std::erase_if(found, [](const auto& file) { return file.first.starts_with(kClaimPrefix); });
    if (removes && found != kSuccessor)  // no storage removes on condition (publish_in_place.cpp)
      EXPECT_THAT(refusal, HasSubstr("lapsed while this file was removed"));
    else
      EXPECT_EQ(found, kSuccessor);
  }
  EXPECT_GT(at, 15u);
  set_log_sink({});
}

INSTANTIATE_TEST_SUITE_P(MarkerLast, SuccessionInPlace, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Overwriting" : "New"; });

}  // namespace
}  // namespace dckpt::succession_test
