#include "strategies/views/dequantized_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "mapping/geometry/cast.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/rearranged_reader.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"

namespace dckpt::dequantized_reader_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;
using ::testing::Pair;

// Values of float8_e4m3fn by its definition: sign, exponent + 7, three bits.
constexpr std::uint8_t kOne = 0x38, kOneAndAHalf = 0x3C, kTwo = 0x40, kMinusOne = 0xB8,
                       kLargest = 0x7E;  // 448

template <typename T>
std::vector<T> read(const CheckpointReader& reader, std::size_t tensor, const Box& box,
                    const ReadOptions& options = {}) {
  const Tensor part = read_box(reader, tensor, box, options);
  return {part.data<const T>(), part.data<const T>() + part.numel()};
}

/// Returns a weight of 3 × 5 in two pieces, blocks of 2 × 2, and a bias.
std::unique_ptr<FakeReader> small_model() {
  auto source = std::make_unique<FakeReader>();
  source
      ->tensor<std::uint8_t>("w", DType::kFloat8E4M3FN, {3, 5},
                             {kOne, kTwo, kOne, kTwo, kOneAndAHalf,       //
                              kOne, kTwo, kMinusOne, kTwo, kOneAndAHalf,  //
                              kOne, kOneAndAHalf, kOne, kOneAndAHalf, kLargest},
                             {{{0, 0}, {3, 3}}, {{0, 3}, {3, 2}}})
      .tensor<float>("w_scale_inv", DType::kFloat32, {2, 3}, {1, 10, 100, 0.5F, 0.1F, 3})
      .tensor<float>("bias", DType::kFloat32, {2}, {7, 8})
      .write();
  return source;
}

TEST(DequantizedReader, MultipliesEveryBlockWithItsScale) {
  const auto reader = dequantized_reader(
      small_model(), {.suffix = "_scale_inv", .rows = 2, .columns = 2, .dtype = DType::kFloat32});
  ASSERT_EQ(reader->metadata().tensors.size(), 2);
  EXPECT_THAT(read<float>(*reader, 0, whole(Shape{3, 5})),
              ElementsAre(1, 2, 10, 20, 150,   //
                          1, 2, -10, 20, 150,  //
                          0.5F, 0.75F, 0.1F, 1.5F * 0.1F, 1344));
  EXPECT_THAT(read<float>(*reader, 0, {{1, 2}, {2, 2}}), ElementsAre(-10, 20, 0.1F, 1.5F * 0.1F));
  EXPECT_THAT(read<float>(*reader, 1, whole(Shape{2})), ElementsAre(7, 8));
}

TEST(DequantizedReader, RoundsToNearestEven) {
  const auto reader =
      dequantized_reader(small_model(), {.suffix = "_scale_inv", .rows = 2, .columns = 2});
  EXPECT_EQ(reader->metadata().tensors[0].properties.dtype, DType::kBFloat16);
  // 0.1F is 0x3DCCCCCD and 0.15F 0x3E19999A; 1344 is exact.
  EXPECT_THAT(read<std::uint16_t>(*reader, 0, {{2, 2}, {1, 3}}),
              ElementsAre(0x3DCD, 0x3E1A, std::bit_cast<std::uint32_t>(1344.0F) >> 16));
}

TEST(DequantizedReader, RefusesValuesThatWouldBeInfinite) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<std::uint8_t>("w", DType::kFloat8E4M3FN, {1, 2}, {kOne, kLargest})
      .tensor<float>("w_scale_inv", DType::kFloat32, {1, 1}, {1000})
      .write();
  const auto reader =
      dequantized_reader(std::move(source), {.suffix = "_scale_inv", .dtype = DType::kFloat16});
  EXPECT_THAT(error_of([&] {
                read<std::uint16_t>(*reader, 0, whole(Shape{1, 2}));
              }).message(),
              HasSubstr("a weight is worth 448000, which would be infinite in float16"));
}

TEST(DequantizedReader, PiecesOfAnySizeAreThoseOfTheWhole) {
  constexpr std::int64_t kRows = 300, kColumns = 700;
  std::vector<std::uint8_t> codes(kRows * kColumns);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::uint8_t>(i * 131 % 251 % 0x7F);
  std::vector<float> scales(3 * 6);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.3F + static_cast<float>(i);
  const auto open = [&] {
    auto source = std::make_unique<FakeReader>();
    source->tensor("w", DType::kFloat8E4M3FN, {kRows, kColumns}, codes)
        .tensor("w.scales", DType::kFloat32, {3, 6}, scales)
        .write();
    return dequantized_reader(std::move(source), {.suffix = ".scales"});
  };
  const auto reader = open();
  const auto all = read<std::uint16_t>(*reader, 0, whole(Shape{kRows, kColumns}));
  for (const Box& box : {Box{{0, 0}, {300, 1}}, Box{{299, 699}, {1, 1}}, Box{{127, 126}, {3, 300}},
                         Box{{5, 0}, {200, 700}}}) {
    const auto part = read<std::uint16_t>(*reader, 0, box, {.threads = 1, .staging = 1000});
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t row = box.offsets[0] + at / box.sizes[1];
      const std::int64_t column = box.offsets[1] + at % box.sizes[1];
      ASSERT_EQ(part[i], all[static_cast<std::size_t>(row * kColumns + column)]);
    }
  }
  // The tensor is renamed and transposed, as by maps.
  const auto transposed =
      rearranged_reader(open(), {.tensors = {{.key = "t",
                                              .properties = {.dtype = DType::kBFloat16},
                                              .size = {kColumns, kRows},
                                              .parts = {{.target = whole(Shape{kColumns, kRows}),
                                                         .source = whole(Shape{kRows, kColumns}),
                                                         .axes = {1, 0}}}}}});
  const auto turned = read<std::uint16_t>(*transposed, 0, whole(Shape{kColumns, kRows}));
  for (std::size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(turned[i % kColumns * kRows + i / kColumns], all[i]);
}

TEST(DequantizedReader, ExpertsInOneTensorHaveScalesOfTheirOwn) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<std::uint8_t>("w", DType::kFloat8E4M3FN, {2, 2, 2}, std::vector(8, kOne))
      .tensor<float>("w_scale", DType::kFloat32, {2, 1, 2}, {1, 2, 3, 4})
      .write();
  const auto reader = dequantized_reader(
      std::move(source), {.suffix = "_scale", .rows = 2, .columns = 1, .dtype = DType::kFloat32});
  EXPECT_THAT(read<float>(*reader, 0, whole(Shape{2, 2, 2})), ElementsAre(1, 2, 1, 2, 3, 4, 3, 4));
}

/// compressed-tensors, FBGEMM and ModelOpt: a scale for each row, or for a whole weight.
TEST(DequantizedReader, ScalesOfWeightsMayBeForRowsOrAll) {
  using enum ScaledPart;
  struct Case {
    std::string suffix;
    Shape scales;
    std::vector<float> values, expected;  // expected: of codes that are all 1; empty: refused
    std::optional<ScaledPart> part{};
    Shape weight{2, 3};
  };
  const std::vector<float> rows{2, 2, 2, 5, 5, 5}, all(6, 7.0F);
  for (const auto& [suffix, shape, values, expected, part, size] : std::vector<Case>{
           {"_scale", {2, 1}, {2, 5}, rows},
           {"_scale", {2, 1}, {2, 5}, rows, kRow},
           {"_scale", {2, 1}, {2, 5}, {}, kMatrix},
           {"_scale", {2, 1}, {2, 5}, {}, kBlock},
           {"_scale", {2}, {2, 5}, rows},
           {"_scale", {}, {7}, all},
           {"_scale", {1}, {7}, all, kMatrix},
           {"_scale", {1}, {7}, {}, kRow},
           {"_scale", {1, 2}, {2, 5}, {2, 2, 5, 2, 2, 5}},  // blocks of 2 × 2
           {"_scale", {1, 2}, {2, 5}, {2, 2, 5, 2, 2, 5}, kBlock},
           {"_scale", {3, 1}, {1, 2, 3}, {}},
           {"_scale", {1, 2, 1}, {2, 5}, {}},
           {"_scale", {2}, {2, 5}, rows, std::nullopt, {2, 1, 3}},  // a scale for each expert
           {"_scale", {2, 1, 1}, {2, 5}, rows, kMatrix, {2, 1, 3}},
           {"_scale", {1, 2, 1}, {2, 5}, rows, kRow, {1, 2, 3}},
           {"_scale", {1, 2}, {2, 5}, rows, kRow, {1, 2, 3}},
           // under the map's suffix, unless quantization_config says otherwise
           {"_scale_inv", {1, 2}, {2, 5}, {2, 2, 5, 2, 2, 5}},
           {"_scale_inv", {2, 1}, {2, 5}, {}},
           {"_scale_inv", {}, {7}, {}},
           {"_scale_inv", {}, {7}, all, kMatrix},
           {"_scale_inv", {2, 1}, {2, 5}, rows, kRow},
       }) {
    auto source = std::make_unique<FakeReader>();
    source->tensor("w", DType::kFloat8E4M3FN, size, std::vector(6, kOne))
        .tensor("w" + suffix, DType::kFloat32, shape, values)
        .write();
    const BlockScales scales{
        .suffix = "_scale_inv", .rows = 2, .columns = 2, .dtype = DType::kFloat32, .part = part};
    SCOPED_TRACE(suffix + to_string(shape) + to_string(size));
    if (expected.empty()) {
      EXPECT_THAT(
          error_of([&] { dequantized_reader(std::move(source), scales); }).message(),
          HasSubstr("'w" + suffix + "' has the shape " + to_string(shape) + ", but 'w' has "));
      continue;
    }
    const auto reader = dequantized_reader(std::move(source), scales);
    ASSERT_EQ(reader->metadata().tensors.size(), 1);
    EXPECT_EQ(read<float>(*reader, 0, whole(size)), expected);
  }
}

TEST(DequantizedReader, IgnoredTensorsStayAsTheyAre) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<std::uint8_t>("w", DType::kFloat8E4M3FN, {1, 1}, {kTwo})
      .tensor<float>("w_scale", DType::kFloat32, {1, 1}, {3})
      .tensor<float>("input_scale", DType::kFloat32, {}, {1})
      .tensor<std::uint8_t>("table", DType::kFloat8E4M3FN, {1}, {kTwo})
      .write();
  const auto reader = dequantized_reader(
      std::move(source),
      {.suffix = "_scale", .dtype = DType::kFloat32, .is_ignored = [](const std::string& key) {
         return key == "input_scale" || key == "table";
       }});
  ASSERT_EQ(reader->metadata().tensors.size(), 3);
  EXPECT_THAT(read<float>(*reader, 0, whole(Shape{1, 1})), ElementsAre(6));
  EXPECT_EQ(reader->metadata().tensors[2].properties.dtype, DType::kFloat8E4M3FN);
}

TEST(DequantizedReader, FormsThatCannotBeReadAreNamed) {
  struct Case {
    std::vector<std::pair<std::string, DType>> tensors;
    std::string name;
  };
  for (const auto& [tensors, name] : std::vector<Case>{
           {{{"a.qweight", DType::kInt32}, {"a.qzeros", DType::kInt32}, {"a.g_idx", DType::kInt32}},
            "GPTQ ('a.g_idx' beside 'a.qweight')"},
           {{{"a.qweight", DType::kInt32}, {"a.qzeros", DType::kInt32}},
            "AWQ ('a.qzeros' beside 'a.qweight')"},
           {{{"a.weight_packed", DType::kUInt8},
             {"a.weight_scale", DType::kFloat8E4M3FN},
             {"a.weight_global_scale", DType::kFloat32}},
            "NVFP4 of compressed-tensors ('a.weight_global_scale' beside 'a.weight_packed')"},
           {{{"a.weight_packed", DType::kUInt8}, {"a.weight_scale", DType::kUInt8}},
            "MXFP4 of compressed-tensors ('a.weight_scale' beside 'a.weight_packed')"},
           {{{"a.weight", DType::kInt8}, {"a.weight_scale", DType::kBFloat16}},
            "integers of 8 bits of compressed-tensors ('a.weight_scale' beside 'a.weight')"},
           {{{"a.weight", DType::kUInt8}, {"a.weight.absmax", DType::kFloat32}},
            "bitsandbytes with 4 bits ('a.weight.absmax' beside 'a.weight')"},
           {{{"a.weight", DType::kInt8}, {"a.SCB", DType::kFloat32}},
            "bitsandbytes with 8 bits ('a.SCB' beside 'a.weight')"},
           {{{"a.weight_packed", DType::kInt32}, {"a.weight_scale", DType::kBFloat16}}, ""},
           {{{"a.weight", DType::kFloat8E4M3FN}, {"a.weight_scale", DType::kBFloat16}}, ""},
           {{{"a.weight", DType::kBFloat16}}, ""},
       }) {
    Metadata metadata;
    for (const auto& [key, dtype] : tensors) {
      TensorStorageMetadata& tensor = metadata.tensors.emplace_back();
      tensor.key = key;
      tensor.properties.dtype = dtype;
    }
    EXPECT_EQ(unreadable_form(metadata), name);
  }
}

TEST(DequantizedReader, OneScaleMayBeForAll) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<std::uint8_t>("w", DType::kFloat8E4M3FN, {2, 2}, {kOne, kTwo, kOne, kTwo})
      .tensor<float>("w_scale", DType::kFloat32, {}, {3})
      .write();
  const auto reader = dequantized_reader(std::move(source), {.suffix = "_scale",
                                                             .rows = 1'000'000'000,
                                                             .columns = 1'000'000'000,
                                                             .dtype = DType::kFloat32});
  EXPECT_THAT(read<float>(*reader, 0, whole(Shape{2, 2})), ElementsAre(3, 6, 3, 6));
}

TEST(DequantizedReader, WeightsAndScalesThatDoNotFitAreListed) {
  auto source = std::make_unique<FakeReader>();
  const std::vector<std::uint8_t> codes(128 * 130, kOne);
  source->tensor("alone", DType::kFloat8E4M3FN, {128, 130}, codes)
      .tensor("cut", DType::kFloat8E4M3FN, {128, 130}, codes)
      .tensor<float>("cut_scale", DType::kFloat32, {1, 1}, {1})
      .tensor<float>("left_scale", DType::kFloat32, {1, 1}, {1})
      .tensor<std::uint16_t>("plain", DType::kBFloat16, {1, 1}, {1})
      .tensor<float>("plain_scale", DType::kFloat32, {1, 1}, {1})
      .tensor<std::uint8_t>("flat", DType::kFloat8E4M3FN, {1}, {kOne})
      .tensor<float>("flat_scale", DType::kFloat32, {1}, {1})
      .tensor<std::uint8_t>("whole", DType::kFloat8E4M3FN, {1, 1}, {kOne})
      .tensor<std::int32_t>("whole_scale", DType::kInt32, {1, 1}, {1})
      .write();
  const CheckpointError error =
      error_of([&] { dequantized_reader(std::move(source), {.suffix = "_scale"}); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_EQ(
      error.message(),
      "cannot dequantize the weights. The map expects the scales of a weight X under X_scale, one "
      "for each 128 × 128 block, but:\n"
      "  'alone' is float8_e4m3fn, but its scales 'alone_scale' are missing\n"
      "  'cut_scale' has the shape (1, 1), but 'cut' has (128, 130); expected a scale for "
      "each block of 128 × 128: (1, 2)\n"
      "  'left_scale': there is no 'left' that it scales\n"
      "  'plain' has scales, but is bfloat16, not float8\n"
      "  'flat_scale' has the shape (1,), but 'flat' has (1,); expected a scale for each block "
      "of 128 × 128\n"
      "  'whole_scale' is int32, expected float32 or another float");
  EXPECT_THAT(error_of([&] {
                dequantized_reader(small_model(), {.suffix = "_scale_inv", .rows = 0});
              }).message(),
              HasSubstr("0 × 128"));
}

/// Returns the bytes of pairs of codes from 0 to 15.
std::vector<std::uint8_t> codes_of(std::size_t bytes) {
  std::vector<std::uint8_t> codes(bytes);
  for (std::size_t i = 0; i < bytes; ++i) codes[i] = static_cast<std::uint8_t>(i * 37 % 256);
  return codes;
}

TEST(DequantizedReader, FusedExpertsOfMxfp4AreTransposed) {
  std::vector<std::uint8_t> blocks(2 * 2 * 2 * 16, 0);
  blocks[0] = 0x72;            // 1, 6
  blocks[16] = 0xF9;           // row 0, column 32: -0.5, -6
  blocks[3 * 32 + 31] = 0x10;  // the last row: 0, 0.5
  const std::uint8_t one = 127;
  auto source = std::make_unique<FakeReader>();
  source->tensor("up_proj_blocks", DType::kUInt8, {2, 2, 2, 16}, blocks)
      .tensor<std::uint8_t>("up_proj_scales", DType::kUInt8, {2, 2, 2},
                            {128, 130, one, one, one, one, one, 0})
      .write();
  QuantizedKeys keys;
  const auto reader = dequantized_reader(std::move(source), {.dtype = DType::kFloat32}, &keys);
  EXPECT_THAT(keys, ElementsAre(Pair("up_proj", ElementsAre("up_proj_blocks", "up_proj_scales"))));
  EXPECT_EQ(reader->metadata().tensors[0].global_shape(), (Shape{2, 64, 2}));
  EXPECT_THAT(read<float>(*reader, 0, {{0, 0, 0}, {1, 2, 2}}), ElementsAre(2, 0, 12, 0));
  EXPECT_THAT(read<float>(*reader, 0, {{0, 32, 0}, {1, 2, 1}}), ElementsAre(-4, -48));
  EXPECT_THAT(read<float>(*reader, 0, {{1, 62, 1}, {1, 2, 1}}), ElementsAre(0, 0x1p-128F));
}

TEST(DequantizedReader, Nvfp4HasAScaleForItsScales) {
  auto source = std::make_unique<FakeReader>();
  std::vector<std::uint8_t> codes(16, 0x22);  // 1, 1
  source->tensor("w", DType::kUInt8, {1, 16}, codes)
      .tensor<std::uint8_t>("w_scale", DType::kFloat8E4M3FN, {1, 2}, {kTwo, kOneAndAHalf})
      .tensor<float>("w_scale_2", DType::kFloat32, {}, {0.25F})
      .write();
  const auto reader = dequantized_reader(std::move(source), {.dtype = DType::kFloat32});
  ASSERT_EQ(reader->metadata().tensors.size(), 1);
  EXPECT_THAT(read<float>(*reader, 0, {{0, 15}, {1, 2}}), ElementsAre(0.5F, 0.375F));
}

/// The experts of DeepSeek V4. Integers with scales of another type are no codes of 4 bits.
TEST(DequantizedReader, Mxfp4MayHaveItsScalesBesideTheWeight) {
  constexpr std::uint8_t kHalf = 126, kFour = 129;
  std::vector<std::uint8_t> codes(32, 0x72);  // 1, 6
  codes[31] = 0xF9;                           // -0.5, -6
  auto source = std::make_unique<FakeReader>();
  source->tensor("w1.weight", DType::kInt8, {1, 32}, codes)
      .tensor<std::uint8_t>("w1.scale", DType::kFloat8E8M0FNU, {1, 2}, {kFour, kHalf})
      .tensor<std::int8_t>("w2.weight", DType::kInt8, {1}, {3})
      .tensor<std::uint16_t>("w2.scale", DType::kBFloat16, {1}, {1})
      .write();
  EXPECT_EQ(four_bit_form(source->metadata())->name, "MXFP4");
  QuantizedKeys keys;
  const auto reader = dequantized_reader(std::move(source), {.dtype = DType::kFloat32}, &keys);
  EXPECT_THAT(keys, ElementsAre(Pair("w1.weight", ElementsAre("w1.weight", "w1.scale"))));
  EXPECT_EQ(reader->metadata().tensors.size(), 3);
  EXPECT_THAT(read<float>(*reader, 0, {{0, 0}, {1, 2}}), ElementsAre(4, 24));
  EXPECT_THAT(read<float>(*reader, 0, {{0, 61}, {1, 3}}), ElementsAre(3, -0.25F, -3));
}

TEST(DequantizedReader, BlocksMayHavePowersOfTwo) {
  constexpr std::uint8_t kHalf = 126, kFour = 129;
  for (const char* const scales : {"wq.scale", "wq.weight_scale_inv"}) {
    auto source = std::make_unique<FakeReader>();
    source
        ->tensor<std::uint8_t>("wq.weight", DType::kFloat8E4M3FN, {2, 3},
                               {kOne, kTwo, kOne, kTwo, kOne, kTwo})
        .tensor<std::uint8_t>(scales, DType::kFloat8E8M0FNU, {1, 2}, {kHalf, kFour})
        .write();
    EXPECT_EQ(four_bit_form(source->metadata()), nullptr);
    const auto reader = dequantized_reader(
        std::move(source),
        {.suffix = "_scale_inv", .rows = 2, .columns = 2, .dtype = DType::kFloat32});
    ASSERT_EQ(reader->metadata().tensors.size(), 1) << scales;
    EXPECT_THAT(read<float>(*reader, 0, whole(Shape{2, 3})), ElementsAre(0.5F, 1, 4, 1, 0.5F, 8));
  }
}

TEST(DequantizedReader, PackedIntegersHaveAnOffsetOfEight) {
  const auto open = [](std::int64_t columns) {
    auto source = std::make_unique<FakeReader>();
    source->tensor<std::uint32_t>("w_packed", DType::kInt32, {2, 1}, {0x76543210, 0xFEDCBA98})
        .tensor<std::uint16_t>("w_scale", DType::kBFloat16, {2, 2},
                               {0x3F80, 0x4000, 0x3F80, 0x4000})
        .tensor<std::int64_t>("w_shape", DType::kInt64, {2}, {2, columns})
        .write();
    return dequantized_reader(std::move(source), {.dtype = DType::kFloat32});
  };
  EXPECT_THAT(read<float>(*open(8), 0, whole(Shape{2, 8})),
              ElementsAre(-8, -7, -6, -5, -8, -6, -4, -2, 0, 1, 2, 3, 8, 10, 12, 14));
  EXPECT_THAT(
      error_of([&] {
        read<float>(*open(4), 0, whole(Shape{2, 8}));
      }).message(),
      HasSubstr("'w' has the shape (2, 8) by its codes, two in a byte, but 'w_shape' says"));
}

/// Rows whose scales do not fit into one piece, in chunks that divide groups.
TEST(DequantizedReader, FourBitsMayBeReadInAnyPiecesOfAnyChunks) {
  constexpr std::int64_t kRows = 6000, kBytes = 400;
  constexpr std::array kValues{0.0F, 0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                               0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  const auto codes = codes_of(kRows * kBytes);
  std::vector<std::uint8_t> scales = codes_of(kRows * kBytes / 8);
  for (std::uint8_t& scale : scales) scale %= 0x7F;  // not NaN
  const auto value = [&](std::int64_t row, std::int64_t column) {
    const auto place = static_cast<std::size_t>(row * kBytes + column / 2);
    const std::size_t code = column % 2 == 0 ? codes[place] & 15U : codes[place] >> 4U;
    const auto* const scale = reinterpret_cast<const std::byte*>(&scales[place / 8]);
    return kValues[code] * load_float(DType::kFloat8E4M3FN, scale);
  };
  auto source = std::make_unique<FakeReader>();
  source
      ->tensor("w", DType::kUInt8, {kRows, kBytes}, codes,
               {{{0, 0}, {kRows, 7}}, {{0, 7}, {kRows, kBytes - 7}}})
      .tensor("w_scale", DType::kFloat8E4M3FN, {kRows, kBytes / 8}, scales)
      .tensor<float>("w_scale_2", DType::kFloat32, {1}, {1})
      .write();
  const auto reader = dequantized_reader(std::move(source), {.dtype = DType::kFloat32});
  for (const Box& box : {Box{{0, 1}, {kRows, 1}}, Box{{5999, 799}, {1, 1}}, Box{{3, 9}, {5, 601}},
                         Box{{5200, 0}, {90, 800}}}) {
    const auto part = read<float>(*reader, 0, box, {.threads = 1, .staging = 1000});
    for (std::int64_t i = 0; i < std::ssize(part); ++i)
      ASSERT_EQ(part[static_cast<std::size_t>(i)],
                value(box.offsets[0] + i / box.sizes[1], box.offsets[1] + i % box.sizes[1]));
  }
}

TEST(DequantizedReader, FourBitsThatDoNotFitAreListed) {
  auto source = std::make_unique<FakeReader>();
  source->tensor("a_blocks", DType::kUInt8, {1, 1, 1, 16}, codes_of(16))
      .tensor("b_blocks", DType::kUInt8, {1, 1, 1, 16}, codes_of(16))
      .tensor("b_scales", DType::kUInt8, {1, 1, 2}, codes_of(2))
      .tensor("c", DType::kUInt8, {1, 16}, codes_of(16))
      .tensor<float>("c_scale", DType::kFloat32, {1, 2}, {1, 1})
      .tensor<float>("c_scale_2", DType::kFloat32, {2}, {1, 1})
      .tensor("d", DType::kUInt8, {1, 16}, codes_of(16))
      .tensor<float>("d_scale_2", DType::kFloat32, {}, {1})
      .write();
  const CheckpointError error = error_of([&] { dequantized_reader(std::move(source), {}); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_EQ(error.message(),
            "the weights of 4 bits cannot be dequantized:\n"
            "  'a_blocks' holds MXFP4 weights, but 'a_scales' is missing\n"
            "  'b_scales' has the shape (1, 1, 2), but 'b_blocks' has (1, 1, 1, 16); expected a "
            "scale for each 32 weights of a row\n"
            "  'c_scale' is float32, expected float8_e4m3fn\n"
            "  'd' holds NVFP4 weights, but 'd_scale' is missing");
}

}  // namespace
}  // namespace dckpt::dequantized_reader_test
