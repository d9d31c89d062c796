#include "dist_checkpointing/training_root/latest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

#include "strategies/registry/registry.h"
#include "tests/support/code_of.h"
#include "tests/support/temp_dir.h"

namespace dckpt::latest_test {
namespace {

TEST(Latest, ABugOfAReaderIsNoReasonToCallACheckpointIncomplete) {
  register_strategy(
      LoadStrategyEntry{.name = "faulty",
                        .matches =
                            [](std::span<const FileInfo> entries) {
                              return entries.size() == 1 && entries.front().name == "faulty";
                            },
                        .open = [](const auto&, const auto&) -> std::unique_ptr<CheckpointReader> {
                          throw std::logic_error("of a strategy");
                        }});
  const TempDir root;
  std::filesystem::create_directories(root / "iter_0000100" / "faulty");
  EXPECT_EQ(code_of([&] { why_incomplete(root / "iter_0000100"); }), "internal");
}

}  // namespace
}  // namespace dckpt::latest_test
