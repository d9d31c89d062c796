#include "dist_checkpointing/save/write_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist_checkpointing/verify/integrity.h"
#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "strategies/storage/memory.h"

namespace dckpt::write_checkpoint_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void write_file(Storage& storage, const std::string& name, ByteView content) {
  const auto file = storage.create(name);
  file->append(content);
  file->close();
}

/// Writes a file per rank, which gets its name when all have been written.
class TwoPhases : public SaveStrategy {
 public:
  WrittenItems write_data(Storage& storage, const std::string& directory, int rank, const SavePlan&,
                          ItemSource&) const override {
    write_file(storage, directory + "/part." + std::to_string(rank), as_bytes("data"));
    return {};
  }
  void write_index(Storage& storage, const std::string& directory, const Metadata&,
                   const CommonState*) const override {
    for (const char* const rank : {"0", "1"})
      storage.rename(directory + "/part." + rank, directory + "/data." + rank);
    write_file(storage, directory + "/index", as_bytes("of it"));
  }
  std::optional<MarkerFile> marker(const Storage&, const Metadata&,
                                   const CommonState*) const override {
    return MarkerFile{"last", to_bytes("of all")};
  }
};

struct NoItems : ItemSource {
  Bytes object(const WriteItem&) override { return {}; }
  void tensor(const WriteItem&, const std::function<void(ByteView)>&) override {}
};

class WriteCheckpoint : public ::testing::Test {
 protected:
  /// Writes with two ranks, of which one publishes.
  void write(const std::function<void()>& check = [] {}) {
    Publication publication = begin_publication(target_, {});
    const WriteTarget to{target_.storage(), publication.staging(), true};
    NoItems source;
    ManifestDigests digests;
    for (const int rank : {0, 1})
      digests.merge(write_items(to, TwoPhases(), rank, {}, source).files.digests);
    const Metadata nothing;
    publish_checkpoint(std::move(publication), to, TwoPhases(),
                       {.metadata = nothing, .digests = digests, .check = check});
  }

  Location target_{memory_storage(), "checkpoint"};
};

TEST_F(WriteCheckpoint, TheManifestFollowsFilesOfAllRanksThatTheStrategyRenames) {
  write();
  const std::string data = sha256_hex(as_bytes("data"));
  EXPECT_THAT(find_integrity_manifest(*target_.directory())->files,
              ElementsAre(IntegrityManifest::Entry{"data.0", data, 4},
                          IntegrityManifest::Entry{"data.1", data, 4},
                          IntegrityManifest::Entry{"index", sha256_hex(as_bytes("of it")), 5},
                          IntegrityManifest::Entry{"last", sha256_hex(as_bytes("of all")), 6}));
}

TEST_F(WriteCheckpoint, WhatIsStoppedAtLastLeavesNothing) {
  EXPECT_THROW(write([] { throw CheckpointError(ErrorCode::kCancelled, "stopped"); }),
               CheckpointError);
  EXPECT_THAT(target_.storage()->list(""), IsEmpty());
}

}  // namespace
}  // namespace dckpt::write_checkpoint_test
