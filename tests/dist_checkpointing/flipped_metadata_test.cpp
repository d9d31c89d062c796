// Every bit of `.metadata` of five small saves is flipped in turn: none is read as if nothing had
// happened. An ordinary run takes a sample; DCKPT_SWEEP=all takes every bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/log_silence.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "strategies/formats/dcp/metadata_seal.h"
#include "strategies/storage/memory.h"
#include "tests/support/arange.h"
#include "tests/support/random.h"

namespace dckpt::testing::flipped_metadata_test {
namespace {

constexpr const char* kIndex = "c/.metadata";

struct SmallSave {
  std::string name;
  SaveOptions options;
  std::string removed{};  ///< keys with this prefix are removed afterwards
};

std::vector<SmallSave> small_saves() {
  return {{"torch_dist", {}},
          {"for Megatron 0.19", {.compat = Compat::kMegatron019}},
          {"plain DCP", {.compat = Compat::kDcp}},
          {"compressed",
           {.strategy = {"dcp", {}, OwnOptions::from_yaml("{compression: zstd}")},
            .compat = Compat::kDcp}},
          {"after a removal", {}, "optimizer"}};
}

std::shared_ptr<Storage> saved(const SmallSave& small) {
  const auto storage = memory_storage("memory:");
  run_ranks(2, [&](Communicator& comm) {
    const int rank = comm.rank();
    StateDict state;
    for (const char* const key : {"model.weight", "optimizer.exp_avg"})
      state[key] = ShardedTensor::from_rank_offsets(key, arange({2, 3}),
                                                    {{.axis = 0, .rank = rank, .count = 2}});
    state["rng"] = ShardedObject{
        .key = "rng_state", .data = Value(rank), .global_shape = {2}, .global_offset = {rank}};
    state["iteration"] = 7;
    state["args"] = Value::dict({{"lr", 0.5}});
    save(state, Location(storage, "c"), small.options, comm);
  });
  if (!small.removed.empty()) remove_sharded_tensors(Location(storage, "c"), small.removed);
  return storage;
}

/// Returns whether opening the checkpoint or verifying it notices the damage.
bool is_noticed(const std::shared_ptr<Storage>& storage) {
  const LogSilence quiet;
  try {
    return !verify(*open_checkpoint(Location(storage, "c")), {.deep = true}).ok();
  } catch (const CheckpointError&) {
    return true;
  }
}

TEST(FlippedMetadata, NoBitIsSilent) {
  const char* const sweep = std::getenv("DCKPT_SWEEP");
  const bool all = sweep != nullptr && std::string(sweep) == "all";
  constexpr int kSample = 300;
  Random random;
  for (const SmallSave& small : small_saves()) {
    SCOPED_TRACE(small.name);
    const auto storage = saved(small);
    ASSERT_FALSE(is_noticed(storage));
    const Bytes sound = read_file(*storage->open(kIndex), 1 << 20);
    EXPECT_TRUE(is_sealed(sound));
    const auto bits = static_cast<std::int64_t>(8 * sound.size());
    for (std::int64_t i = 0; i < (all ? bits : kSample); ++i) {
      const auto bit = static_cast<std::size_t>(all ? i : random.between(0, bits - 1));
      Bytes flipped = sound;
      flipped[bit / 8] ^= std::byte(1U << (bit % 8));
      storage->put(kIndex, flipped);
      EXPECT_TRUE(is_noticed(storage)) << random.trace(0) << ", bit " << bit % 8 << " of byte "
                                       << bit / 8 << " of " << sound.size();
    }
  }
}

}  // namespace
}  // namespace dckpt::testing::flipped_metadata_test
