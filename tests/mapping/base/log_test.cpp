#include "mapping/base/log.h"

#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

namespace dckpt::log_test {
namespace {

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    set_log_sink(
        [this](LogLevel level, std::string_view message) { seen_.emplace_back(level, message); });
  }
  ~LogTest() override { set_log_sink({}); }
  std::vector<std::pair<LogLevel, std::string>> seen_;
};

TEST_F(LogTest, SinkSeesEveryLevel) {
  log(LogLevel::kDebug, "a");
  log_warning("b");
  EXPECT_THAT(seen_, ::testing::ElementsAre(std::pair(LogLevel::kDebug, "a"),
                                            std::pair(LogLevel::kWarning, "b")));
}

TEST_F(LogTest, SinkIsCalledByOneThreadAtATime) {
  const auto work = [] {
    for (int i = 0; i < 500; ++i) log_info("x");
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(seen_.size(), 1000u);
}

TEST_F(LogTest, DefaultSinkPrintsNoticesAndWarnings) {
  set_log_sink({});
  ::testing::internal::CaptureStderr();
  log_info("quiet");
  log_notice("saved");
  log_warning("loud");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "dckpt: saved\ndckpt: warning: loud\n");
}

}  // namespace
}  // namespace dckpt::log_test
