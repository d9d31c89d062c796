#include "strategies/formats/torch_archive/tensor_blob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/geometry/strided_copy.h"
#include "strategies/formats/pickle/writer.h"
#include "strategies/formats/torch_archive/torch_layout.h"
#include "tests/strategies/formats/torch_archive/archive_files.h"

namespace dckpt::tensor_blob_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::array kTorchTypes = {
    DType::kBool,          DType::kUInt8,          DType::kUInt16,     DType::kUInt32,
    DType::kUInt64,        DType::kInt8,           DType::kInt16,      DType::kInt32,
    DType::kInt64,         DType::kFloat16,        DType::kBFloat16,   DType::kFloat32,
    DType::kFloat64,       DType::kComplex32,      DType::kComplex64,  DType::kComplex128,
    DType::kFloat8E4M3FN,  DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ,
    DType::kFloat8E8M0FNU, DType::kFloat4E2M1FNx2,
};

/// Returns bytes 0, 1, 2, … (0, 1, 0, 1, … for bool), as used by the generator of the files.
Bytes counting(DType dtype, std::size_t elements) {
  Bytes bytes(elements * item_size(dtype));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(dtype == DType::kBool ? i % 2 : i);
  return bytes;
}

Bytes floats(std::vector<float> values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes write_blob(DType dtype, const Shape& shape, ByteView payload,
                 const TensorBlobOptions& options = {}) {
  const TensorBlobWriter writer(dtype, shape, options);
  EXPECT_EQ(writer.payload_size(), payload.size());
  Bytes blob = writer.head();
  blob.insert(blob.end(), payload.begin(), payload.end());
  const Bytes tail = writer.tail(crc32(payload));
  blob.insert(blob.end(), tail.begin(), tail.end());
  EXPECT_EQ(writer.size(), blob.size());
  EXPECT_EQ(writer.tail_size(), tail.size());
  return blob;
}

/// Returns the blob without its variable parts: the digits of the serialization id, and their CRC
/// in the descriptor and in the directory.
Bytes without_id(Bytes blob) {
  const std::string_view text = as_text(blob);
  const std::size_t last_entry = text.rfind("PK\1\2");
  const std::size_t digits = text.rfind("PK\7\b") - 40;
  std::memset(blob.data() + digits, 0, 40);
  std::memset(blob.data() + digits + 44, 0, 4);
  std::memset(blob.data() + last_entry + 16, 0, 4);
  return blob;
}

TensorBlob locate(ByteView blob) {
  const auto file = testing::file_of(blob);
  return locate_tensor_blob(*file, 0, blob.size());
}

/// Returns the elements that a blob describes, row-major.
Bytes elements(const TensorBlob& blob, ByteView file) {
  Bytes out(static_cast<std::size_t>(numel(blob.shape)) * item_size(blob.dtype));
  if (out.empty()) return out;
  strided_copy(blob.shape, item_size(blob.dtype), file.data() + blob.offset, {0, blob.strides},
               out.data(), {0, row_major_strides(blob.shape)});
  return out;
}

TEST(TensorBlobWriter, WritesTheBytesOfTorchForEveryType) {
  for (const DType dtype : kTorchTypes) {
    SCOPED_TRACE(to_string(dtype));
    const Bytes expected = testing::torch_file("dtype_" + std::string(to_string(dtype)) + ".pt");
    EXPECT_EQ(to_hex(without_id(write_blob(dtype, {2, 3}, counting(dtype, 6)))),
              to_hex(without_id(expected)));
  }
}

TEST(TensorBlobWriter, WritesTheBytesOfTorchForEveryShape) {
  std::vector<float> numbers(24);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  const auto expect_torch = [](const char* name, const Bytes& blob) {
    EXPECT_EQ(to_hex(without_id(blob)), to_hex(without_id(testing::torch_file(name)))) << name;
  };
  expect_torch("scalar.pt", write_blob(DType::kFloat32, {}, floats({7.5})));
  expect_torch("empty.pt", write_blob(DType::kFloat32, {0, 3}, {}));
  expect_torch("five_dims.pt", write_blob(DType::kFloat32, {1, 2, 3, 2, 2}, floats(numbers)));
  expect_torch("requires_grad.pt",
               write_blob(DType::kFloat32, {3}, floats({0, 1, 2}), {.requires_grad = true}));
  expect_torch("no_crc.pt",
               write_blob(DType::kFloat32, {2, 3}, floats({0, 1, 2, 3, 4, 5}), {.crc = false}));
}

TEST(TensorBlobWriter, AlignsThePayloadInTheFile) {
  for (const std::uint64_t alignment : {64, 4096}) {
    for (const std::uint64_t file_offset : {0, 64, 1000, 4095, 1 << 20}) {
      const Bytes payload = counting(DType::kInt32, 1000);
      const Bytes blob = write_blob(DType::kInt32, {1000}, payload,
                                    {.alignment = alignment, .file_offset = file_offset});
      const TensorBlob found = locate(blob);
      EXPECT_EQ((file_offset + found.offset) % alignment, 0u);
      EXPECT_EQ(elements(found, blob), payload);
    }
  }
}

TEST(TensorBlobWriters, RememberedOnesWriteTheSameBytes) {
  for (const std::uint64_t alignment : {1, 64, 4096}) {
    TensorBlobWriters writers({.alignment = alignment});
    for (const std::uint64_t file_offset : {0UL, 64UL, 1000UL, 4096UL + 1000, 5'000'001'000UL}) {
      for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{1 << 20, 1 << 12}}) {
        const TensorBlobWriter fresh(DType::kFloat32, shape,
                                     {.alignment = alignment, .file_offset = file_offset});
        const auto remembered = writers.at(DType::kFloat32, shape, file_offset);
        EXPECT_EQ(remembered->head(), fresh.head()) << alignment << " " << file_offset;
        EXPECT_EQ(remembered->tail(77), fresh.tail(77));
        EXPECT_EQ(remembered->size(), fresh.size());
      }
    }
    EXPECT_NE(writers.at(DType::kFloat32, Shape{2}, 0)->head(),
              writers.at(DType::kInt32, Shape{2}, 0)->head());
  }
}

TEST(TensorBlobWriter, KnowsTheSizeOfHugeTensors) {
  const TensorBlobWriter writer(DType::kFloat32, Shape{1 << 20, 1 << 12});
  EXPECT_EQ(writer.payload_size(), std::uint64_t{1} << 34);
  EXPECT_EQ(writer.size(),
            writer.head().size() + writer.payload_size() + writer.tail(12345).size());
}

TEST(TensorBlobWriter, RefusesUnsoundShapes) {
  EXPECT_THROW(TensorBlobWriter(DType::kFloat32, Shape{-1}), CheckpointError);
  EXPECT_THROW(TensorBlobWriter(DType::kFloat32, Shape{std::int64_t{1} << 62}), CheckpointError);
  EXPECT_THROW(TensorBlobWriter(DType::kFloat32, Shape(kMaxDims + 1, 1)), CheckpointError);
  EXPECT_THROW(TensorBlobWriter(DType::kFloat32, Shape{1}, {.alignment = 100}), CheckpointError);
}

TEST(LocateTensorBlob, UnderstandsEveryTypeOfTorch) {
  for (const DType dtype : kTorchTypes) {
    SCOPED_TRACE(to_string(dtype));
    const Bytes file = testing::torch_file("dtype_" + std::string(to_string(dtype)) + ".pt");
    const TensorBlob blob = locate(file);
    EXPECT_EQ(blob.dtype, dtype);
    EXPECT_EQ(blob.shape, (Shape{2, 3}));
    EXPECT_EQ(blob.strides, (Shape{3, 1}));
    EXPECT_TRUE(blob.contiguous);
    EXPECT_FALSE(blob.requires_grad);
    EXPECT_EQ(elements(blob, file), counting(dtype, 6));
    EXPECT_EQ(blob.crc, crc32(counting(dtype, 6)));
  }
}

TEST(LocateTensorBlob, FindsTheElementsOfViews) {
  const auto expect = [](const char* name, const Shape& shape, const Shape& strides,
                         const Bytes& values) {
    SCOPED_TRACE(name);
    const Bytes file = testing::torch_file(name);
    const TensorBlob blob = locate(file);
    EXPECT_EQ(blob.shape, shape);
    EXPECT_EQ(blob.strides, strides);
    EXPECT_EQ(blob.contiguous, is_row_major(shape, strides));
    EXPECT_EQ(elements(blob, file), values);
  };
  expect("scalar.pt", {}, {}, floats({7.5}));
  expect("empty.pt", {0, 3}, {3, 1}, {});
  expect("five_dims.pt", {1, 2, 3, 2, 2}, {24, 12, 4, 2, 1},
         floats({0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
  expect("view.pt", {2, 3}, {3, 1}, floats({5, 6, 7, 8, 9, 10}));
  expect("transposed.pt", {6, 4}, {1, 6}, floats({0, 6, 12, 18, 1, 7,  13, 19, 2, 8,  14, 20,
                                                  3, 9, 15, 21, 4, 10, 16, 22, 5, 11, 17, 23}));
  expect("strided.pt", {2, 2}, {12, 3}, floats({7, 10, 19, 22}));
  expect("expanded.pt", {2, 3}, {0, 1}, floats({1, 2, 3, 1, 2, 3}));
  expect("attributes.pt", {3}, {1}, floats({0, 1, 2}));
  expect("parameter.pt", {3}, {1}, floats({0, 1, 2}));
}

TEST(LocateTensorBlob, GivesTheWholeStorageOfAView) {
  const Bytes file = testing::torch_file("view.pt");
  const TensorBlob blob = locate(file);
  EXPECT_EQ(blob.storage_size, 96u);
  EXPECT_EQ(blob.offset, blob.storage_offset + 20);
  EXPECT_EQ(blob.crc, crc32(ByteView(file).subspan(blob.storage_offset, blob.storage_size)));
}

TEST(LocateTensorBlob, CountsUntypedStoragesInBytes) {
  const Bytes file = testing::torch_file("bytes_view.pt");
  const TensorBlob blob = locate(file);
  EXPECT_EQ(blob.dtype, DType::kUInt16);
  EXPECT_EQ(blob.shape, (Shape{6}));
  EXPECT_EQ(blob.offset, blob.storage_offset + 6);
  EXPECT_EQ(blob.storage_size, 48u);
}

TEST(LocateTensorBlob, KeepsRequiresGrad) {
  EXPECT_TRUE(locate(testing::torch_file("requires_grad.pt")).requires_grad);
  EXPECT_TRUE(locate(testing::torch_file("parameter.pt")).requires_grad);
}

TEST(LocateTensorBlob, SaysThatNoCrcWasComputed) {
  EXPECT_EQ(locate(testing::torch_file("no_crc.pt")).crc, std::nullopt);
}

TEST(LocateTensorBlob, RefusesWhatIsNoPlainTensor) {
  for (const char* name : {"conjugate.pt", "sparse.pt", "quantized.pt", "state.pt"}) {
    try {
      locate(testing::torch_file(name));
      ADD_FAILURE() << name;
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("memory:archive.pt"));
    }
  }
}

TEST(LocateTensorBlob, FindsABlobInTheMiddleOfAFile) {
  const Bytes payload = counting(DType::kInt64, 5);
  Bytes file(777, std::byte{1});
  const Bytes blob = write_blob(DType::kInt64, {5}, payload);
  file.insert(file.end(), blob.begin(), blob.end());
  file.resize(file.size() + 55);
  const auto open = testing::file_of(file);
  EXPECT_EQ(elements(locate_tensor_blob(*open, 777, blob.size()), file), payload);
  EXPECT_THROW(locate_tensor_blob(*open, 778, blob.size()), CheckpointError);
  EXPECT_THROW(locate_tensor_blob(*open, 777, blob.size() - 1), CheckpointError);
}

/// A blob whose payload is simulated, and which counts the bytes read.
class PretendedFile final : public ReadableFile {
 public:
  PretendedFile(Bytes head, std::uint64_t payload, Bytes tail)
      : head_(std::move(head)), payload_(payload), tail_(std::move(tail)) {}
  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override { return head_.size() + payload_ + tail_.size(); }
  void read(std::uint64_t offset, MutableByteView into) const override {
    read_ += into.size();
    for (std::size_t i = 0; i < into.size(); ++i) {
      const std::uint64_t at = offset + i;
      into[i] = at < head_.size()              ? head_[at]
                : at < head_.size() + payload_ ? std::byte{0}
                                               : tail_.at(at - head_.size() - payload_);
    }
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}
  std::uint64_t bytes_read() const { return read_; }

 private:
  std::string name_ = "pretended";
  Bytes head_;
  std::uint64_t payload_;
  Bytes tail_;
  mutable std::atomic<std::uint64_t> read_{0};
};

TEST(LocateTensorBlob, ReadsAFewKilobytesOfAHugeBlob) {
  for (const std::uint64_t alignment : {64, 4096}) {
    const TensorBlobWriter writer(DType::kFloat64, Shape{1 << 15, 1 << 15},
                                  {.alignment = alignment});
    const PretendedFile file(writer.head(), writer.payload_size(), writer.tail(77));
    const TensorBlob blob = locate_tensor_blob(file, 0, writer.size());
    EXPECT_EQ(blob.offset, writer.head().size());
    EXPECT_EQ(blob.crc, 77u);
    EXPECT_LE(file.bytes_read(), 8192u);
  }
}

TEST(LocateTensorBlob, GivesTheSameWithACacheFromSeveralThreads) {
  std::vector<Bytes> blobs;
  for (int i = 0; i < 20; ++i)
    blobs.push_back(
        write_blob(DType::kInt16, {i % 5 + 1, i + 1},
                   counting(DType::kInt16, static_cast<std::size_t>((i % 5 + 1) * (i + 1)))));
  TensorBlobCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10; ++round) {
        for (const Bytes& blob : blobs) {
          const auto file = testing::file_of(blob);
          const TensorBlob cached = locate_tensor_blob(*file, 0, blob.size(), &cache);
          const TensorBlob fresh = locate_tensor_blob(*file, 0, blob.size());
          EXPECT_EQ(cached.shape, fresh.shape);
          EXPECT_EQ(cached.offset, fresh.offset);
          EXPECT_EQ(cached.crc, fresh.crc);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// A call of _rebuild_tensor_v2 whose parts can be changed.
struct Bent {
  std::string function = "_rebuild_tensor_v2";
  std::string type = "FloatStorage";
  std::string key = "0";
  std::int64_t numel = 6;
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape = {2, 3};
  std::vector<std::int64_t> strides = {3, 1};
  std::size_t stored = 24;  // bytes
  int missing_arguments = 0;

  Bytes blob() const {
    pickle::PickleWriter writer;
    writer.global("torch._utils", function);
    writer.mark();
    writer.mark();
    writer.text("storage");
    writer.global("torch", type);
    writer.text(key);
    writer.text("cpu");
    writer.integer(numel);
    writer.tuple();
    writer.persistent_id();
    writer.integer(offset);
    for (const std::vector<std::int64_t>& extents : {shape, strides}) {
      writer.mark();
      for (const std::int64_t extent : extents) writer.integer(extent);
      writer.tuple();
    }
    if (missing_arguments < 2) writer.boolean(false);
    if (missing_arguments < 1) writer.none();
    writer.tuple();
    writer.reduce();
    Bytes out;
    TorchArchiveWriter archive("archive", writer.finish(), 64, {}, out);
    archive.begin_storage(stored, out);
    const Bytes payload(stored);
    out.insert(out.end(), payload.begin(), payload.end());
    archive.end_storage(crc32(payload), out);
    archive.finish(out);
    return out;
  }
  void expect(ErrorCode code, const std::string& part) const {
    try {
      locate(blob());
      ADD_FAILURE() << "accepted, expected: " << part;
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
  void expect_corrupt(const std::string& part) const { expect(ErrorCode::kCorrupt, part); }
};

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

TEST(LocateTensorBlob, AcceptsTheCallUnbent) {
  EXPECT_EQ(locate(Bent().blob()).shape, (Shape{2, 3}));
}

TEST(LocateTensorBlob, RefusesViewsThatLeaveTheirStorage) {
  Bent{.offset = 1}.expect_corrupt("reaches beyond its storage of 6 elements");
  Bent{.offset = 100}.expect_corrupt("reaches beyond");
  Bent{.offset = INT64_MAX - 1}.expect_corrupt("reaches beyond");
  Bent{.strides = {1000, 1}}.expect_corrupt("reaches beyond");
  Bent{.shape = {5, 3}, .strides = {kHuge, 1}}.expect_corrupt("reaches beyond");
  Bent{.shape = {7}, .strides = {1}}.expect_corrupt("reaches beyond");
}

TEST(LocateTensorBlob, RefusesNegativeNumbers) {
  Bent{.numel = -6}.expect_corrupt("storage id");
  Bent{.offset = -1}.expect_corrupt("storage offset");
  Bent{.shape = {-2, -3}}.expect_corrupt("shape");
  Bent{.strides = {-3, 1}}.expect_corrupt("stride");
}

TEST(LocateTensorBlob, RefusesSizesThatWrap) {
  Bent{.numel = 0x4000000000000006}.expect_corrupt("more than any memory");
  Bent{.shape = {std::int64_t{1} << 32, std::int64_t{1} << 32}, .strides = {0, 0}}.expect_corrupt(
      "larger than any memory");
}

TEST(LocateTensorBlob, RefusesStridesOfAnotherRank) {
  Bent{.strides = {1}}.expect_corrupt("has 1 strides");
}
TEST(LocateTensorBlob, RefusesTooManyDimensions) {
  Bent{.shape = std::vector<std::int64_t>(kMaxDims + 1, 1),
       .strides = std::vector<std::int64_t>(kMaxDims + 1, 1)}
      .expect_corrupt("limit of 64");
  EXPECT_EQ(locate(Bent{.shape = std::vector<std::int64_t>(kMaxDims, 1),
                        .strides = std::vector<std::int64_t>(kMaxDims, 1)}
                       .blob())
                .shape.size(),
            kMaxDims);
}

TEST(LocateTensorBlob, IgnoresStridesThatAreNeverUsed) {
  EXPECT_EQ(locate(Bent{.shape = {1, 6}, .strides = {kHuge, 1}}.blob()).strides, (Shape{kHuge, 1}));
  EXPECT_EQ(locate(Bent{.shape = {0, 6}, .strides = {kHuge, kHuge}}.blob()).shape, (Shape{0, 6}));
}

TEST(LocateTensorBlob, RefusesAbsurdRepetition) {
  Bent{.shape = {1000000, 1000000}, .strides = {0, 0}}.expect(ErrorCode::kUnsupported, "repeats");
  EXPECT_EQ(locate(Bent{.shape = {1000, 6}, .strides = {0, 1}}.blob()).shape, (Shape{1000, 6}));
}

TEST(LocateTensorBlob, RefusesStoragesOfAnotherSize) {
  Bent{.stored = 8}.expect_corrupt("has 8 bytes, but the pickle says 24");
  Bent{.stored = 28}.expect_corrupt("has 28 bytes, but the pickle says 24");
  EXPECT_EQ(locate(Bent{.stored = 27}.blob()).storage_size, 27u);  // a remainder shorter than an
                                                                   // element
}

TEST(LocateTensorBlob, RefusesMissingStorages) {
  Bent{.key = "1"}.expect_corrupt("'data/1'");
  Bent{.key = ""}.expect_corrupt("'data/'");
  Bent{.key = "../version"}.expect_corrupt("'data/../version'");
}

TEST(LocateTensorBlob, TakesABlobThatItKnowsAlreadyAsIfItSawItForTheFirstTime) {
  TensorBlobCache warm;
  const auto outcome = [](const Bytes& bytes, TensorBlobCache* cache) {
    try {
      const TensorBlob blob =
          locate_tensor_blob(*testing::file_of(bytes), 100, bytes.size() - 100, cache);
      return std::to_string(blob.offset) + " " + to_string(blob.shape) + " " +
             std::to_string(blob.storage_offset) + " " + std::to_string(blob.crc.value_or(0));
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
  };
  for (const auto& [value, count] : {std::pair(1, 3), {2, 3}, {1, 1500}, {2, 1500}}) {
    Bytes bytes(100);
    const Bytes blob = write_blob(
        DType::kFloat32, {count},
        floats(std::vector<float>(static_cast<std::size_t>(count), static_cast<float>(value))));
    bytes.insert(bytes.end(), blob.begin(), blob.end());
    EXPECT_EQ(outcome(bytes, &warm), outcome(bytes, nullptr));
    for (std::size_t i = 100; i < bytes.size(); ++i) {
      bytes[i] ^= std::byte{1};
      EXPECT_EQ(outcome(bytes, &warm), outcome(bytes, nullptr)) << i;
      bytes[i] ^= std::byte{1};
    }
  }
}

TEST(LocateTensorBlob, RefusesUnknownStorageTypes) {
  Bent{.type = "FunnyStorage"}.expect(ErrorCode::kUnsupported, "torch.FunnyStorage");
}
TEST(LocateTensorBlob, RefusesOtherCalls) {
  Bent{.function = "_rebuild_surprise"}.expect(ErrorCode::kUnsupported, "not a plain tensor");
}
TEST(LocateTensorBlob, RefusesMissingArguments) {
  Bent{.missing_arguments = 2}.expect_corrupt("with 4 arguments");
}

TEST(CheckTensorBlob, FindsEveryDamagedElement) {
  const Bytes sound = testing::torch_file("dtype_float32.pt");
  const TensorBlob blob = locate(sound);
  const auto check = [](const Bytes& bytes) {
    return check_tensor_blob(*testing::file_of(bytes), 0, bytes.size());
  };
  EXPECT_TRUE(check(sound));
  for (std::size_t i = 0; i < blob.storage_size; ++i) {
    Bytes bytes = sound;
    bytes[blob.storage_offset + i] ^= std::byte{1};
    EXPECT_THROW(check(bytes), CheckpointError) << i;
  }
  EXPECT_FALSE(check(testing::torch_file("no_crc.pt")));
}

}  // namespace
}  // namespace dckpt::tensor_blob_test
