#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/comm/threads.h"
#include "tests/support/page_cache.h"
#include "tests/support/temp_dir.h"

namespace dckpt::load_report_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// Two ranks request all of a tensor of 64 KiB.
class LoadReportTest : public ::testing::Test {
 protected:
  LoadReportTest() {
    StateDict state = wanted();
    save(state, directory_ / "a");
  }

  static StateDict wanted(std::int64_t rows = 64) {
    StateDict state;
    state["w"] = ShardedTensor::from_box("w", Tensor::zeros(DType::kFloat32, {rows, 256}),
                                         {64, 256}, {0, 0});
    return state;
  }

  std::vector<LoadReport> loaded(std::int64_t rows, const LoadOptions& options,
                                 std::vector<LoadPlanCache>& caches) {
    std::vector<LoadReport> reports(2);
    run_ranks(2, [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      StateDict state = wanted(comm.rank() == 1 ? rows : 64);
      reports[rank] = load(state, directory_ / "a", options, comm, caches[rank]);
    });
    return reports;
  }

  TempDir directory_;
  std::vector<LoadPlanCache> caches_ = std::vector<LoadPlanCache>(2);
};

TEST_F(LoadReportTest, HasThePhasesOfAllRanksOnEach) {
  const LoadOptions alone{.validate_access_integrity = false};
  const std::vector<LoadReport> reports = loaded(64, alone, caches_);
  const LoadReport& report = reports[0];
  EXPECT_EQ(report.open, reports[1].open);
  EXPECT_EQ(report.read, reports[1].read);
  EXPECT_EQ(report.seconds, reports[1].seconds);
  EXPECT_EQ(report.read.bytes, reports[0].bytes_read + reports[1].bytes_read);
  EXPECT_GT(report.open.minimum, 0);
  EXPECT_GE(report.open.median, report.open.minimum);
  EXPECT_GT(report.read.seconds, 0);
  EXPECT_EQ(report.exchange, PhaseReport{});
  EXPECT_GT(report.seconds, report.read.minimum);
  EXPECT_THAT(to_string(report), AllOf(HasSubstr("(open "), HasSubstr("load.parallel is off"),
                                       HasSubstr("was the last)")));
}

TEST_F(LoadReportTest, SaysHowTheRanksHaveRead) {
  const auto report_of = [&](const Shape& shape, const Shape& offsets, const LoadOptions& options) {
    std::vector<LoadReport> reports(2);
    run_ranks(2, [&](Communicator& comm) {
      StateDict state;
      state["w"] = ShardedTensor::from_box("w", Tensor::zeros(DType::kFloat32, shape), {2048, 2048},
                                           offsets);
      reports[static_cast<std::size_t>(comm.rank())] =
          load(state, directory_ / "large", options, comm);
    });
    EXPECT_EQ(reports[0].engine, reports[1].engine);
    return reports[1];
  };
  StateDict large;
  large["w"] = ShardedTensor::from_box("w", Tensor::zeros(DType::kFloat32, {2048, 2048}),
                                       {2048, 2048}, {0, 0});
  save(large, directory_ / "large");
  LoadOptions options{.validate_access_integrity = false, .engine = ReadEngine::kBuffered};
  EXPECT_EQ(report_of({2048, 2048}, {0, 0}, options).engine, "buffered");
  EXPECT_EQ(report_of({0, 2048}, {0, 0}, options).engine, "");
  const LoadReport columns = report_of({2048, 128}, {0, 256}, options);
  EXPECT_EQ(columns.engine, "mapped");
  EXPECT_EQ(columns.bytes_mapped, 2048 * 128 * sizeof(float));

  options.engine = ReadEngine::kDirect;
  options.staging = std::uint64_t{16} << 20;  // the minimum for two threads
  const bool has_direct = testing::can_be_cold(directory_ / "large" / "__0_0.distcp");
  const LoadReport direct = report_of({2048, 2048}, {0, 0}, options);
  EXPECT_EQ(direct.engine, has_direct ? "direct" : "buffered");
  EXPECT_THAT(to_string(direct), HasSubstr(", " + direct.engine + ", rank "));
  options.parallel.enabled = true;  // in pieces that are too short for parallel loads
  EXPECT_EQ(report_of({2048, 2048}, {0, 0}, options).engine, "buffered");
}

TEST_F(LoadReportTest, SaysWhetherThePlanWasReusedOrWhyNot) {
  const LoadOptions shared{.parallel = {.enabled = true, .exchange = Exchange::kAllToAll},
                           .validate_access_integrity = false};
  EXPECT_EQ(loaded(64, shared, caches_)[0].why_planned, "first load");
  const LoadReport again = loaded(64, shared, caches_)[1];
  EXPECT_TRUE(again.plan_cached);
  EXPECT_EQ(again.why_planned, "");
  EXPECT_GT(again.exchange.seconds, 0);
  const LoadReport other = loaded(32, shared, caches_)[0];
  EXPECT_FALSE(other.plan_cached);
  EXPECT_EQ(other.why_planned, "rank 1: other parts are requested");
}

TEST_F(LoadReportTest, ItsPhasesAreToldToTheSink) {
  std::multiset<std::string> events;
  set_phase_sink([&](const PhaseEvent& event) {
    events.insert(std::string(event.call) + " " + std::string(name_of(kPhaseNames, event.phase)) +
                  (event.end ? " ends" : " begins"));
  });
  const auto are_told = UnorderedElementsAre("load open begins", "load open ends",
                                             "load read begins", "load read ends");
  StateDict state = wanted();
  load(state, directory_ / "a");
  EXPECT_THAT(std::exchange(events, {}), are_told);
  (void)load_state_dict(directory_ / "a");
  EXPECT_THAT(std::exchange(events, {}), are_told) << "without a state dict, too";
  (void)load_plain_tensors(directory_ / "a");
  set_phase_sink({});
  EXPECT_THAT(events, are_told);
}

}  // namespace
}  // namespace dckpt::load_report_test
