#include "mapping/base/finding.h"

#include <gtest/gtest.h>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/wire.h"

namespace dckpt::finding_test {
namespace {

const Finding kKept{FindingCode::kValuesKept, "'lr' is kept", {"lr"}};
const Finding kLost{FindingCode::kDataLost, "a file is short", {}, "a.bin", 7};

TEST(Findings, TravelBetweenRanks) {
  const Findings findings{kKept, kLost};
  Bytes bytes;
  WireWriter writer(bytes);
  write_to(writer, findings);
  WireReader reader(bytes, "findings");
  Findings arrived;
  read_from(reader, arrived);
  EXPECT_EQ(arrived, findings);
  EXPECT_NO_THROW(reader.finish());
}

TEST(Findings, WithUnknownCodesAreRefused) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(1);
  writer.number(kFindingCodeNames.size());
  WireReader reader(bytes, "findings");
  Findings arrived;
  EXPECT_THROW(read_from(reader, arrived), CheckpointError);
}

TEST(Findings, AreAsSeriousAsTheirCodesUnlessTheySayOtherwise) {
  EXPECT_EQ(kKept.severity, Severity::kWarning);
  EXPECT_EQ((Finding{FindingCode::kReaders, "0.15"}.severity), Severity::kNote);
  EXPECT_EQ((Finding{FindingCode::kElementsMissing, "a hole"}.severity), Severity::kError);
  Finding lost = kLost;
  lost.severity = Severity::kError;
  EXPECT_NE(lost, kLost);
}

TEST(Findings, OfSomeKindsAreRefused) {
  EXPECT_NO_THROW(refuse({kKept, kLost}, {FindingCode::kReaders}, "refused:"));
  try {
    refuse({kKept, kLost}, {FindingCode::kDataLost}, "refused:");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(error.message(), "refused:\n  data-lost: a file is short");
  }
}

TEST(Findings, AreLoggedAsWarningsAndKept) {
  std::string warnings;
  set_log_sink([&](LogLevel level, std::string_view text) {
    if (level == LogLevel::kWarning) warnings += text;
  });
  Findings findings;
  warn(findings, kKept);
  set_log_sink({});
  EXPECT_EQ(warnings, kKept.message);
  EXPECT_EQ(findings, Findings{kKept});
}

}  // namespace
}  // namespace dckpt::finding_test
