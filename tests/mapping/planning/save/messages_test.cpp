#include "mapping/planning/save/messages.h"

#include <gtest/gtest.h>

#include "mapping/base/error.h"

namespace dckpt::messages_test {
namespace {

SavePlan plan_with_everything() {
  TensorShard flat{.key = "m", .properties = {}, .global_shape = {4, 6}, .box = {{2, 0}, {2, 6}}};
  flat.range = TensorShard::Range{3, 11};
  flat.fragmentation = Shape{2, 1};
  TensorShard scalar{.key = "scalar", .properties = {}, .global_shape = {}, .box = {}};
  scalar.properties.requires_grad = true;
  scalar.properties.pin_memory = true;
  scalar.properties.memory_format = TensorProperties::MemoryFormat::kPreserve;
  TensorShard replica{
      .key = "replica", .properties = {}, .global_shape = {3, 2}, .box = whole(Shape{3, 2})};
  replica.main_replica = false;
  const ObjectShard object{"rng/shard_0_1", 0, true, 7, "rng", {1}, {0}};
  return plan_local_save(std::vector<LocalShard>{flat, scalar, object, replica},
                         FlattenedForm::kMegatron);
}

TEST(PlanOnTheWire, ComesBackAsItWas) {
  EXPECT_EQ(decode_plan(encode_plan(plan_with_everything())), plan_with_everything());
}

TEST(PlanOnTheWire, IsRefusedWhenCutShortAnywhere) {
  const Bytes bytes = encode_plan(plan_with_everything());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(decode_plan(ByteView(bytes).first(length)), CheckpointError)
        << "cut at " << length;
  }
}

TEST(PlanOnTheWire, IsRefusedWithBytesBehindIt) {
  Bytes bytes = encode_plan(plan_with_everything());
  bytes.push_back(std::byte{0});
  EXPECT_THROW(decode_plan(bytes), CheckpointError);
}

TEST(PlanOnTheWire, NeverCrashesOnADamagedByte) {
  const Bytes good = encode_plan(plan_with_everything());
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int value : {0x00, 0x7F, 0x80, 0xFF}) {
      Bytes bytes = good;
      bytes[at] = static_cast<std::byte>(value);
      try {
        decode_plan(bytes);
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      }
    }
  }
}

TEST(ProposalOnTheWire, SaysWhetherThePlanHasChanged) {
  const Bytes plan = encode_plan(plan_with_everything());
  EXPECT_FALSE(decode_proposal(encode_proposal(7, plan)).unchanged);
  const Bytes unchanged = encode_unchanged_proposal(7, fingerprint_of(plan));
  EXPECT_TRUE(decode_proposal(unchanged).unchanged);
  EXPECT_TRUE(refers_to(decode_proposal(unchanged), fingerprint_of(plan)));
  for (const int kind : {2, 0x80, 0xFF}) {
    Bytes bytes = unchanged;
    bytes[1] = static_cast<std::byte>(kind);
    try {
      decode_proposal(bytes);
      FAIL() << "accepted kind " << kind;
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
  }
}

}  // namespace
}  // namespace dckpt::messages_test
