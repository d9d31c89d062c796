// tests/mapping/torch/dlpack_test.cpp compares with the DLPack of torch.

#include "mapping/state/dlpack.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "tests/support/expect_error.h"

// DLPack's structures, as a producer in C fills them.
struct DLManagedTensorVersioned {
  std::uint32_t major, minor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  void* data;
  std::int32_t device_type, device_id, ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

namespace dckpt::dlpack_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

/// A float32 (2, 3) tensor whose deleter counts its calls.
struct Produced {
  std::vector<float> elements{0, 1, 2, 3, 4, 5};
  std::array<std::int64_t, 2> shape{2, 3};
  std::array<std::int64_t, 2> strides{3, 1};
  int deleted = 0;
  DLManagedTensorVersioned managed{.major = 1,
                                   .minor = 1,
                                   .manager_ctx = this,
                                   .deleter =
                                       [](DLManagedTensorVersioned* self) {
                                         ++static_cast<Produced*>(self->manager_ctx)->deleted;
                                       },
                                   .flags = 0,
                                   .data = elements.data(),
                                   .device_type = 1,
                                   .device_id = 0,
                                   .ndim = 2,
                                   .code = 2,
                                   .bits = 32,
                                   .lanes = 1,
                                   .shape = shape.data(),
                                   .strides = strides.data(),
                                   .byte_offset = 0};
};

TEST(Dlpack, SharesTheElementsUntilTheLastHandleIsGone) {
  Produced produced;
  {
    const Tensor tensor = from_dlpack(&produced.managed);
    EXPECT_EQ(to_string(tensor), "float32 (2, 3)");
    const Tensor column = tensor.narrow(1, 2, 1);
    EXPECT_EQ(column.data<float>(), produced.elements.data() + 2);
    EXPECT_EQ(produced.deleted, 0);
  }
  EXPECT_EQ(produced.deleted, 1);
}

TEST(Dlpack, WithoutStridesItIsRowMajorAndTheOffsetIsInBytes) {
  Produced produced;
  produced.shape = {1, 2};
  produced.managed.strides = nullptr;
  produced.managed.byte_offset = 4 * sizeof(float);
  const Tensor tensor = from_dlpack(&produced.managed);
  EXPECT_THAT(tensor.strides(), ElementsAre(2, 1));
  EXPECT_EQ(*tensor.data<float>(), 4);
}

TEST(Dlpack, KnowsWhereTheElementsAre) {
  Produced produced;
  produced.managed.device_type = 2;
  produced.managed.device_id = 3;
  EXPECT_EQ(from_dlpack(&produced.managed).device(), (Device{Device::Kind::kCuda, 3}));
  produced.managed.device_type = 3;  // page-locked host memory
  EXPECT_EQ(from_dlpack(&produced.managed).device(), Device{});
}

TEST(Dlpack, EmptyTensorsAndScalarsNeedNoShapeOrMemory) {
  Produced produced;
  produced.managed.ndim = 0;
  produced.managed.shape = produced.managed.strides = nullptr;
  EXPECT_EQ(to_string(from_dlpack(&produced.managed)), "float32 ()");
  Produced empty;
  empty.shape = {0, 3};
  empty.managed.data = nullptr;
  EXPECT_EQ(to_string(from_dlpack(&empty.managed)), "float32 (0, 3)");
}

TEST(Dlpack, WhatIsReadOnlyCanBeSavedOnly) {
  Produced produced;
  produced.managed.flags = 1;
  EXPECT_THAT(error_of([&] { from_dlpack(&produced.managed); }).message(), HasSubstr("read-only"));
  EXPECT_EQ(produced.deleted, 0);
  EXPECT_EQ(to_string(from_dlpack(&produced.managed, DlpackUse::kSave)), "float32 (2, 3)");
}

TEST(Dlpack, KnowsWhatIsImportedForSavingOnly) {
  Produced produced;
  {
    const Tensor tensor = from_dlpack(&produced.managed, DlpackUse::kSave);
    EXPECT_TRUE(is_save_only(tensor));
    EXPECT_TRUE(is_save_only(tensor.narrow(1, 0, 1)));
    DLManagedTensorVersioned* const exported = to_dlpack(tensor);
    EXPECT_EQ(exported->flags, 1U) << "read-only";
    exported->deleter(exported);
    EXPECT_THAT(error_of([&] { to_dlpack_unversioned(tensor); }).message(),
                HasSubstr("export it with to_dlpack()"));
    EXPECT_EQ(produced.deleted, 0);
  }
  EXPECT_EQ(produced.deleted, 1);
  const Tensor tensor = from_dlpack(&produced.managed);
  EXPECT_FALSE(is_save_only(tensor));
  DLManagedTensorVersioned* const exported = to_dlpack(tensor);
  EXPECT_EQ(exported->flags, 0U);
  exported->deleter(exported);
  EXPECT_FALSE(is_save_only(Tensor::zeros(DType::kFloat32, {2})));
}

TEST(Dlpack, RefusesWhatContradictsItselfAndLeavesItToTheCaller) {
  const auto refuses = [](auto&& damage, ErrorCode code, const char* message) {
    Produced produced;
    damage(produced);
    const CheckpointError error = error_of([&] { from_dlpack(&produced.managed); });
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(message));
    EXPECT_EQ(produced.deleted, 0);
  };
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() / 2;
  const auto invalid = ErrorCode::kInvalidArgument;
  refuses([](Produced& p) { p.managed.ndim = -1; }, invalid, "-1 axes");
  refuses([](Produced& p) { p.managed.ndim = 65; }, invalid, "65 axes");
  refuses([](Produced& p) { p.managed.shape = nullptr; }, invalid, "no shape");
  refuses([](Produced& p) { p.shape[0] = -2; }, invalid, "negative");
  refuses([](Produced& p) { p.shape = {kHuge, 4}; }, invalid, "address space");
  refuses([](Produced& p) { p.strides[0] = kHuge; }, invalid, "address space");
  refuses([](Produced& p) { p.strides[1] = -1; }, invalid, "negative");
  refuses([](Produced& p) { p.managed.data = nullptr; }, invalid, "no memory");
  refuses(
      [](Produced& p) {
        p.managed.device_type = 2;
        p.managed.device_id = -1;
      },
      invalid, "number -1");
  const auto unsupported = ErrorCode::kUnsupported;
  refuses([](Produced& p) { p.managed.major = 2; }, unsupported, "version 2.1; expected 1.x");
  refuses([](Produced& p) { p.managed.device_type = 8; }, unsupported, "type 8");
  refuses([](Produced& p) { p.managed.lanes = 4; }, unsupported, "4 lanes");
  refuses([](Produced& p) { p.managed.code = 99; }, unsupported, "type code 99");
  EXPECT_THAT(
      error_of([] { from_dlpack(static_cast<DLManagedTensorVersioned*>(nullptr)); }).message(),
      HasSubstr("null"));
}

TEST(Dlpack, ADescriptionKeepsTheElementsAlive) {
  auto owner = std::make_shared<std::vector<std::uint16_t>>(6);
  const std::weak_ptr<const void> alive = owner;
  DLManagedTensorVersioned* const managed =
      to_dlpack({DType::kBFloat16, {2, 3}, {1, 2}, owner->data(), std::move(owner)});
  EXPECT_EQ(managed->code, 4);
  EXPECT_EQ(managed->strides[1], 2);
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(to_string(from_dlpack(managed)), "bfloat16 (2, 3)");  // the handle is released at once
  EXPECT_TRUE(alive.expired());
}

TEST(Dlpack, ExportsNothingThatHasNoElementsOrNoName) {
  EXPECT_EQ(error_of([] { to_dlpack(Tensor::meta(DType::kFloat32, {2})); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] { to_dlpack(Tensor::zeros(DType::kQInt8, {2})); }).code(),
            ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace dckpt::dlpack_test
