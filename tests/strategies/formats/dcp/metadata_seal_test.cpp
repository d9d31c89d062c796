#include "strategies/formats/dcp/metadata_seal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/error.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/dcp/metadata_writer.h"
#include "strategies/formats/pickle/value.h"
#include "tests/strategies/formats/dcp/golden_metadata.h"

namespace dckpt::testing::metadata_seal_test {
namespace {

/// Returns the metadata of a golden as they are written.
Bytes written(const std::string& name) {
  return write_dcp_metadata(read_dcp_metadata(read_file(golden(name) / "ckpt" / ".metadata")));
}

/// Returns the pickle as another program writes it after having loaded it.
Bytes pickled_again(ByteView pickle) {
  const pickle::Graph graph = pickle::read_graph(pickle, ".metadata");
  return pickle::write_pickle(pickle::value_from_graph(graph), {.protocol = 4});
}

bool is_refused(ByteView pickle) {
  try {
    read_dcp_metadata(pickle);
    return false;
  } catch (const CheckpointError&) {
    return true;
  }
}

TEST(MetadataSeal, EveryBitOfAFileCounts) {
  Bytes pickle = written("dcp-plain-nested");
  ASSERT_TRUE(is_sealed(pickle));
  ASSERT_FALSE(is_refused(pickle));
  for (std::size_t bit = 0; bit < 8 * pickle.size(); ++bit) {
    pickle[bit / 8] ^= std::byte(1U << (bit % 8));
    EXPECT_TRUE(is_refused(pickle)) << "bit " << bit % 8 << " of byte " << bit / 8;
    pickle[bit / 8] ^= std::byte(1U << (bit % 8));
  }
}

TEST(MetadataSeal, WhatAnotherProgramWritesAgainIsNotCompared) {
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const Bytes pickle = written(name);
    const Bytes again = pickled_again(pickle);
    EXPECT_FALSE(is_sealed(again));
    EXPECT_FALSE(is_refused(again));
    EXPECT_EQ(write_dcp_metadata(read_dcp_metadata(again)), pickle);
  }
}

TEST(MetadataSeal, FilesOfOtherProducersHaveNone) {
  for (const std::string& name : golden_names())
    EXPECT_FALSE(is_sealed(read_file(golden(name) / "ckpt" / ".metadata"))) << name;
  EXPECT_FALSE(is_sealed({}));
  EXPECT_NO_THROW(check_seal(as_bytes("."), "f"));
  EXPECT_EQ(sealed(to_bytes("N.")), to_bytes("N.")) << "a root without attributes";
}

}  // namespace
}  // namespace dckpt::testing::metadata_seal_test
