// Behaviors of Megatron's and PyTorch's own tests that are easy to get wrong: which rank holds
// which part, under which name, and what a load makes of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "strategies/comm/threads.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace dckpt::sharded_state_dict_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Random;

const Shape kShape{7, 9};

/// Returns a part of a matrix in which element i has the value i.
Tensor part_of_matrix(const Box& box) {
  Tensor part = Tensor::empty(DType::kInt64, box.sizes);
  for (std::int64_t i = 0; i < part.numel(); ++i) {
    const std::int64_t value =
        (box.offsets[0] + i / box.sizes[1]) * kShape[1] + box.offsets[1] + i % box.sizes[1];
    std::memcpy(part.data() + 8 * i, &value, 8);
  }
  return part;
}

/// Returns a rank's boxes of the matrix, each as a leaf of its own.
StateDict hold(const std::vector<Box>& boxes, bool filled) {
  StateDict state = Value::dict();
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Tensor data =
        filled ? part_of_matrix(boxes[i]) : Tensor::zeros(DType::kInt64, boxes[i].sizes);
    state["part" + std::to_string(i)] =
        ShardedTensor::from_box("matrix", data, kShape, boxes[i].offsets);
  }
  return state;
}

class ShardedStateDict : public ::testing::Test {
 protected:
  using PerRank = std::vector<std::vector<Box>>;

  void save_boxes(const PerRank& boxes, const std::filesystem::path& path) {
    run_ranks(static_cast<int>(boxes.size()), [&](Communicator& comm) {
      save(hold(boxes[static_cast<std::size_t>(comm.rank())], true), path, {}, comm);
    });
  }
  void expect_loaded_as(const PerRank& boxes, const std::filesystem::path& path,
                        const LoadOptions& options = {}) {
    run_ranks(static_cast<int>(boxes.size()), [&](Communicator& comm) {
      const std::vector<Box>& mine = boxes[static_cast<std::size_t>(comm.rank())];
      StateDict state = hold(mine, false);
      load(state, path, options, comm);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        EXPECT_TRUE(equal(state["part" + std::to_string(i)].as_tensor(), part_of_matrix(mine[i])))
            << to_string(mine[i]) << " on rank " << comm.rank();
      }
    });
  }
  std::filesystem::path checkpoint(const std::string& name = "checkpoint") const {
    return directory_.path() / name;
  }

 private:
  TempDir directory_;
};

TEST_F(ShardedStateDict, ARankMayHoldSeveralUnevenShardsOfATensorAndAnotherOneNone) {
  const PerRank saved{{Box{{0, 0}, {2, 9}}, Box{{3, 0}, {4, 4}}},
                      {},
                      {Box{{2, 0}, {1, 9}}, Box{{3, 4}, {4, 5}}, Box{{7, 0}, {0, 9}}}};
  save_boxes(saved, checkpoint());
  const auto reader = open_checkpoint(checkpoint());
  ASSERT_EQ(reader->metadata().tensors.size(), 1U);
  EXPECT_EQ(reader->metadata().tensors[0].chunks.size(), 4U)
      << "one entry, a chunk for each shard with elements";
  expect_loaded_as(saved, checkpoint());
  expect_loaded_as({{Box{{0, 0}, {7, 1}}, Box{{6, 1}, {1, 8}}}, {}}, checkpoint(),
                   {.validate_access_integrity = false});
}

/// Returns boxes that tile the matrix, on random ranks.
std::vector<std::vector<Box>> random_cut(Random& random) {
  std::vector<Box> boxes{whole(kShape)};
  for (std::int64_t cuts = random.between(0, 5); cuts > 0; --cuts) {
    const auto at =
        static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(boxes.size()) - 1));
    const auto axis = static_cast<std::size_t>(random.between(0, 1));
    Box rest = boxes[at];
    const std::int64_t first = random.between(0, rest.sizes[axis]);
    boxes[at].sizes[axis] = first;
    rest.offsets[axis] += first;
    rest.sizes[axis] -= first;
    boxes.push_back(std::move(rest));
  }
  std::vector<std::vector<Box>> ranks(static_cast<std::size_t>(random.between(1, 4)));
  for (Box& box : boxes)
    ranks[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(ranks.size()) - 1))]
        .push_back(std::move(box));
  return ranks;
}

TEST_F(ShardedStateDict, AnyUnevenCutIsLoadedUnderAnyOther) {
  Random random;
  PerRank saved = random_cut(random);
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(random.trace(round));
    const auto path = checkpoint(std::to_string(round));
    save_boxes(saved, path);
    const PerRank loaded = random_cut(random);
    expect_loaded_as(loaded, path);
    saved = loaded;
  }
}

TEST_F(ShardedStateDict, TheMainReplicaMayLieOnAnyRank) {
  const auto vector_of = [](float value) {
    Tensor tensor = Tensor::empty(DType::kFloat32, {3});
    std::fill_n(reinterpret_cast<float*>(tensor.data()), 3, value);
    return tensor;
  };
  run_ranks(4, [&](Communicator& comm) {
    StateDict state = Value::dict();
    state["v"] = ShardedTensor::whole("v", vector_of(static_cast<float>(comm.rank())),
                                      {.replica_id = {0, 3 - comm.rank()}});
    save(state, checkpoint(), {}, comm);
  });
  run_ranks(4, [&](Communicator& comm) {
    StateDict state = Value::dict();
    const bool asks = comm.rank() == 1;
    if (asks) state["v"] = ShardedTensor::whole("v", vector_of(9), {.replica_id = {0, 5}});
    load(state, checkpoint(), {.validate_access_integrity = false}, comm);
    EXPECT_TRUE(!asks || equal(state["v"].as_tensor(), vector_of(3)))
        << "that of rank 3, whose replica id is all zeros";
  });
}

TEST_F(ShardedStateDict, ObjectsComeBackAsTheKindTheyWere) {
  const Value stream = Value(Opaque{.callable = Global{"_io", "BytesIO"},
                                    .args = Value::tuple({Value::bytes(to_bytes("state"))})});
  const ValueList objects{Value::set({1, 2}),
                          Value::tuple({}),
                          Value::dict(),
                          Value::dict({{1, Value::list({nullptr, 0.5})}}),
                          Value::bytes(to_bytes("b")),
                          "text",
                          false,
                          {},
                          stream};
  StateDict state = Value::dict();
  StateDict wanted = Value::dict();
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const std::string key = "object" + std::to_string(i);
    state[key] = ShardedObject{.key = key, .data = objects[i]};
    wanted[key] = ShardedObject{.key = key};
  }
  save(state, checkpoint());
  load(wanted, checkpoint());
  for (std::size_t i = 0; i < objects.size(); ++i)
    EXPECT_EQ(wanted["object" + std::to_string(i)].as_sharded_object().data, objects[i]) << i;
}

/// Collects every message of the library during its lifetime.
class LogCapture {
 public:
  LogCapture() {
    set_log_sink([this](LogLevel level, std::string_view message) {
      if (level >= LogLevel::kWarning) messages.emplace_back(message);
    });
  }
  ~LogCapture() { set_log_sink({}); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::vector<std::string> messages;
};

class EveryStrictMode : public ShardedStateDict,
                        public ::testing::WithParamInterface<StrictHandling> {
 protected:
  /// Saves a tensor, an object, and a common state that no load requests, which the newer form
  /// keeps as an object.
  void save_two(Compat compat) {
    StateDict state = Value::dict({{"iteration", 3}});
    state["w"] = ShardedTensor::whole("w", part_of_matrix(whole(kShape)));
    state["rng"] = ShardedObject{.key = "rng", .data = 1};
    save(state, checkpoint(), {.compat = compat, .overwrite = true});
  }
};

TEST_P(EveryStrictMode, SaysNothingOfAnExactLoad) {
  for (const Compat compat : {Compat::kMegatron, Compat::kMegatron019}) {
    save_two(compat);
    StateDict state = Value::dict();
    state["anywhere"] = ShardedTensor::whole("w", Tensor::zeros(DType::kInt64, kShape));
    state["rng"] = ShardedObject{.key = "rng"};
    const LogCapture log;
    const LoadReport report = load(state, checkpoint(), {.strict = GetParam()});
    EXPECT_THAT(report.missing, IsEmpty());
    EXPECT_THAT(report.unexpected, IsEmpty());
    EXPECT_THAT(log.messages, IsEmpty());
    EXPECT_EQ(state["iteration"], Value(3));
  }
}

TEST_P(EveryStrictMode, ReportsStoredKeysThatNobodyWantsOnlyIfItIsForAll) {
  save_two(Compat::kMegatron);
  StateDict state = Value::dict();
  state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kInt64, kShape));
  const LogCapture log;
  if (GetParam() == StrictHandling::kRaiseAll) {
    EXPECT_THROW(load(state, checkpoint(), {.strict = GetParam()}), CheckpointError);
    return;
  }
  const LoadReport report = load(state, checkpoint(), {.strict = GetParam()});
  EXPECT_EQ(log.messages.size(), GetParam() == StrictHandling::kLogAll ? 1U : 0U);
  EXPECT_EQ(report.missing.size(), GetParam() == StrictHandling::kReturnAll ? 1U : 0U);
  EXPECT_TRUE(equal(state["w"].as_tensor(), part_of_matrix(whole(kShape))));
}

INSTANTIATE_TEST_SUITE_P(All, EveryStrictMode,
                         ::testing::Values(StrictHandling::kAssumeOkUnexpected,
                                           StrictHandling::kLogUnexpected, StrictHandling::kLogAll,
                                           StrictHandling::kRaiseUnexpected,
                                           StrictHandling::kRaiseAll,
                                           StrictHandling::kReturnUnexpected,
                                           StrictHandling::kReturnAll, StrictHandling::kIgnoreAll),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace dckpt::sharded_state_dict_test
