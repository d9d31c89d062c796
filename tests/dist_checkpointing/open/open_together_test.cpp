#include "dist_checkpointing/open/open_together.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <mutex>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "mapping/base/log.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/posix.h"
#include "tests/dist_checkpointing/save_load.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/golden.h"

namespace dckpt::open_together_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kRanks = 4;

/// The number of times that each file was opened, by its name in its folder.
struct Opened {
  std::mutex mutex;
  std::map<std::string, int> times;
};

class LoggingStorage final : public ForwardingStorage {
 public:
  LoggingStorage(std::shared_ptr<Storage> storage, std::shared_ptr<Opened> opened)
      : ForwardingStorage(std::move(storage)), opened_(std::move(opened)) {}

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    {
      const std::lock_guard lock(opened_->mutex);
      ++opened_->times[name];
    }
    return storage_->open(name);
  }
  std::shared_ptr<Storage> subtree(const std::string& name) override {
    return std::make_shared<LoggingStorage>(storage_->subtree(name), opened_);
  }

 private:
  std::shared_ptr<Opened> opened_;
};

class OpenTogether : public SaveLoad {
 protected:
  static StateDict state_of(int rank, bool wanted) {
    const Shape shape{8, 3};
    StateDict state;
    const Box part{{rank * 2, 0}, {2, 3}};
    state["w"] = ShardedTensor::from_rank_offsets(
        "w", wanted ? Tensor::zeros(DType::kFloat32, part.sizes) : part_of_arange(shape, part),
        {{.axis = 0, .rank = rank, .count = kRanks}});
    state["step"] = wanted ? 0 : 7;
    return state;
  }

  static Location logged(const fs::path& path, const std::shared_ptr<Opened>& opened) {
    return Location(std::make_shared<LoggingStorage>(posix_storage(path.parent_path()), opened),
                    path.filename().string());
  }

  void save_all() {
    save_on(kRanks, [](int rank) { return state_of(rank, false); }, {.integrity = true});
  }

  /// Loads with each rank's location and compares. Returns the error of each rank.
  static std::vector<std::string> load_from(const std::function<Location(int rank)>& location,
                                            const LoadOptions& options = {}) {
    std::vector<std::string> errors(kRanks, "no error");
    run_ranks(kRanks, [&](Communicator& comm) {
      const int rank = comm.rank();
      StateDict state = state_of(rank, true);
      try {
        load(state, location(rank), options, comm);
        EXPECT_TRUE(equal(*state["w"].as_sharded_tensor().data,
                          *state_of(rank, false)["w"].as_sharded_tensor().data));
        EXPECT_EQ(state["step"].as_int(), 7);
      } catch (const CheckpointError& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    return errors;
  }

  static void expect_everywhere(const std::vector<std::string>& errors, const std::string& text) {
    EXPECT_THAT(errors[0], HasSubstr(text));
    EXPECT_THAT(errors, ::testing::Each(errors[0]));
  }
};

TEST_F(OpenTogether, EachFileThatTellsWhatIsStoredIsOpenedOnceByAllRanks) {
  save_all();
  const auto opened = std::make_shared<Opened>();
  const auto at = [&](int) { return logged(checkpoint(), opened); };
  for (const int loads : {1, 2}) {
    expect_everywhere(load_from(at), "no error");
    for (const char* const name : {".metadata", "metadata.json", "common.pt"})
      EXPECT_EQ(opened->times[name], loads) << name;
  }
  // The files themselves are compared with their digests, each by one rank.
  expect_everywhere(load_from(at, {.verify = Verify::kSha256}), "no error");
  EXPECT_EQ(opened->times["integrity.json"], 3) << "each load compares sizes";
  EXPECT_EQ(opened->times[".metadata"], 4);
}

TEST_F(OpenTogether, WhatWasReadTravelsInPieces) {
  const Tensor large = arange({5, 1 << 20});
  save(StateDict(Value::dict({{"large", large}})), checkpoint());
  ASSERT_GT(fs::file_size(checkpoint() / "common.pt"), std::uint64_t{16} << 20);
  const auto opened = std::make_shared<Opened>();
  run_ranks(3, [&](Communicator& comm) {
    StateDict state = Value::dict({{"large", Tensor::zeros(DType::kFloat32, {5, 1 << 20})}});
    load(state, logged(checkpoint(), opened), {}, comm);
    EXPECT_TRUE(equal(state["large"].as_tensor(), large));
  });
  EXPECT_EQ(opened->times["common.pt"], 1);
}

TEST_F(OpenTogether, ThePlaceWhereARunIsIsLookedUpOnce) {
  save_all();
  const fs::path root = checkpoint("root");
  fs::create_directory(root);
  fs::rename(checkpoint(), root / "iter_0000010");
  std::ofstream(root / "latest_checkpointed_iteration.txt") << "10";
  const auto opened = std::make_shared<Opened>();
  expect_everywhere(load_from([&](int) { return logged(root, opened); }), "no error");
  EXPECT_EQ(opened->times["latest_checkpointed_iteration.txt"], 1);
  EXPECT_EQ(opened->times[".metadata"], 1);
}

/// A key map also reads the model's numbers.
TEST_F(OpenTogether, AKeyMapsConfigurationIsReadByOneRank) {
  save(StateDict(Value::dict({{"w", ShardedTensor::whole("w", arange({8, 3}))}})), checkpoint(),
       {.strategy = {.name = "hf"}});
  std::ofstream(checkpoint() / "config.json") << R"({"hidden_size": 3})";
  std::ofstream(checkpoint() / "run_config.yaml") << "model: {hidden_size: 3}\n";
  const fs::path map = directory_.path() / "one.yaml";
  std::ofstream(map) << R"(version: 1
family: one
numbers: {hidden_size: {args: hidden_size, hf: hidden_size}}
tensors:
  - {megatron: decoder.weight, hf: w, columns: hidden_size}
)";
  const auto opened = std::make_shared<Opened>();
  run_ranks(kRanks, [&](Communicator& comm) {
    StateDict state;
    state["w"] = ShardedTensor::whole("decoder.weight", Tensor::zeros(DType::kFloat32, {8, 3}),
                                      {.replica_id = comm.rank()});
    load(state, logged(checkpoint(), opened), {.map = {.name = map.string()}}, comm);
    EXPECT_TRUE(equal(state.at("w").as_tensor(), arange({8, 3})));
  });
  for (const char* const name : {"config.json", "run_config.yaml"})
    EXPECT_EQ(opened->times[name], 1) << name;
}

/// Calls `meanwhile` before it reports the contents.
class InterruptedStorage final : public ForwardingStorage {
 public:
  InterruptedStorage(std::shared_ptr<Storage> storage, std::function<void()> meanwhile)
      : ForwardingStorage(std::move(storage)), meanwhile_(std::move(meanwhile)) {}

  std::optional<FileInfo> stat(const std::string& name) const override {
    meanwhile_();
    return storage_->stat(name);
  }
  std::shared_ptr<Storage> subtree(const std::string& name) override {
    return std::make_shared<InterruptedStorage>(storage_->subtree(name), meanwhile_);
  }

 private:
  std::function<void()> meanwhile_;
};

TEST_F(OpenTogether, AKeyMapIsReadByOneRankWithWhatItExtends) {
  save(StateDict(Value::dict({{"w", ShardedTensor::whole("w", arange({8, 3}))}})), checkpoint(),
       {.strategy = {.name = "hf"}});
  const fs::path map = directory_.path() / "two.yaml";
  std::ofstream(directory_.path() / "one.yaml") << R"(version: 1
family: one
tensors:
  - {megatron: decoder.weight, hf: w}
)";
  std::ofstream(map) << "version: 1\nextends: one.yaml\nfamily: two\n";
  const auto load_mapped = [&] {
    std::vector<std::string> errors(kRanks, "no error");
    run_ranks(kRanks, [&](Communicator& comm) {
      StateDict state;
      state["w"] = ShardedTensor::whole("decoder.weight", Tensor::zeros(DType::kFloat32, {8, 3}),
                                        {.replica_id = comm.rank()});
      // Rank 0 has read the map when the others look at the checkpoint.
      const Location location(
          std::make_shared<InterruptedStorage>(posix_storage(checkpoint().parent_path()),
                                               [&, is_first = comm.rank() == 0] {
                                                 if (!is_first) fs::remove(map);
                                               }),
          checkpoint().filename().string());
      try {
        load(state, location, {.map = {.name = map.string()}}, comm);
        EXPECT_TRUE(equal(state.at("w").as_tensor(), arange({8, 3})));
      } catch (const CheckpointError& error) {
        errors[static_cast<std::size_t>(comm.rank())] = error.what();
      }
    });
    return errors;
  };
  expect_everywhere(load_mapped(), "no error");
  EXPECT_FALSE(fs::exists(map));
  expect_everywhere(load_mapped(), "two.yaml");  // missing on rank 0
}

TEST_F(OpenTogether, ARankWithACopyOfItsOwnReadsThat) {
  save_all();
  fs::create_directory(checkpoint("node"));
  const fs::path copy = checkpoint("node") / checkpoint().filename();
  fs::copy(checkpoint(), copy);
  const auto shared = std::make_shared<Opened>();
  const auto own = std::make_shared<Opened>();
  const auto at = [&](int rank) {
    return rank == 2 ? logged(copy, own) : logged(checkpoint(), shared);
  };
  expect_everywhere(load_from(at), "no error");
  EXPECT_EQ(shared->times[".metadata"], 1);
  EXPECT_EQ(own->times[".metadata"], 1);
  EXPECT_EQ(own->times["common.pt"], 1);

  fs::remove_all(copy);
  run_ranks(kRanks,
            [&](Communicator& comm) { save(state_of(comm.rank(), false), copy, {}, comm); });
  expect_everywhere(load_from(at), "the ranks were given different checkpoints");
  fs::remove_all(copy);
  expect_everywhere(load_from(at), "does not exist");
}

TEST_F(OpenTogether, WhatIsWrongWithTheFilesIsTheSameErrorOnAllRanks) {
  const auto opened = std::make_shared<Opened>();
  const auto at = [&](int) { return logged(checkpoint(), opened); };
  expect_everywhere(load_from(at), "does not exist");
  save_all();
  fs::resize_file(checkpoint() / ".metadata", fs::file_size(checkpoint() / ".metadata") / 2);
  expect_everywhere(load_from(at), ".metadata");
  EXPECT_EQ(opened->times[".metadata"], 1);
  fs::remove(checkpoint() / ".metadata");
  expect_everywhere(load_from(at), ".metadata is missing");
  save_on(kRanks, [](int rank) { return state_of(rank, false); }, {.overwrite = true});
  fs::resize_file(checkpoint() / "common.pt", 100);
  expect_everywhere(load_from(at), "common.pt");
  EXPECT_EQ(opened->times["common.pt"], 1);
}

TEST_F(OpenTogether, AFailureOfAnyRanksStorageAtAnyTimeIsTheErrorOfAll) {
  save_all();
  for (const int failing : {0, 2}) {
    bool fired = true;
    for (std::uint64_t at = 1; fired; ++at) {
      SCOPED_TRACE("rank " + std::to_string(failing) + ", operation " + std::to_string(at));
      const auto faulty = std::make_shared<FaultyStorage>(posix_storage(directory_.path()),
                                                          Fault{Fault::Kind::kError, at});
      const std::vector<std::string> errors = load_from([&](int rank) {
        return rank == failing ? Location(faulty, checkpoint().filename().string())
                               : Location(checkpoint());
      });
      fired = faulty->fired();
      // A failure while a rank checks whether it has the same files makes it open its own.
      if (errors[0] != "no error") expect_everywhere(errors, "injected");
      if (failing == 0) {
        EXPECT_EQ(errors[0] != "no error", fired);
      }
    }
  }
}

TEST_F(OpenTogether, WhatAReaderWarnsOfIsSaidByOneRank) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view message) { warnings.emplace_back(message); });
  run_ranks(kRanks, [&](Communicator& comm) {
    open_together(testing::golden("mcore-0.14-flattened-single"), comm,
                  [&](const Location& from, std::string&) {
                    (void)open_checkpoint(from);
                    log_warning("the optimizer's state is left out");
                  });
  });
  set_log_sink({});
  EXPECT_EQ(warnings.size(), 1U);
}

TEST_F(OpenTogether, EveryFormatIsOpenedFromWhatOneRankHasRead) {
  int checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(DCKPT_TEST_DATA) / "checkpoints")) {
    SCOPED_TRACE(entry.path().filename().string());
    const auto alone = open_checkpoint(entry.path() / "ckpt");
    run_ranks(2, [&](Communicator& comm) {
      const auto opened = std::make_shared<Opened>();
      const Location location = logged(entry.path() / "ckpt", opened);
      std::unique_ptr<CheckpointReader> reader;
      Value common;
      open_together(location, comm, [&](const Location& from, std::string&) {
        reader = open_checkpoint(from);
        common = reader->common_state();
      });
      EXPECT_EQ(opened->times.empty(), comm.rank() != 0);
      EXPECT_EQ(common, alone->common_state());
      const auto& tensors = reader->metadata().tensors;
      ASSERT_EQ(tensors.size(), alone->metadata().tensors.size());
      for (const std::size_t i : {std::size_t{0}, tensors.size() / 2}) {
        if (i >= tensors.size()) continue;
        const Box all = whole(tensors[i].global_shape());
        EXPECT_TRUE(equal(read_box(*reader, i, all), read_box(*alone, i, all)));
      }
    });
    ++checkpoints;
  }
  EXPECT_GT(checkpoints, 30);
}

}  // namespace
}  // namespace dckpt::open_together_test
