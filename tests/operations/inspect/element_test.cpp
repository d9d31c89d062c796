#include "operations/inspect/element.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "mapping/base/hash.h"
#include "operations/inspect/extract/render.h"

namespace dckpt::element_test {
namespace {

/// Returns the SHA-256 of the Python reprs, joined by commas, of every bit pattern of a small float
/// as a double.
std::string digest_of_all_values(DType dtype) {
  const std::size_t size = item_size(dtype);
  std::string text;
  for (std::uint32_t bits = 0; bits < (1U << (8 * size)); ++bits) {
    std::byte element[4];
    std::memcpy(element, &bits, 4);
    text += (bits > 0 ? "," : "") + python_repr(std::get<double>(load_element(dtype, element)));
  }
  return sha256_hex(as_bytes(text));
}

// The digests are those of ",".join(repr(float(x)) for x in torch.arange(256,
// dtype=torch.uint8).view(dtype).double()) with torch 2.11.
TEST(Element, EveryFloat8HasTorchsValue) {
  EXPECT_EQ(digest_of_all_values(DType::kFloat8E4M3FN),
            "8c4672cd011c8b771b49b62994a5c38f15322e452f91b34a8dd87587620a4edc");
  EXPECT_EQ(digest_of_all_values(DType::kFloat8E4M3FNUZ),
            "55d3b574f5bedab88ba136161f254f7e38af5a5336e65bd7192e04dead4f60fb");
  EXPECT_EQ(digest_of_all_values(DType::kFloat8E5M2),
            "823aa108f6e7875ce54f7cc8a5da2efc238b7db448b1742a53a7c1e8bf866537");
  EXPECT_EQ(digest_of_all_values(DType::kFloat8E5M2FNUZ),
            "0449f0052e5c3a167e9e461ca527ff5ae693d549e2fe652c02406358210d6e2d");
  EXPECT_EQ(digest_of_all_values(DType::kFloat8E8M0FNU),
            "1a8ca86d7298c2db6aa3e0b9abcb87b1e594f1724907a081f09d70ea8b6a4a31");
}

TEST(Element, EveryHalfAndBfloat16HasTorchsValue) {
  EXPECT_EQ(digest_of_all_values(DType::kFloat16),
            "7687e32daafc8568adda6cfe670f2728572a930effc28d8f9dfa274ef4ceb1ec");
  EXPECT_EQ(digest_of_all_values(DType::kBFloat16),
            "6efedd468594d54eab713f5356600c4f42e00f1075194dda9f39e4c666920345");
}

// The digest is that of ",".join(repr(struct.unpack("<d", struct.pack("<Q", bits))[0]) for bits in
// splitmix64) in Python 3.11.
TEST(Element, DoublesAreSpeltAsPythonSpellsThem) {
  std::string text;
  std::uint64_t state = 0;
  for (int i = 0; i < 100000; ++i) {
    std::uint64_t z = state += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    text += (i > 0 ? "," : "") + python_repr(std::bit_cast<double>(z ^ (z >> 31)));
  }
  EXPECT_EQ(sha256_hex(as_bytes(text)),
            "e9b42b36a09006e460a8bdc48e4519fe33361b019e4fbb6c543a00440626aaaf");
  EXPECT_EQ(python_repr(1.0), "1.0");
  EXPECT_EQ(python_repr(1e16), "1e+16");
  EXPECT_EQ(python_repr(123456789012345.6), "123456789012345.6");
  EXPECT_EQ(python_repr(0.0001), "0.0001");
  EXPECT_EQ(python_repr(0.00001), "1e-05");
  EXPECT_EQ(python_repr(-0.0), "-0.0");
  EXPECT_EQ(python_repr(-INFINITY), "-inf");
}

TEST(Element, IntegersKeepAllTheirBits) {
  const std::uint64_t large = 0xFFFFFFFFFFFFFFFEULL;
  const auto* const bytes = reinterpret_cast<const std::byte*>(&large);
  EXPECT_EQ(to_string(load_element(DType::kUInt64, bytes)), "18446744073709551614");
  EXPECT_EQ(to_string(load_element(DType::kInt64, bytes)), "-2");
  EXPECT_EQ(to_string(load_element(DType::kInt8, bytes)), "-2");
  EXPECT_EQ(to_string(load_element(DType::kUInt16, bytes)), "65534");
}

}  // namespace
}  // namespace dckpt::element_test
