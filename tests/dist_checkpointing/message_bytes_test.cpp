// The messages between ranks, byte for byte.

#include <gtest/gtest.h>

#include <string>

#include "dist_checkpointing/load/load_plan_messages.h"
#include "dist_checkpointing/ranks/rank_phases.h"
#include "dist_checkpointing/save/rank_save_report.h"
#include "dist_checkpointing/save/save_messages.h"
#include "mapping/base/error_wire.h"
#include "mapping/base/finding.h"
#include "mapping/base/hash.h"
#include "mapping/base/wire_fields.h"
#include "operations/inspect/differences.h"

namespace dckpt::testing::message_bytes_test {
namespace {

template <typename Write>
std::string hex(const Write& write) {
  Bytes bytes;
  WireWriter writer(bytes);
  write(writer);
  return to_hex(bytes);
}

TEST(MessageBytes, OfASave) {
  EXPECT_EQ(to_hex(encode(RankAssignment{".c.saving-1", "id", to_bytes("answer"), {1, 2, 5}})),
            "0b2e632e736176696e672d3102696406616e737765720201020201");
  EXPECT_EQ(to_hex(encode(WrittenByRank{
                .items = {.files = {"__3_0.distcp"},
                          .places = {{0, 4096, 700}, {0, 0, 12, StorageCodec::kZstd, 0xFFFFFFFF}}},
                .digests = {{"__3_0.distcp", {"abc", 5'000'000'000}}},
                .paths = {{"layers.2.w", {"layers", std::int64_t{2}, "w"}}, {"other", {"b"}}},
                .report = {.bytes = 712, .files = 2, .write = {0.5, 700}, .engine = "direct"}})),
            "1ec8050200000000000080808080808080f03fbc0500000006646972656374010c5f5f335f302e64"
            "697374637002008020bc05000000000c01ffffffff0f02000300066c61796572730102000177056f"
            "7468657201000162010c5f5f335f302e6469737463700361626380e497d012");
  EXPECT_EQ(to_hex(encode(SaveReport{.bytes = 300,
                                     .files = 2,
                                     .seconds = 1.5,
                                     .write = {2, 1.25, 1, 3, 300},
                                     .plan_cached = true,
                                     .why_planned = "first save",
                                     .engine = "direct"})),
            "ac020280808080808080fc3f00000000000000000000000000000080808080808080804080808080"
            "808080fa3f80808080808080f83f03ac0200000000000000000000010a6669727374207361766506"
            "64697265637400");
}

TEST(MessageBytes, OfALoadPlan) {
  const LoadPlan plan{
      {.target = 3,
       .tensor = ShardedTensor::from_flat_range("w", Tensor::meta(DType::kBFloat16, {4}), {2, 3},
                                                {4, 3}, {2, 0}, {1, 5}, {.replica_id = {0, 1}}),
       .wanted = DType::kFloat32},
      {.target = 300,
       .tensor = ShardedTensor::whole("v", Tensor::meta(DType::kFloat32, {2}),
                                      {.replica_id = 2, .allow_shape_mismatch = true}),
       .part = Box{{0}, {1}}}};
  const Bytes bytes = encode(plan);
  EXPECT_EQ(
      to_hex(bytes),
      "020307666c6f6174333201770862666c6f6174313602020302040302020001020201010200010000"
      "01010500ac0207666c6f61743332017607666c6f617433320102010201000101010001020001000101000101");
  EXPECT_EQ(encode(decode_load_plan(bytes)), bytes);
}

TEST(MessageBytes, OfFindingsAndErrors) {
  const Findings findings{{FindingCode::kNotFinite, "one", {"a", "b"}, "__0_0.distcp", 300},
                          {FindingCode::kReaders, "two"}};
  EXPECT_EQ(hex([&](WireWriter& writer) { write_to(writer, findings); }),
            "022b02036f6e6502016101620c5f5f305f302e64697374637001ac021d000374776f00000000");
  const CheckpointError error(ErrorCode::kCorrupt, "bad", {.key = "w", .offset = 7, .rank = 2});
  EXPECT_EQ(hex([&](WireWriter& writer) { write_to(writer, error); }), "030103626164010177000803");
}

TEST(MessageBytes, OfDifferences) {
  Differences differences{.found = {{.key = "w", .a = "1", .b = "2"},
                                    {.kind = Difference::Kind::kCommon, .path = "x"}}};
  differences.found[0].elements = ElementDifferences{.count = 2,
                                                     .elements = 300,
                                                     .first = {1, 200},
                                                     .first_a = "1",
                                                     .first_b = "2",
                                                     .max_abs = 0.5,
                                                     .by_layer = {0, 2}};
  EXPECT_EQ(hex([&](WireWriter& writer) { write_value(writer, differences); }),
            "010204017700013101320102ac020201c801013101320180808080808080f03f0200020600017800"
            "0000");
}

}  // namespace
}  // namespace dckpt::testing::message_bytes_test
