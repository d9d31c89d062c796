#include "dist_checkpointing/open/open.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/verify.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::open_foreign_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

void expect_refused(const fs::path& path, ErrorCode code, const std::string& message) {
  const CheckpointError error = error_of([&] { (void)open_checkpoint(path); });
  EXPECT_EQ(error.code(), code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(message));
}

TEST(OpenCheckpoint, SafetensorsAreRecognizedByTheirNameAndByTheirStart) {
  const fs::path golden = testing::golden("dcp-hf-safetensors");
  EXPECT_EQ(open_checkpoint(golden)->metadata().tensors.size(), 4U);
  EXPECT_EQ(open_checkpoint(golden / "model.safetensors.index.json")->metadata().tensors.size(),
            4U);
  const fs::path file = golden / "model-00001-of-00002.safetensors";
  EXPECT_EQ(open_checkpoint(file)->metadata().tensors.size(), 2U);
  TempDir directory;
  fs::copy_file(file, directory.path() / "weights.bin");
  EXPECT_EQ(open_checkpoint(directory.path() / "weights.bin")->info().format, "safetensors");
  std::ofstream(directory.path() / "metadata.pkl") << "";
  fs::copy_file(file, directory.path() / "model_0.safetensors");
  expect_refused(directory.path(), ErrorCode::kCorrupt, "metadata.pkl");
}

TEST(OpenCheckpoint, AnIndexThatIsNoFileIsNotPassedOver) {
  TempDir directory;
  const fs::path model = directory.path() / "model";
  fs::copy(testing::golden("dcp-hf-safetensors"), model, fs::copy_options::recursive);
  fs::rename(model / "model.safetensors.index.json", directory.path() / "index");
  ASSERT_EQ(::mkfifo((model / "model.safetensors.index.json").c_str(), 0600), 0);
  expect_refused(model, ErrorCode::kCorrupt, "it is a FIFO, not a regular file");
  fs::remove(model / "model.safetensors.index.json");
  fs::create_symlink(directory.path() / "index", model / "model.safetensors.index.json");
  expect_refused(model, ErrorCode::kCorrupt, "it is a symbolic link, not a regular file");
}

TEST(OpenCheckpoint, StepsOfOrbaxAreNoRanks) {
  TempDir directory;
  fs::create_directories(directory.path() / "1000/default");
  std::ofstream(directory.path() / "1000/default/manifest.ocdbt") << "";
  std::ofstream(directory.path() / "1000/_CHECKPOINT_METADATA") << "{}";
  expect_refused(directory.path(), ErrorCode::kIncomplete, "it is a folder of Orbax");
  fs::create_directories(directory.path() / "ranks/0");
  expect_refused(directory.path() / "ranks", ErrorCode::kIncomplete, "RANK/iter_*_local.pt");
}

/// NVRx keeps the ranks of a session in a folder below its root, which may hold other files.
TEST(OpenCheckpoint, TheRootOfLocalCheckpointsNamesItsSessions) {
  for (const char* const second : {"1", "evening"}) {
    TempDir root;
    const auto sessions = {root.path() / "0", root.path() / second};
    for (const fs::path& session : sessions) {
      fs::copy(testing::golden("mcore-0.16-nvrx-local"), session, fs::copy_options::recursive);
      std::ofstream(session / "notes.txt") << "keep";
      fs::create_directory(session / "logs");
      EXPECT_EQ(open_checkpoint(session)->info().format, "local");
    }
    const std::string names = str_format("sessions '0', '{}'; name one of them, such as {}", second,
                                         quote((root.path() / "0").string()));
    expect_refused(root.path(), ErrorCode::kIncomplete,
                   "it is a folder of NVRx local checkpoints, around the " + names);
    const CheckpointError error =
        error_of([&] { (void)open_checkpoint(root.path(), {.iteration = 10}); });
    EXPECT_THAT(error.what(), HasSubstr(names));
  }
}

TEST(OpenCheckpoint, ATrainingFolderOfAutomodelOffersItsModels) {
  TempDir root;
  for (const char* const step : {"epoch_0_step_19", "epoch_1_step_39"}) {
    const fs::path checkpoint = root.path() / step;
    fs::create_directories(checkpoint / "dataloader");
    fs::create_directories(checkpoint / "rng");
    for (const char* const file : {"dataloader/dataloader_dp_rank_0.pt", "rng/rng_dp_rank_0.pt"})
      std::ofstream(checkpoint / file, std::ios::binary)
          << as_text(save_torch_file(Value::dict({{"step", 19}})));
    fs::copy(testing::golden("dcp-hf-safetensors"), checkpoint / "model",
             fs::copy_options::recursive);
  }
  fs::create_directory_symlink("epoch_1_step_39", root.path() / "LATEST");  // not followed
  expect_refused(root.path(), ErrorCode::kIncomplete, "it is a folder of NeMo Automodel, around '");
  expect_refused(root.path(), ErrorCode::kIncomplete,
                 "such as " + quote((root.path() / "epoch_1_step_39/model").string()));
  expect_refused(root.path() / "epoch_0_step_19", ErrorCode::kIncomplete,
                 "such as " + quote((root.path() / "epoch_0_step_19/model").string()));
}

TEST(OpenCheckpoint, AFolderWithNumbersIsNoCheckpointToReplace) {
  TempDir directory;
  fs::create_directories(directory.path() / "results/1");
  const CheckpointError error = error_of([&] {
    convert(testing::golden("dcp-hf-safetensors"), directory.path() / "results",
            {.target = {.strategy = "dcp", .overwrite = true}});
  });
  EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists) << error.what();
  EXPECT_TRUE(fs::exists(directory.path() / "results/1"));
}

TEST(OpenCheckpoint, AFolderAroundARootOfMegatronIsOfNoOtherFramework) {
  const CheckpointError error =
      error_of([] { (void)open_checkpoint(testing::golden("legacy-torch-tp2pp2").parent_path()); });
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("it is a folder around 'ckpt"), Not(HasSubstr("verl"))));
}

TEST(OpenCheckpoint, FilesOfFormatsThatAreNotReadAreNamed) {
  TempDir directory;
  const auto file = [&](const std::string& name, const std::string& content) {
    std::ofstream(directory.path() / name, std::ios::binary) << content;
    return directory.path() / name;
  };
  expect_refused(file("model.gguf", std::string("GGUF\3\0\0\0", 8)), ErrorCode::kUnsupported,
                 "GGUF file of llama.cpp");
  expect_refused(file("model.h5", "\x89HDF\r\n"), ErrorCode::kUnsupported, "HDF5 file");
  expect_refused(file("old.nemo", std::string(257, 'x') + "ustar"), ErrorCode::kUnsupported,
                 "unpack it (tar -xf)");
  expect_refused(file("model.pt", "GGU"), ErrorCode::kCorrupt, "this is not a torch.save file");
}

TEST(OpenCheckpoint, AFolderOfTorchWeightsIsNamed) {
  TempDir directory;
  for (const char* const name : {"config.json", "consolidated.00.pth"})
    std::ofstream(directory.path() / name) << "{}";
  expect_refused(directory.path(), ErrorCode::kIncomplete,
                 "the model's weights are in 'consolidated.00.pth', as torch.save");
}

TEST(OpenCheckpoint, WithoutMetadataJsonAMegatronCheckpointIsNoPlainDcpDirectory) {
  TempDir directory;
  fs::copy(testing::golden("mcore-0.14-flattened-single"), directory.path() / "ckpt",
           fs::copy_options::recursive);
  fs::remove(directory.path() / "ckpt/metadata.json");
  expect_refused(directory.path() / "ckpt", ErrorCode::kIncomplete,
                 "metadata.json is missing, but there is common.pt");
  std::ofstream(directory.path() / "ckpt/metadata.json")
      << R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";
  EXPECT_EQ(open_checkpoint(directory.path() / "ckpt")->info().format, "torch_dist");
}

TEST(OpenCheckpoint, TheCommonStateIsADict) {
  for (const char* name : {"mcore-0.14-flattened-single", "mcore-0.14-zarr-tp2pp1dp2"}) {
    TempDir directory;
    const fs::path checkpoint = directory.path() / "ckpt";
    fs::copy(testing::golden(name), checkpoint, fs::copy_options::recursive);
    const Bytes list = save_torch_file(Value::list({1, 2}));
    std::ofstream(checkpoint / "common.pt", std::ios::binary) << as_text(list);
    const auto reader = open_checkpoint(checkpoint);
    const CheckpointError error = error_of([&] { reader->common_state(); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << name;
    EXPECT_THAT(error.what(), HasSubstr("the common state is not a dict but list"));
  }
}

/// Goldens of read-only formats, and the format that they are detected as.
struct Foreign {
  const char* golden;
  const char* format;
  friend void PrintTo(const Foreign& foreign, std::ostream* out) { *out << foreign.golden; }
};

class ForeignGolden : public ::testing::TestWithParam<Foreign> {
 protected:
  fs::path path_ = testing::golden(GetParam().golden);
};

TEST_P(ForeignGolden, EveryTensorHasItsDigest) {
  const auto reader = open_checkpoint(path_);
  EXPECT_EQ(reader->info().format, GetParam().format);
  const Value expected = testing::golden_expected(GetParam().golden);
  const Dict& tensors = expected.at("tensors").as_dict();
  EXPECT_EQ(reader->metadata().tensors.size(), tensors.size());
  for (std::size_t i = 0; i < reader->metadata().tensors.size(); ++i) {
    const std::string& key = reader->metadata().tensors[i].key;
    const Value* const wanted = tensors.find(key);
    ASSERT_NE(wanted, nullptr) << key;
    const Value content = testing::describe_content(*reader, i);
    EXPECT_EQ(content.at("dtype"), wanted->at("dtype")) << key;
    EXPECT_EQ(content.at("shape"), wanted->at("global_shape")) << key;
    EXPECT_EQ(content.at("sha256"), wanted->at("sha256")) << key;
  }
}

TEST_P(ForeignGolden, IsSoundAndBecomesOtherFormatsWithoutLoss) {
  const auto reader = open_checkpoint(path_);
  for (const bool deep : {false, true}) {
    const VerifyReport report = verify(*reader, {.deep = deep});
    EXPECT_TRUE(report.ok()) << report.problems.front().what();
  }
  TempDir directory;
  const fs::path torch_dist = directory.path() / "torch_dist";
  const fs::path dcp = directory.path() / "dcp";
  convert(path_, torch_dist, {.target = {.strategy = "torch_dist", .ranks = 3}});
  convert(torch_dist, dcp, {.target = {.strategy = "dcp"}});
  EXPECT_THAT(diff(*reader, *open_checkpoint(dcp)).differences, ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Producers, ForeignGolden,
                         ::testing::Values(Foreign{"dcp-zstd-torch2.15", "dcp"},
                                           Foreign{"mcore-0.16-nvrx-local", "local"},
                                           Foreign{"tc-0.1-native-2d", "torch_checkpointing"},
                                           Foreign{"tc-0.1-async", "torch_checkpointing"},
                                           Foreign{"tc-0.1-safetensors", "torch_checkpointing"},
                                           Foreign{"tc-0.1-single", "torch_checkpointing"}));

}  // namespace
}  // namespace dckpt::open_foreign_test
