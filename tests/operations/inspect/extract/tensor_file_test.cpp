#include "operations/inspect/extract/tensor_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/hash.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"

namespace dckpt::tensor_file_test {
namespace {

using testing::counting;
using testing::FakeReader;

Bytes written(const FakeReader& reader, TensorFileFormat format) {
  Bytes file;
  write_tensor_file(reader, 0, format,
                    [&](ByteView bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); },
                    {.memory = 8});
  return file;
}

// The digests are those of what numpy.save writes for the same array (numpy 2.2).
TEST(TensorFile, NpyIsWhatNumpyWrites) {
  FakeReader matrix;
  matrix
      .tensor("w", DType::kFloat32, {2, 3}, counting<float>(6),
              {{{0, 0}, {2, 1}}, {{0, 1}, {2, 2}}})
      .write();
  EXPECT_EQ(sha256_hex(written(matrix, TensorFileFormat::kNpy)),
            "47d9cb788e60cfff38faf2237400d94063bde1f42a0ad39297e02642caca6b56");
  FakeReader scalar;
  scalar.tensor("w", DType::kBool, {}, std::vector<std::uint8_t>{1}).write();
  EXPECT_EQ(sha256_hex(written(scalar, TensorFileFormat::kNpy)),
            "93771288ec45b06fba72b165c461df5b4359f7fbd51b016d47b2dd32c4355296");
  FakeReader empty;
  empty.tensor("w", DType::kInt64, {0, 3}, std::vector<std::int64_t>{}).write();
  EXPECT_EQ(sha256_hex(written(empty, TensorFileFormat::kNpy)),
            "09335c7d428a982a1579c2e4ed7b3c0906514ef4adc62fc1aa06cf7af47d2f32");
}

// The expected file is that of safetensors.torch.save({"a.b": torch.arange(3).bfloat16()})
// (safetensors 0.8).
TEST(TensorFile, SafetensorsHoldsTheTensorUnderItsKey) {
  FakeReader reader;
  reader.tensor("a.b", DType::kBFloat16, {3}, std::vector<std::uint16_t>{0, 0x3F80, 0x4000})
      .write();
  const Bytes file = written(reader, TensorFileFormat::kSafetensors);
  const std::uint64_t header = load_le<std::uint64_t>(file, 0);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_THAT(
      std::string(as_text(ByteView(file).subspan(8, header))),
      ::testing::StartsWith(R"({"a.b":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}})"));
  EXPECT_EQ(to_hex(ByteView(file).subspan(8 + header)), "0000803f0040");
}

TEST(TensorFile, TypesThatNumpyLacksAreRefusedBeforeTheFirstByte) {
  FakeReader reader;
  reader.tensor("w", DType::kBFloat16, {1}, std::vector<std::uint16_t>{0}).write();
  const auto never = [](ByteView) { FAIL() << "something was written"; };
  const CheckpointError error =
      testing::error_of([&] { write_tensor_file(reader, 0, TensorFileFormat::kNpy, never); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(),
              ::testing::AllOf(::testing::HasSubstr("bfloat16"),
                               ::testing::HasSubstr(".safetensors"), ::testing::HasSubstr("'w'")));
}

}  // namespace
}  // namespace dckpt::tensor_file_test
