#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "mapping/base/error.h"
#include "strategies/formats/dcp/metadata_graph.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/dcp/metadata_writer.h"
#include "tests/strategies/formats/dcp/golden_metadata.h"

namespace dckpt::testing::metadata_rows_test {
namespace {

Bytes pickle_of(const std::string& name) {
  return read_file(golden(name) / "ckpt" / ".metadata");
}

void expect_same(const Metadata& rows, const Metadata& nodes) {
  EXPECT_EQ(write_dcp_metadata(rows), write_dcp_metadata(nodes));
  EXPECT_EQ(rows.files, nodes.files);
  EXPECT_EQ(rows.stray_paths, nodes.stray_paths);
}

class MetadataRows : public ::testing::TestWithParam<std::string> {};

TEST_P(MetadataRows, SayWhatNodesSay) {
  const Bytes pickle = pickle_of(GetParam());
  const auto rows = read_metadata_rows(pickle);
  ASSERT_TRUE(rows) << "every writer of the goldens writes rows as they are expected";
  expect_same(*rows, read_metadata_nodes(pickle));
}

/// On damaged bytes, everything that is read as rows reads the same as nodes.
TEST_P(MetadataRows, OfDamagedBytesSayNothingElse) {
  const Bytes sound = pickle_of(GetParam());
  const auto seed = static_cast<std::uint32_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) {
    Bytes pickle = sound;
    for (std::uint32_t flips = random() % 3 + 1; flips > 0; --flips)
      pickle[random() % pickle.size()] = static_cast<std::byte>(random());
    if (const auto rows = read_metadata_rows(pickle))
      expect_same(*rows, read_metadata_nodes(pickle));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, MetadataRows, ::testing::ValuesIn(golden_names()),
                         [](const auto& name) { return test_name(name.param); });

Metadata many_chunks(std::int64_t count) {
  TensorStorageMetadata tensor{.key = "w", .size = {count, 300}, .chunks = BoxList(2)};
  for (std::int64_t row = 0; row < count; ++row) {
    tensor.chunks.push_back(Box{{row, 0}, {1, 300}});
    tensor.places.push_back({.offset = static_cast<std::uint64_t>(row) * 1000,
                             .length = 1000,
                             .crc = 0x12345 * static_cast<std::uint32_t>(row + 1)});
  }
  Metadata metadata;
  metadata.tensors.push_back(std::move(tensor));
  metadata.files.emplace_back("__0_0.distcp");
  return metadata;
}

TEST(MetadataRowsOfManyChunks, TakeThreeNodesForEach) {
  const Bytes pickle = write_dcp_metadata(many_chunks(1000), 5);
  const pickle::Graph nodes = pickle::read_graph(pickle, "f");
  const pickle::Graph rows = pickle::read_rows(pickle, "f", dcp::kMetadataRows);
  EXPECT_GT(nodes.size(), 9000u);
  EXPECT_LT(rows.size(), 3110u);
  expect_same(read_metadata_rows(pickle).value(), read_metadata_nodes(pickle));
}

}  // namespace
}  // namespace dckpt::testing::metadata_rows_test
