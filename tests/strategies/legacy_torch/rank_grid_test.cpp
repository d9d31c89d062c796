#include "strategies/legacy_torch/rank_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/legacy_torch/legacy_reader.h"
#include "strategies/storage/memory.h"
#include "tests/support/expect_error.h"

namespace dckpt::rank_grid_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

/// A run as Megatron's legacy format stores it. Tests remove its files, swap them or replace them.
struct LegacyRun {
  std::int64_t tensor = 2, pipeline = 1, expert = 1, data = 1;
  std::map<std::string, Value> files{};  // key: relative name

  Value state(std::int64_t rank) const {
    Opaque args{.callable = Global{"argparse", "Namespace"}};
    args.states.push_back(Value::dict({{"tensor_model_parallel_size", tensor},
                                       {"pipeline_model_parallel_size", pipeline},
                                       {"expert_model_parallel_size", expert},
                                       {"world_size", tensor * pipeline * expert * data},
                                       {"rank", rank}}));
    return Value::dict({{"args", std::move(args)},
                        {"iteration", 10},
                        {"model", Value::dict({{"w", weight(rank)}})}});
  }

  static Tensor weight(std::int64_t rank) {
    const std::string bytes(8, static_cast<char>('a' + rank));
    return Tensor::from_bytes(DType::kUInt8, {8}, as_bytes(bytes));
  }

  static std::string main(const std::string& folder) { return folder + "/model_optim_rng.pt"; }

  LegacyRun& add(const std::string& folder, std::int64_t rank) {
    files[main(folder)] = state(rank);
    return *this;
  }

  void swap(const std::string& a, const std::string& b) {
    std::swap(files.at(main(a)), files.at(main(b)));
  }
  void copy(const std::string& from, const std::string& to) {
    files[main(to)] = files.at(main(from));
  }
  void remove(const std::string& folder) { files.erase(main(folder)); }

  std::shared_ptr<Storage> storage() const {
    auto storage = memory_storage();
    for (const auto& [name, value] : files) {
      storage->make_directory(name.substr(0, name.find('/')));
      const auto file = storage->create(name);
      file->append(ByteView(save_torch_file(value)));
      file->close();
    }
    return storage;
  }

  void open() const { open_legacy_torch(storage()); }

  void expect(ErrorCode code, const std::string& message) const {
    const CheckpointError error = error_of([&] { open(); });
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
};

LegacyRun tensor_parallel() {
  return LegacyRun{}.add("mp_rank_00", 0).add("mp_rank_01", 1);
}

LegacyRun tensor_and_pipeline() {
  return LegacyRun{.pipeline = 2, .data = 2}
      .add("mp_rank_00_000", 0)
      .add("mp_rank_01_000", 1)
      .add("mp_rank_00_001", 4)
      .add("mp_rank_01_001", 5);
}

LegacyRun experts() {
  return LegacyRun{.tensor = 1, .pipeline = 2, .expert = 2}
      .add("mp_rank_00_000_000", 0)
      .add("mp_rank_00_000_001", 1)
      .add("mp_rank_00_001_000", 2)
      .add("mp_rank_00_001_001", 3);
}

TEST(RankGrid, WholeRunsAreOpened) {
  tensor_parallel().open();
  tensor_and_pipeline().open();
  experts().open();
  LegacyRun{.tensor = 1, .expert = 2}
      .add("mp_rank_00_000", 0)
      .add("mp_rank_00_001", 1)
      .open();  // no pipeline: the second number is the expert's
}

TEST(RankGrid, MissingFoldersAreNamed) {
  for (const char* folder :
       {"mp_rank_00_000", "mp_rank_01_000", "mp_rank_00_001", "mp_rank_01_001"}) {
    LegacyRun run = tensor_and_pipeline();
    run.remove(folder);
    run.expect(ErrorCode::kIncomplete, std::string("missing: '") + folder + "'");
  }
  LegacyRun run = tensor_parallel();
  run.remove("mp_rank_01");
  run.expect(ErrorCode::kIncomplete, "1 of 2 rank folders (the run had parallel sizes tensor 2");
}

TEST(RankGrid, WithoutArgumentsTheNamesSayWhatIsMissing) {
  LegacyRun run = tensor_and_pipeline();
  for (auto& [name, state] : run.files) state["args"] = Value();
  run.open();
  run.remove("mp_rank_00_001");
  run.expect(ErrorCode::kIncomplete, "missing: 'mp_rank_00_001'");
}

TEST(RankGrid, ExchangedFoldersAreFound) {
  LegacyRun run = tensor_parallel();
  run.swap("mp_rank_00", "mp_rank_01");
  run.expect(ErrorCode::kCorrupt, "the file was written by rank 1, which belongs in 'mp_rank_01'");
  run = tensor_and_pipeline();
  run.swap("mp_rank_00_000", "mp_rank_00_001");
  run.expect(ErrorCode::kCorrupt,
             "the file was written by rank 4, which belongs in 'mp_rank_00_001'");
  run = experts();
  run.swap("mp_rank_00_001_000", "mp_rank_00_001_001");
  run.expect(ErrorCode::kCorrupt, "belongs in 'mp_rank_00_001_001'");
}

TEST(RankGrid, CopiesAreFound) {
  LegacyRun run = tensor_and_pipeline();
  run.copy("mp_rank_00_000", "mp_rank_01_000");
  run.expect(ErrorCode::kCorrupt,
             "rank 0 wrote the files of 'mp_rank_00_000' and of 'mp_rank_01_000'");
}

TEST(RankGrid, WhereOneProcessWroteAllFilesCopiesAreFoundByTheirBytes) {
  LegacyRun run;
  for (const int part : {0, 1}) {
    const std::string folder = "mp_rank_0" + std::to_string(part);
    run.add(folder, 0).files[LegacyRun::main(folder)]["model"]["w"] = LegacyRun::weight(part);
  }
  run.open();
  run.copy("mp_rank_00", "mp_rank_01");
  run.expect(ErrorCode::kCorrupt, "the file is a copy of 'mp_rank_00/model_optim_rng.pt'");
}

TEST(RankGrid, FoldersOfAnotherSaveAreFound) {
  LegacyRun run = tensor_parallel();
  run.files[LegacyRun::main("mp_rank_01")]["iteration"] = 20;
  run.expect(ErrorCode::kCorrupt, "has iteration 20, the one in 'mp_rank_00' has 10");
  run = tensor_parallel();
  run.files[LegacyRun::main("mp_rank_01")] = LegacyRun{.tensor = 4}.state(1);
  run.expect(ErrorCode::kCorrupt, "from different runs: parallel sizes in this one are tensor 4");
  run = tensor_parallel();
  run.add("mp_rank_02", 2);
  run.expect(ErrorCode::kCorrupt, "left over from another save");
  run = tensor_parallel();
  run.add("mp_rank_00_000", 0);
  run.expect(ErrorCode::kCorrupt, "folders of different layouts are mixed");
}

TEST(RankGrid, EveryFolderHasItsFiles) {
  const Value moments = Value::dict({{"exp_avg", LegacyRun::weight(7)}});
  LegacyRun run = tensor_parallel();
  run.files["mp_rank_00/distrib_optim.pt"] = moments;
  run.expect(ErrorCode::kIncomplete, "no distrib_optim.pt, others have");
  run.files["mp_rank_01/distrib_optim.pt"] = moments;
  run.expect(ErrorCode::kCorrupt, "the file is a copy of 'mp_rank_00/distrib_optim.pt'");
  run.files["mp_rank_01/distrib_optim.pt"] = Value::dict({{"exp_avg", LegacyRun::weight(8)}});
  run.open();
  run.remove("mp_rank_01");
  run.expect(ErrorCode::kIncomplete, "no model_optim_rng.pt");
}

TEST(RankGrid, TheOldDistributedOptimizerHasFoldersOfItsOwn) {
  LegacyRun run;
  for (const int tensor : {0, 1}) {
    const std::string folder = "mp_rank_0" + std::to_string(tensor);
    run.files[folder + "/model_rng.pt"] = run.state(tensor);
    run.files[folder + "_000/optim.pt"] = Value::dict({{"exp_avg", LegacyRun::weight(tensor)}});
  }
  run.open();
}

}  // namespace
}  // namespace dckpt::rank_grid_test
