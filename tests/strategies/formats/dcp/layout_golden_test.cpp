#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "mapping/geometry/layout.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/json/json.h"
#include "tests/strategies/formats/dcp/golden_metadata.h"

namespace dckpt::testing::layout_golden_test {
namespace {

using ::testing::UnorderedElementsAreArray;

struct Producer {
  const char* golden;
  Shape mesh;  ///< mesh of ranks 0 to 3
};

/// Checkpoints of FSDP2: the chunks that torch wrote are the boxes that our layouts give its ranks.
class LayoutGolden : public ::testing::TestWithParam<Producer> {};

Placement parse_placement(const std::string& text) {
  int dim = 0;
  int split_factor = 0;
  if (std::sscanf(text.c_str(), "_S(%d, %d)", &dim, &split_factor) == 2)
    return StridedShard{dim, split_factor};
  if (std::sscanf(text.c_str(), "S(%d)", &dim) == 1) return Shard{dim};
  EXPECT_EQ(text, "R");
  return Replicate{};
}

/// Returns a layout. Parameters that only FSDP2 shards are sharded along the first dimension of a
/// 2-D mesh and replicated along the other.
MeshLayout layout_of(const Value& placements, const Shape& mesh) {
  MeshLayout layout{DeviceMesh(mesh), {}, {}};
  for (const Value& text : placements.items())
    layout.placements.push_back(parse_placement(text.as_str()));
  layout.placements.resize(mesh.size(), Replicate{});
  return layout;
}

/// Returns the rank that wrote a file: "__RANK_0.distcp".
int writer_of(const std::string& file) {
  int rank = -1;
  EXPECT_EQ(std::sscanf(file.c_str(), "__%d_", &rank), 1) << file;
  return rank;
}

TEST_P(LayoutGolden, ChunksAreTheBoxesOfTheRanks) {
  const Metadata metadata =
      read_dcp_metadata(read_file(golden(GetParam().golden) / "ckpt" / ".metadata"));
  const Value expected =
      parse_json(read_file(golden(GetParam().golden) / "expected.json"), "expected.json");
  std::size_t laid_out = 0;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    const Value* const placements = expected.at("tensors").at(tensor.key).find("placements");
    if (placements == nullptr) continue;
    ++laid_out;
    const MeshLayout layout = layout_of(*placements, GetParam().mesh);
    SCOPED_TRACE(tensor.key + " " + to_string(ShapeView(tensor.size)) + " as " + to_string(layout));
    std::vector<Box> mains;
    for (int rank = 0; rank < 4; ++rank) {
      const LocalPart part = local_part(layout, tensor.size, rank).value();
      ASSERT_EQ(part.pieces.size(), 1U);
      if (part.replica == 0) mains.push_back(part.pieces[0].box);
    }
    std::vector<Box> chunks;
    for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
      chunks.push_back(tensor.chunks[chunk]);
      const int writer = writer_of(metadata.files[tensor.places[chunk].file]);
      EXPECT_EQ(local_part(layout, tensor.size, writer).value().pieces[0].box, chunks.back())
          << "rank " << writer;
    }
    EXPECT_THAT(chunks, UnorderedElementsAreArray(mains));
  }
  EXPECT_GE(laid_out, 33U);
}

INSTANTIATE_TEST_SUITE_P(Fsdp2, LayoutGolden,
                         ::testing::Values(Producer{"dcp-fsdp2-dtensor", {4}},
                                           Producer{"dcp-fsdp-dtensor-layout", {4}},
                                           Producer{"dcp-fsdp2-hsdp", {2, 2}},
                                           Producer{"dcp-fsdp2-tp", {2, 2}}),
                         [](const auto& producer) { return test_name(producer.param.golden); });

}  // namespace
}  // namespace dckpt::testing::layout_golden_test
