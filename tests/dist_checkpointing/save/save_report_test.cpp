#include "dist_checkpointing/save/save_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <thread>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/rank_save_report.h"
#include "dist_checkpointing/save/report_file.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "mapping/base/log.h"
#include "strategies/comm/threads.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/posix.h"
#include "strategies/torch_dist/save_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::save_report_test {
namespace {

using dckpt::testing::error_of;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::UnorderedElementsAre;

constexpr int kTensors = 60;
constexpr std::uint64_t kTensorBytes = 1000 * sizeof(float);
constexpr int kSlowRank = 1;

/// A torch_dist strategy on a disk that takes a while for each tensor of one rank.
class SlowStrategy final : public SaveStrategy {
 public:
  explicit SlowStrategy(const SaveOptions& options)
      : inner_(make_torch_dist_save_strategy(options)) {}

  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
    SlowSource slow(source);
    return inner_->write_data(storage, directory, rank, plan, rank == kSlowRank ? slow : source);
  }
  void write_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                   const CommonState* common) const override {
    inner_->write_index(storage, directory, metadata, common);
  }
  std::optional<MarkerFile> marker(const Storage& storage, const Metadata& metadata,
                                   const CommonState* common) const override {
    return inner_->marker(storage, metadata, common);
  }

 private:
  class SlowSource final : public ItemSource {
   public:
    explicit SlowSource(ItemSource& source) : source_(source) {}
    Bytes object(const WriteItem& item) override { return source_.object(item); }
    void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
      source_.tensor(item, sink);
      std::this_thread::sleep_for(milliseconds(25));
    }

   private:
    ItemSource& source_;
  };

  std::unique_ptr<SaveStrategy> inner_;
};

class SaveReportTest : public ::testing::Test {
 protected:
  SaveReportTest() {
    register_strategy(SaveStrategyEntry{
        .name = "slow", .about = "for this test", .make = [](const SaveOptions& options) {
          SaveOptions inner = options;
          inner.strategy = {};
          return std::make_unique<SlowStrategy>(inner);
        }});
  }
  ~SaveReportTest() override { set_log_sink({}); }

  static SaveOptions slow() {
    SaveOptions options;
    options.strategy.name = "slow";
    return options;
  }

  /// Returns a state with 1.5 s of writing on a slow rank.
  static StateDict state_of(int rank, int tensors = kTensors) {
    StateDict state;
    for (int i = 0; i < tensors; ++i) {
      const std::string key = "w" + std::to_string(i);
      state[key] = ShardedTensor::from_rank_offsets(key, Tensor::zeros(DType::kFloat32, {1000}),
                                                    {{.axis = 0, .rank = rank, .count = 2}});
    }
    state["iteration"] = 7;
    return state;
  }

  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }
  bool nothing_is_left() const { return std::filesystem::is_empty(directory_.path()); }

  TempDir directory_;
};

TEST_F(SaveReportTest, IsTheSameOnAllRanksAndAddsUp) {
  std::vector<SaveReport> reports(2);
  run_ranks(2, [&](Communicator& comm) {
    reports[static_cast<std::size_t>(comm.rank())] =
        save(state_of(comm.rank()), path("a"), slow(), comm);
  });
  const SaveReport& report = reports[0];
  EXPECT_EQ(report, reports[1]);
  std::uint64_t bytes = 0;
  std::uint64_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(path("a"))) {
    bytes += file.file_size();
    ++files;
  }
  EXPECT_EQ(report.bytes, bytes);
  EXPECT_EQ(report.files, files);
  EXPECT_EQ(report.write.bytes + report.publish.bytes, bytes);
  EXPECT_GE(report.write.bytes, 2 * kTensors * kTensorBytes);
  EXPECT_GE(report.seconds, report.write.seconds + report.publish.seconds);
  EXPECT_EQ(report.write.slowest_rank, kSlowRank);
  EXPECT_LT(report.write.minimum, report.write.median);
  EXPECT_LT(report.write.median, report.write.seconds);
  for (const PhaseReport& part : {report.copy, report.sync}) {
    EXPECT_GT(part.seconds, 0);
    EXPECT_LT(part.seconds, report.write.seconds);
  }
  EXPECT_EQ(report.copy.bytes, 2 * kTensors * kTensorBytes);
  EXPECT_EQ(report.engine, "buffered") << "the files are small";
  EXPECT_FALSE(report.plan_cached);
  EXPECT_EQ(report.why_planned, "first save");
  EXPECT_EQ(decode_save_report(encode(report)), report);
}

TEST_F(SaveReportTest, IsKeptInTheCheckpointOnRequestAndListedInTheManifest) {
  SaveOptions options{.integrity = true, .report = true};
  SaveReport report;
  run_ranks(2, [&](Communicator& comm) {
    const SaveReport all = save(state_of(comm.rank(), 3), path("a"), options, comm);
    if (comm.rank() == 0) report = all;
  });
  const std::optional<SaveReport> kept = find_report(*posix_storage(path("a")));
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->write, report.write);
  EXPECT_EQ(kept->plan, report.plan);
  EXPECT_EQ(kept->why_planned, "first save");
  EXPECT_EQ(kept->files + 2, report.files) << "itself and integrity.json";
  EXPECT_LE(kept->publish.seconds, report.publish.seconds + report.seconds);

  StateDict state;
  state["w0"] = ShardedTensor::whole("w0", Tensor::zeros(DType::kFloat32, {2000}));
  load(state, path("a"), {.verify = Verify::kSha256});
  std::filesystem::resize_file(path("a") / kReportFile, 10);
  EXPECT_THAT(error_of([&] { load(state, path("a"), {.verify = Verify::kSha256}); }).message(),
              HasSubstr("dckpt_report.json: hash mismatch"));
  EXPECT_FALSE(find_report(*posix_storage(directory_.path())));
}

TEST_F(SaveReportTest, ThatIsKeptIsReadBackAndCheckedFieldByField) {
  const SaveReport report{
      .bytes = 12,
      .files = 3,
      .seconds = 1.5,
      .write = {.seconds = 1, .median = 0.5, .minimum = 0.25, .slowest_rank = 7, .bytes = 9},
      .why_planned = "rank 1: key 'x' is new",
      .engine = "direct"};
  const std::string json = to_json(report);
  EXPECT_EQ(read_report(as_bytes(json)), report);
  const auto code_with = [&](const std::string& from, const std::string& to) {
    std::string changed = json;
    changed.replace(changed.find(from), from.size(), to);
    return error_of([&] { (void)read_report(as_bytes(changed)); }).code();
  };
  EXPECT_EQ(code_with("\"version\": 1", "\"version\": 2"), ErrorCode::kUnsupported);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"bytes\": 12", "\"bytes\": -1"},
           {"\"seconds\": 1.5", "\"seconds\": -1.5"},
           {"\"seconds\": 1.5", "\"seconds\": 1e300"},
           {"\"seconds\": 1.5", "\"seconds\": \"long\""},
           {"\"slowest_rank\": 7", "\"slowest_rank\": 4294967296"},
           {"\"engine\"", "\"motor\""},
           {"\"sync\": {", "\"sync\": 7, \"other\": {"},
           {"false", "0"}})
    EXPECT_EQ(code_with(from, to), ErrorCode::kCorrupt) << to;
}

TEST_F(SaveReportTest, TimesOfOtherRanksAreTimes) {
  RankSaveReport report{.write = {.seconds = std::nan("")}};
  EXPECT_EQ(error_of([&] { decode_rank_report(encode(report)); }).code(), ErrorCode::kCorrupt);
  report.write.seconds = -1;
  EXPECT_EQ(error_of([&] { decode_rank_report(encode(report)); }).code(), ErrorCode::kCorrupt);
}

TEST_F(SaveReportTest, EveryPhaseIsToldToTheSinkWhenItBeginsAndEndsAlsoOfFailures) {
  std::multiset<std::string> events;
  set_phase_sink([&](const PhaseEvent& event) {
    events.insert(std::string(name_of(kPhaseNames, event.phase)) + (!event.end     ? " begins"
                                                                    : event.failed ? " failed"
                                                                                   : " ends"));
  });
  run_ranks(2, [&](Communicator& comm) { save(state_of(comm.rank(), 3), path("a"), {}, comm); });
  EXPECT_THAT(events, UnorderedElementsAre("plan begins", "plan begins", "plan ends", "plan ends",
                                           "write begins", "write begins", "write ends",
                                           "write ends", "copy begins", "copy begins", "copy ends",
                                           "copy ends", "sync begins", "sync begins", "sync ends",
                                           "sync ends", "publish begins", "publish ends"));
  events.clear();
  error_of([&] { save(state_of(0, 1), path("a")); });
  EXPECT_THAT(events, UnorderedElementsAre("plan begins", "plan failed"));
  set_phase_sink({});
}

TEST_F(SaveReportTest, SaysWhyAPlanIsMadeAnew) {
  run_ranks(2, [&](Communicator& comm) {
    SavePlanCache cache;
    const auto saved = [&](const std::string& name, const StateDict& state) {
      return save(state, path(name), {}, comm, cache);
    };
    saved("a", state_of(comm.rank(), 3));
    EXPECT_TRUE(saved("b", state_of(comm.rank(), 3)).plan_cached);

    StateDict more = state_of(comm.rank(), 3);
    if (comm.rank() == 1)
      more["x"] = ShardedTensor::from_rank_offsets("x", Tensor::zeros(DType::kFloat32, {2}), {});
    const SaveReport grown = saved("c", more);
    EXPECT_FALSE(grown.plan_cached);
    EXPECT_EQ(grown.why_planned, "rank 1: key 'x' is new");
    EXPECT_EQ(saved("d", state_of(comm.rank(), 3)).why_planned,
              "rank 1: key 'x' is gone, or fewer parts of it are here");

    StateDict other = state_of(comm.rank(), 2);
    other["w2"] = ShardedTensor::from_rank_offsets("w2", Tensor::zeros(DType::kFloat32, {50}),
                                                   {{.axis = 0, .rank = comm.rank(), .count = 2}});
    EXPECT_EQ(saved("e", other).why_planned, "key 'w2' has another shape, dtype, place or replica");
    error_of([&] { saved("e", other); });
    EXPECT_EQ(saved("f", other).why_planned, "the save before failed");
  });
}

TEST_F(SaveReportTest, IsOneLineOfTheLog) {
  std::string log;
  set_log_sink([&](LogLevel level, std::string_view message) {
    if (level >= LogLevel::kNotice) log += std::string(message) + "\n";
  });
  run_ranks(2, [&](Communicator& comm) { save(state_of(comm.rank(), 3), path("a"), {}, comm); });
  EXPECT_THAT(log, MatchesRegex("saved '.*/a': [0-9.]+ KiB in 5 files in [0-9.]+ s \\(plan [0-9.]+ "
                                "s, not cached: first save; write [0-9.]+ s, [0-9.]+ .*B/s, "
                                "buffered, rank [01] was the last; publish [0-9.]+ s\\)\n"));
}

TEST_F(SaveReportTest, OfASaveInTheBackgroundHasTheCopies) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver({}, comm);
    const SaveReport report = saver.save(state_of(comm.rank(), 3), path("a")).wait();
    EXPECT_LE(report.stage.bytes, 2 * 3 * kTensorBytes)
        << "what the writer took first was not copied";
    EXPECT_EQ(report.files, 5U);
  });
}

TEST_F(SaveReportTest, ASlowDiskIsNotBoundByTheTimeoutOfTheCommunicator) {
  run_ranks(
      2,
      [&](Communicator& comm) {
        EXPECT_GT(save(state_of(comm.rank()), path("a"), slow(), comm).write.seconds, 1);
      },
      std::chrono::seconds(1));
}

TEST_F(SaveReportTest, ButBySaveTimeoutWhichSaysHowFarItIs) {
  run_ranks(2, [&](Communicator& comm) {
    SaveOptions options = slow();
    options.timeout = milliseconds(10);
    const CheckpointError error =
        error_of([&] { save(state_of(comm.rank()), path("a"), options, comm); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(
        error.message(),
        MatchesRegex("writing the data files did not finish within its time limit, 10 ms: rank "
                     "1 is still writing the data files "
                     "\\([0-9.]+ KiB of 234.4 KiB\\)"));
  });
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(SaveReportTest, ProgressIsToldAndASaveCanBeCancelledInTheMiddle) {
  std::stop_source stop;
  run_ranks(2, [&](Communicator& comm) {
    SaveHooks hooks;
    hooks.cancel = stop.get_token();
    if (comm.rank() == 0) {
      hooks.progress = [&](std::uint64_t done, std::uint64_t total) {
        EXPECT_EQ(total, 2 * kTensors * kTensorBytes);
        EXPECT_LT(done, total);
        stop.request_stop();
      };
    }
    const CheckpointError error =
        error_of([&] { save(state_of(comm.rank()), path("a"), slow(), comm, hooks); });
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    EXPECT_THAT(error.message(), HasSubstr("was cancelled by rank"));
  });
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(SaveReportTest, ASaveInTheBackgroundIsCancelledByAnyRankAndTheNextOneSucceeds) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(slow(), comm);
    const PendingSave pending = saver.save(state_of(comm.rank()), path("a"));
    if (comm.rank() == 1) pending.cancel();
    const CheckpointError error = error_of([&] { pending.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    EXPECT_THAT(error.message(), HasSubstr("was cancelled by rank 1"));
    saver.save(state_of(comm.rank(), 3), path("b")).wait();
  });
  EXPECT_FALSE(std::filesystem::exists(path("a")));
  EXPECT_TRUE(std::filesystem::exists(path("b")));
}

TEST_F(SaveReportTest, CancellingWhatIsPublishedChangesNothing) {
  const auto alone = single_rank();
  AsyncSaver saver({}, *alone);
  const PendingSave pending = saver.save(state_of(0, 0), path("a"));
  pending.wait();
  pending.cancel();
  EXPECT_EQ(pending.wait().files, 3U);
}

}  // namespace
}  // namespace dckpt::save_report_test
