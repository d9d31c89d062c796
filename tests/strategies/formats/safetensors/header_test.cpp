#include "strategies/formats/safetensors/header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/error.h"
#include "strategies/formats/safetensors/dcp_sharding.h"
#include "strategies/formats/safetensors/index.h"
#include "strategies/storage/memory.h"
#include "tests/support/expect_error.h"

namespace dckpt::header_test {
namespace {

using dckpt::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// Returns the refusal of a header of this JSON, before `data_bytes` of elements.
CheckpointError refusal(const std::string& json, std::uint64_t data_bytes = 0) {
  return error_of([&] { parse_safetensors_header(as_bytes(json), data_bytes, "f"); });
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(SafetensorsHeader, TensorsStandInTheOrderOfTheirBytes) {
  const std::string json = R"({"b":)" + entry("F32", "[2,3]", "[2,26]") + R"(,"a":)" +
                           entry("BF16", "[]", "[0,2]") + R"(,"none":)" +
                           entry("I64", "[0,7]", "[2,2]") + R"(,"__metadata__":{"format":"pt"}}  )";
  const SafetensorsHeader header = parse_safetensors_header(as_bytes(json), 26, "f");
  EXPECT_THAT(header.tensors, ElementsAre(SafetensorsTensor{"a", DType::kBFloat16, {}},
                                          SafetensorsTensor{"none", DType::kInt64, {0, 7}},
                                          SafetensorsTensor{"b", DType::kFloat32, {2, 3}}));
  EXPECT_THAT(header.metadata, ElementsAre(Pair("format", "pt")));
}

TEST(SafetensorsHeader, WhatTheReferenceRefusesIsRefused) {
  const std::string one = entry("F32", "[1]", "[0,4]");
  const struct {
    std::string json;
    std::uint64_t data_bytes;
    std::string message;
  } kCases[] = {
      {" {}", 0, "starts with '{'"},
      {"", 0, "starts with '{'"},
      {"{", 0, ""},
      {R"({"a":)" + one + R"(,"a":)" + one + "}", 8, "occurs twice"},
      {R"({"a":)" + one + "}", 3, "the file is truncated"},
      {R"({"a":)" + one + "}", 5, "5 bytes follow the header"},
      {R"({"a":)" + one + R"(,"b":)" + one + "}", 4, "without gaps"},
      {R"({"a":)" + one + R"(,"b":)" + entry("F32", "[1]", "[5,9]") + "}", 9, "without gaps"},
      {R"({"a":)" + entry("F32", "[2]", "[0,4]") + "}", 4, "do not agree with the shape (2,)"},
      {R"({"a":)" + entry("F32", "[1]", "[4,0]") + "}", 4, "do not agree"},
      {R"({"a":)" + entry("U8", "[4294967296,4294967296]", "[0,0]") + "}", 0, "do not agree"},
      {R"({"a":)" + entry("U8", "[-1]", "[0,1]") + "}", 1, "not an extent"},
      {R"({"a":)" + entry("U8", "[1]", "[0]") + "}", 1, "not two positions"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, "no field 'data_offsets'"},
      {R"({"a":7})", 0, "no"},
      {R"({"__metadata__":{"n":1}})", 0, "not a string"},
  };
  for (const auto& [json, data_bytes, message] : kCases) {
    const CheckpointError error = refusal(json, data_bytes);
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << json;
    EXPECT_THAT(error.what(), HasSubstr(message)) << json;
  }
}

TEST(SafetensorsHeader, TypesThatAreNotReadAreRefusedWithTheKey) {
  for (const char* type : {"F5", "F6_E4M1", "Q8"}) {
    const CheckpointError error = refusal(R"({"w":)" + entry(type, "[8]", "[0,4]") + "}", 4);
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.context().key, "w");
    EXPECT_THAT(error.what(), HasSubstr(type));
  }
}

TEST(SafetensorsHeader, TwoElementsOfFourBitsShareAByteOfTheLastAxis) {
  const std::string json = R"({"w":)" + entry("F4", "[2,32]", "[0,32]") + "}";
  const SafetensorsHeader header = parse_safetensors_header(as_bytes(json), 32, "f");
  EXPECT_EQ(header.tensors,
            (std::vector<SafetensorsTensor>{{"w", DType::kFloat4E2M1FNx2, {2, 16}}}));
  EXPECT_THAT(std::string(as_text(ByteView(write_safetensors_header(header)).subspan(8))),
              ::testing::StartsWith(json));
  const CheckpointError odd = refusal(R"({"w":)" + entry("F4", "[2,3]", "[0,3]") + "}", 3);
  EXPECT_EQ(odd.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(odd.context().key, "w");
  EXPECT_EQ(refusal(R"({"w":)" + entry("F4", "[2,32]", "[0,64]") + "}", 64).code(),
            ErrorCode::kCorrupt);
}

TEST(SafetensorsHeader, FourElementsOfSixBitsShareThreeBytesOfTheLastAxis) {
  for (const auto& [type, dtype] : {std::pair{"F6_E2M3", DType::kFloat6E2M3FNx4},
                                    std::pair{"F6_E3M2", DType::kFloat6E3M2FNx4}}) {
    const std::string json = R"({"w":)" + entry(type, "[2,32]", "[0,48]") + "}";
    const SafetensorsHeader header = parse_safetensors_header(as_bytes(json), 48, "f");
    EXPECT_EQ(header.tensors, (std::vector<SafetensorsTensor>{{"w", dtype, {2, 8}}}));
    EXPECT_THAT(std::string(as_text(ByteView(write_safetensors_header(header)).subspan(8))),
                ::testing::StartsWith(json));
    const CheckpointError odd = refusal(R"({"w":)" + entry(type, "[2,6]", "[0,9]") + "}", 9);
    EXPECT_EQ(odd.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(odd.what(), HasSubstr("multiple of 4"));
  }
}

TEST(SafetensorsHeader, LengthsAreComparedWithTheFileBeforeAnythingIsAllocated) {
  const auto file_of = [](std::uint64_t length, std::size_t size) {
    const std::shared_ptr<Storage> storage = memory_storage();
    Bytes bytes;
    append_le(bytes, length);
    bytes.resize(size);
    const auto file = storage->create("f");
    file->append(ByteView(bytes));
    file->close();
    return error_of([&] { read_safetensors_header(*storage->open("f")); });
  };
  EXPECT_THAT(file_of(0, 7).what(), HasSubstr("starts with 8 bytes"));
  EXPECT_THAT(file_of(100, 20).what(), HasSubstr("truncated"));
  EXPECT_THAT(file_of(kMaxSafetensorsHeader, 20).what(), HasSubstr("truncated"));
  EXPECT_THAT(file_of(kMaxSafetensorsHeader + 1, 20).what(), HasSubstr("more than the"));
  EXPECT_THAT(file_of(UINT64_MAX, 20).what(), HasSubstr("more than the"));
}

/// The expected header is that of safetensors.torch.save(…, metadata={"format": "pt"}) of
/// safetensors 0.8.
TEST(SafetensorsHeader, IsTheReferences) {
  SafetensorsHeader header{.tensors = {{"a", DType::kBFloat16, {2}},
                                       {"z", DType::kFloat64, {}},
                                       {"b", DType::kBFloat16, {0, 3}}},
                           .metadata = {{"format", "pt"}}};
  std::ranges::sort(header.tensors, precedes_in_safetensors);
  const Bytes bytes = write_safetensors_header(header);
  EXPECT_EQ(bytes.size() % 8, 0U);
  EXPECT_EQ(load_le<std::uint64_t>(bytes, 0), bytes.size() - 8);
  EXPECT_THAT(
      std::string(as_text(ByteView(bytes).subspan(8))),
      ::testing::StartsWith(
          R"({"__metadata__":{"format":"pt"},"z":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
          R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
          R"("b":{"dtype":"BF16","shape":[0,3],"data_offsets":[12,12]}})"));
  EXPECT_EQ(parse_safetensors_header(ByteView(bytes).subspan(8), 12, "f"), header);
}

TEST(SafetensorsHeader, WhatItCannotHoldIsRefusedWithTheKey) {
  const auto refused = [](const std::string& key, DType dtype) {
    const CheckpointError error = error_of([&] {
      write_safetensors_header({.tensors = {{key, dtype, {1}}}, .metadata = {}});
    });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.context().key, key);
  };
  refused("w", DType::kComplex128);
  refused("w", DType::kQInt8);
  refused("__metadata__", DType::kUInt8);
  refused("\xFF", DType::kUInt8);
  EXPECT_THROW(
      write_safetensors_header({.tensors = {{"w", DType::kFloat4E2M1FNx2, {}}}, .metadata = {}}),
      CheckpointError);
}

TEST(SafetensorsIndex, NamesAFileForEachKey) {
  const SafetensorsIndex index{.weight_map = {{"b", "2.safetensors"}, {"a", "1.safetensors"}}};
  EXPECT_EQ(write_safetensors_index(index, 12),
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"1.safetensors\",\n    \"b\": \"2.safetensors\"\n  }\n}\n");
  EXPECT_THAT(parse_safetensors_index(as_bytes(write_safetensors_index(index, 12)), "f").weight_map,
              ElementsAre(Pair("a", "1.safetensors"), Pair("b", "2.safetensors")));
  for (const char* json :
       {"[]", R"({"weight_map": []})", R"({"weight_map": {}})", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": "../b.safetensors"}})", R"({"weight_map": {"a": "/b"}})",
        R"({"weight_map": {"a": ""}})", R"({"metadata": {}})"}) {
    EXPECT_EQ(error_of([&] { parse_safetensors_index(as_bytes(json), "f"); }).code(),
              ErrorCode::kCorrupt)
        << json;
  }
}

TEST(DcpSharding, SaysWhereAPartBeginsAndMayStateTheShapeOfItsTensor) {
  EXPECT_THAT(parse_dcp_sharding(R"({"w": {"saved_offsets": [5, 0]}})", "f"),
              ElementsAre(Pair("w", DcpPart{{5, 0}})));
  EXPECT_THAT(parse_dcp_sharding(R"({"w": {"saved_offsets": [5], "global_shape": [9]}})", "f"),
              ElementsAre(Pair("w", DcpPart{{5}, Shape{9}})));
  for (const char* json : {"[]", "{", R"({"w": {}})", R"({"w": {"saved_offsets": 5}})",
                           R"({"w": {"saved_offsets": [-1]}})",
                           R"({"w": {"saved_offsets": [0], "global_shape": 9}})"}) {
    EXPECT_EQ(error_of([&] { parse_dcp_sharding(json, "f"); }).code(), ErrorCode::kCorrupt) << json;
  }
}

}  // namespace
}  // namespace dckpt::header_test
