// A dry run of a conversion reports what the conversion would, and writes nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "operations/convert/convert.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/posix.h"
#include "tests/operations/convert/conversions.h"
#include "tests/support/golden.h"

namespace dckpt::dry_run_test {
namespace {

namespace fs = std::filesystem;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::refusal_of;

using DryRun = testing::Conversions;

TEST_F(DryRun, RefusesNamesThatCannotBeCreated) {
  std::ofstream(at("file")) << "x";
  fs::create_symlink("nowhere", at("link"));
  for (const fs::path& name : {at("file") / "x", at("file") / "x" / "y", at("link"), at("file")}) {
    SCOPED_TRACE(name);
    const auto refusal = [&](bool dry_run) {
      return refusal_of(
          [&] { convert(golden("mcore-0.14-synthetic"), name, {.dry_run = dry_run}); });
    };
    const auto [code, message] = refusal(true);
    EXPECT_EQ(code, refusal(false).first);
    EXPECT_NE(message, "no error");
  }
}

TEST_F(DryRun, TellsFilesAndSpace) {
  for (const ConvertOptions& options :
       {ConvertOptions{}, ConvertOptions{.target = {.strategy = "dcp", .ranks = 3}}}) {
    ConvertOptions dry = options;
    dry.dry_run = true;
    const ConvertReport expected =
        convert(golden("mcore-0.14-flattened-tp2pp2dp2"), at("out"), dry);
    EXPECT_FALSE(fs::exists(at("out")));
    const ConvertReport written =
        convert(golden("mcore-0.14-flattened-tp2pp2dp2"), at("out"), options);
    EXPECT_EQ(written.files, expected.files);
    std::uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(at("out"))) bytes += entry.file_size();
    EXPECT_EQ(written.disk_bytes, bytes);
    EXPECT_NEAR(static_cast<double>(expected.disk_bytes), static_cast<double>(bytes),
                0.01 * static_cast<double>(bytes));
    EXPECT_EQ(refusal_of([&] {
                convert(golden("mcore-0.14-flattened-tp2pp2dp2"), at("out"), dry);
              }).first,
              ErrorCode::kAlreadyExists)
        << "the name is taken";
    fs::remove_all(at("out"));
  }
}

TEST_F(DryRun, DoesNotNeedTheRoom) {
  class FullStorage final : public ForwardingStorage {
   public:
    using ForwardingStorage::ForwardingStorage;
    std::optional<std::uint64_t> available_space() const override { return 100; }
  };
  const Location out(std::make_shared<FullStorage>(posix_storage(directory_.path())), "out");
  const fs::path source = golden("mcore-0.14-flattened-tp2pp2dp2");
  EXPECT_THAT(refusal_of([&] { convert(source, out); }),
              Pair(ErrorCode::kIo, HasSubstr("but only 100 B are free")));
  EXPECT_GT(convert(source, out, {.dry_run = true}).disk_bytes, 100U);
}

}  // namespace
}  // namespace dckpt::dry_run_test
