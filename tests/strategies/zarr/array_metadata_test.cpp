#include "strategies/zarr/array_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/error.h"
#include "strategies/zarr/object_name.h"

namespace dckpt::array_metadata_test {
namespace {

constexpr std::string_view kGood =
    R"({"chunks":[2,3],"compressor":null,"dtype":"<f4","fill_value":null,"filters":null,"order":"C","shape":[5,6],"zarr_format":2})";

std::string with(std::string_view from, std::string_view to) {
  std::string text(kGood);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

ErrorCode refusal(const std::string& text) {
  try {
    read_zarray(as_bytes(text), "w/.zarray");
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("w/.zarray"));
    return error.code();
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 200);
  return ErrorCode::kInvalidArgument;
}

TEST(Zarray, DescribesTheGridOfChunks) {
  const ZarrArray array = read_zarray(as_bytes(kGood), ".zarray");
  EXPECT_EQ(array.dtype, DType::kFloat32);
  EXPECT_EQ(array.chunk_bytes(), 24u);
  EXPECT_EQ(array.grid(), (Shape{3, 2}));
  EXPECT_EQ(array.chunk_box(Shape{2, 1}), (Box{{4, 3}, {1, 3}}));
}

TEST(Zarray, KnowsTheElementTypesThatMegatronWrites) {
  for (const auto& [name, dtype] : {std::pair{"<f2", DType::kFloat16},
                                    {"bfloat16", DType::kBFloat16},
                                    {"|V2", DType::kBFloat16},
                                    {"<i8", DType::kInt64},
                                    {"|b1", DType::kBool}}) {
    EXPECT_EQ(read_zarray(as_bytes(with("<f4", name)), ".zarray").dtype, dtype) << name;
  }
}

TEST(Zarray, RefusesWhatItCannotRead) {
  for (const char* const dtype : {">f4", "|O", "<f3", "", "<U2000000000", "|V4294967296"})
    EXPECT_EQ(refusal(with("<f4", dtype)), ErrorCode::kUnsupported) << dtype;
  EXPECT_EQ(refusal(with(R"("<f4")", R"([["a","<f4"]])")), ErrorCode::kUnsupported);
  EXPECT_EQ(refusal(with(R"("compressor":null)", R"("compressor":{"id":"blosc"})")),
            ErrorCode::kUnsupported);
  EXPECT_EQ(refusal(with(R"("filters":null)", R"("filters":[{"id":"pickle"}])")),
            ErrorCode::kUnsupported);
  EXPECT_EQ(refusal(with(R"("order":"C")", R"("order":"F")")), ErrorCode::kUnsupported);
  EXPECT_EQ(refusal(with(R"("order":"C")", R"("order":"C","dimension_separator":"/../")")),
            ErrorCode::kUnsupported);
  EXPECT_EQ(refusal(with(R"("zarr_format":2)", R"("zarr_format":3)")), ErrorCode::kUnsupported);
}

TEST(Zarray, RefusesExtentsThatContradictEachOther) {
  for (const char* const shape :
       {"[-5,6]", "[5.5,6]", "[5]", "[1099511627776,1099511627776]", "[1180591620717411303424,6]",
        "[4611686018427387904,4611686018427387904,0]", "\"5,6\"", "null", "[[5],6]"}) {
    EXPECT_EQ(refusal(with("[5,6]", shape)), ErrorCode::kCorrupt) << shape;
  }
  for (const char* const chunks :
       {"[0,3]", "[-2,3]", "[2]", "[4611686018427387904,4611686018427387904]", "true"}) {
    EXPECT_EQ(refusal(with("[2,3]", chunks)), ErrorCode::kCorrupt) << chunks;
  }
}

TEST(Zarray, IsReadAsItWasWritten) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kBool, DType::kInt64}) {
    for (const auto& [shape, chunk] : {std::pair<Shape, Shape>{{2, 6}, {1, 3}}, {{}, {}}}) {
      const std::string text = write_zarray({shape, chunk, dtype});
      const ZarrArray read = read_zarray(as_bytes(text), ".zarray");
      EXPECT_EQ(read.shape, shape);
      EXPECT_EQ(read.chunk, chunk);
      EXPECT_EQ(read.dtype, dtype);
    }
  }
  EXPECT_FALSE(zarr_dtype_name(DType::kFloat8E4M3FN));
}

TEST(Zarray, RefusesBrokenJson) {
  for (const std::string& text :
       {std::string(), std::string("[1]"), std::string(kGood.substr(0, 60)),
        with(R"("shape")", R"("shape":[2,6],"shape")"), with(R"("shape":)", R"("form":)"),
        with(R"("filters":null)",
             R"("filters":)" + std::string(30000, '[') + std::string(30000, ']'))}) {
    EXPECT_EQ(refusal(text), ErrorCode::kCorrupt);
  }
}

TEST(ZarrChunkName, IsTheInverseOfItsParserAndNothingElse) {
  EXPECT_EQ(zarr_chunk_name(Shape{1, 0, 12}), "1.0.12");
  EXPECT_EQ(parse_zarr_chunk_name("1.0.12", 3), (Shape{1, 0, 12}));
  EXPECT_EQ(parse_zarr_chunk_name("0", 0), Shape{});
  for (const char* const name :
       {"", "1", "1.", ".1", "01.0", "-1.0", "1.0.0", "1.99999999999999999999", "1. 0"}) {
    EXPECT_FALSE(parse_zarr_chunk_name(name, 2).has_value()) << name;
  }
}

TEST(ZarrObjectName, IsParsedWholeAndCutShort) {
  const auto name = parse_zarr_object_name("shard_0.3_1.8.pt");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->offset, (Shape{0, 3}));
  EXPECT_EQ(name->shape, (Shape{1, 8}));
  EXPECT_TRUE(parse_zarr_object_name("shard_0.3_1.pt")->is_truncated());
  for (const char* const bad :
       {"shard_.pt", "shard_0_1", "shard_0_.pt", "shard_x_y.pt", "shard_9_1.pt", "shard_0_1.1.pt",
        "shard_0.0.0_1.pt", "shard_00_1.pt", "other_0_1.pt"}) {
    EXPECT_FALSE(parse_zarr_object_name(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace dckpt::array_metadata_test
