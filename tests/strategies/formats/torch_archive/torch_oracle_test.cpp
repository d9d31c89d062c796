// Our files are loaded by real torch, and its files by us. The test needs a Python with torch,
// named by DCKPT_ORACLE_PYTHON.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "mapping/base/hash.h"
#include "mapping/base/text.h"
#include "mapping/geometry/strided_copy.h"
#include "strategies/formats/torch_archive/tensor_blob.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "tests/strategies/formats/torch_archive/archive_files.h"

namespace dckpt::torch_oracle_test {
namespace {

class TorchOracle : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("DCKPT_ORACLE_PYTHON");
    if (python == nullptr || *python == '\0')
      GTEST_SKIP() << "DCKPT_ORACLE_PYTHON names no Python with torch";
    python_ = python;
    std::string pattern = (std::filesystem::temp_directory_path() / "dckpt-torch-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  void run(const std::string& arguments) {
    const std::string command =
        "'" + python_ + "' '" DCKPT_ORACLE_SCRIPT "' " + arguments + " 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }

  std::string python_;
  std::filesystem::path folder_;
};

TEST_F(TorchOracle, LoadsOurTensorBlobs) {
  const std::vector<std::pair<DType, const char*>> types = {
      {DType::kBool, "bool"},
      {DType::kUInt8, "uint8"},
      {DType::kUInt16, "uint16"},
      {DType::kUInt32, "uint32"},
      {DType::kUInt64, "uint64"},
      {DType::kInt8, "int8"},
      {DType::kInt16, "int16"},
      {DType::kInt32, "int32"},
      {DType::kInt64, "int64"},
      {DType::kFloat16, "float16"},
      {DType::kBFloat16, "bfloat16"},
      {DType::kFloat32, "float32"},
      {DType::kFloat64, "float64"},
      {DType::kComplex32, "complex32"},
      {DType::kComplex64, "complex64"},
      {DType::kComplex128, "complex128"},
      {DType::kFloat8E4M3FN, "float8_e4m3fn"},
      {DType::kFloat8E4M3FNUZ, "float8_e4m3fnuz"},
      {DType::kFloat8E5M2, "float8_e5m2"},
      {DType::kFloat8E5M2FNUZ, "float8_e5m2fnuz"},
      {DType::kFloat8E8M0FNU, "float8_e8m0fnu"},
      {DType::kFloat4E2M1FNx2, "float4_e2m1fn_x2"},
  };
  for (const auto& [dtype, name] : types) {
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{1}, Shape{96, 3}, Shape{2, 1, 3, 4}}) {
      for (const bool plain : {true, false}) {
        const bool grad = !plain && dtype == DType::kFloat32;
        const TensorBlobWriter writer(
            dtype, shape, {.alignment = plain ? 64u : 4096u, .crc = plain, .requires_grad = grad});
        Bytes payload(writer.payload_size());
        for (std::size_t i = 0; i < payload.size(); ++i)
          payload[i] = static_cast<std::byte>(dtype == DType::kBool ? i % 2 : i);
        Bytes blob = writer.head();
        blob.insert(blob.end(), payload.begin(), payload.end());
        const Bytes tail = writer.tail(crc32(payload));
        blob.insert(blob.end(), tail.begin(), tail.end());
        std::string extents;
        for (const std::int64_t extent : shape)
          extents += (extents.empty() ? "" : "x") + std::to_string(extent);
        testing::write_path(
            folder_ / (std::string(name) + "," + extents + "," + (grad ? "grad" : "") + "," +
                       (plain ? "64" : "4096") + ".pt"),
            blob);
      }
    }
  }
  run("load '" + folder_.string() + "'");
}

TEST_F(TorchOracle, LoadsOurFilesAsItsOwn) {
  for (const std::string name :
       {"state", "state_protocol4", "state_stream", "attributes", "parameter", "conjugate",
        "sparse", "quantized", "transposed", "expanded", "dtype_uint16", "dtype_float8_e5m2"}) {
    const Bytes theirs = testing::torch_file(name + ".pt");
    testing::write_path(folder_ / (name + ".torch.pt"), theirs);
    testing::write_path(
        folder_ / (name + ".dckpt.pt"),
        save_torch_file(load_torch_bytes(theirs, name), TorchSaveOptions{.prefix = name}));
  }
  run("compare '" + folder_.string() + "'");
}

TEST_F(TorchOracle, WritesWhatWeRead) {
  const char* chosen = std::getenv("DCKPT_TEST_SEED");
  const std::string seed =
      chosen != nullptr ? chosen : std::to_string(std::random_device()() % 1000000);
  SCOPED_TRACE("DCKPT_TEST_SEED=" + seed);
  run("write '" + folder_.string() + "' " + seed);
  std::ifstream list(folder_ / "list.txt");
  std::string line;
  int count = 0;
  while (std::getline(list, line)) {
    SCOPED_TRACE(line);
    std::istringstream fields(line);
    std::string name, dtype, extents, digest;
    fields >> name >> dtype >> extents >> digest;
    Shape shape;
    if (extents != "-") {
      for (const std::string& extent : split(extents, 'x'))
        shape.push_back(static_cast<std::int64_t>(*parse_u64(extent)));
    }
    const Bytes bytes = testing::read_path(folder_ / name);
    const Tensor tensor = load_torch_bytes(bytes, name).as_tensor();
    EXPECT_EQ(to_string(tensor.dtype()), dtype);
    EXPECT_EQ(tensor.shape(), shape);
    EXPECT_EQ(sha256_hex(tensor.numel() == 0 ? ByteView() : ByteView(tensor.contiguous().bytes())),
              digest);

    const auto file = testing::file_of(bytes);
    if (detect_torch_file(*file, 0, bytes.size()) == TorchFileForm::kZip) {
      const TensorBlob blob = locate_tensor_blob(*file, 0, bytes.size());
      Bytes elements(static_cast<std::size_t>(numel(blob.shape)) * item_size(blob.dtype));
      if (!elements.empty())
        strided_copy(blob.shape, item_size(blob.dtype), bytes.data() + blob.offset,
                     {0, blob.strides}, elements.data(), {0, row_major_strides(blob.shape)});
      EXPECT_EQ(sha256_hex(elements), digest);
      EXPECT_TRUE(check_tensor_blob(*file, 0, bytes.size()));
    }
    ++count;
  }
  EXPECT_EQ(count, 150);
}

}  // namespace
}  // namespace dckpt::torch_oracle_test
