#include "strategies/legacy_torch/legacy_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/legacy_torch/nested_state.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "tests/support/golden.h"

namespace dckpt::legacy_reader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kGolden = "legacy-torch-tp2pp2";
constexpr const char* kIteration = "iter_0000010";

/// Returns the spelling of a rendered key in a path.
std::string path_part(const Value& key) {
  if (key.is_str()) return key.as_str();
  if (key.is_int()) return std::to_string(key.as_int());
  if (const Value* const dtype = key.find("__torch.dtype__")) return "torch." + dtype->as_str();
  std::string text;
  for (const Value& member : key.at("__tuple__").items())
    text += (text.empty() ? "" : ", ") + path_part(member);
  return "(" + text + ")";
}

/// Collects every rendered tensor in dicts and lists, under its path.
void collect_tensors(const Value& rendering, const std::string& path,
                     std::map<std::string, Value>& found) {
  const auto member = [&](const std::string& part, const Value& value) {
    collect_tensors(value, path + "." + part, found);
  };
  if (rendering.is_list()) {
    for (std::size_t index = 0; index < rendering.size(); ++index)
      member(std::to_string(index), rendering.items()[index]);
  } else if (const Value* const tensor = rendering.find("__tensor__")) {
    found.emplace(path.substr(1), *tensor);
  } else if (rendering.contains("__dict__") || rendering.contains("__OrderedDict__")) {
    for (const Value& pair : rendering.as_dict().begin()->second.items())
      member(path_part(pair.items()[0]), pair.items()[1]);
  } else if (rendering.is_dict()) {
    for (const auto& [key, value] : rendering.as_dict()) {
      if (!key.as_str().starts_with("__")) member(key.as_str(), value);
    }
  }
}

/// Returns key → content of all tensors of the golden, as recorded by its producer.
std::map<std::string, Value> expected_tensors() {
  std::map<std::string, Value> all;
  const Value expected = dckpt::testing::golden_expected(kGolden);
  for (const auto& [name, rendering] : expected.at("files").as_dict()) {
    std::map<std::string, Value> found;
    collect_tensors(rendering, "", found);
    const std::filesystem::path file(name.as_str());
    const std::string prefix = file.parent_path().filename().string() + "/" +
                               (file.stem() == "model_optim_rng" ? "" : file.stem().string() + ".");
    for (auto& [path, tensor] : found) all.emplace(prefix + path, tensor);
  }
  return all;
}

std::shared_ptr<Storage> storage_with(const std::vector<std::pair<std::string, Value>>& files) {
  auto storage = memory_storage();
  for (const auto& [name, value] : files) {
    if (const std::size_t slash = name.find('/'); slash != std::string::npos)
      storage->make_directory(name.substr(0, slash));
    const auto file = storage->create(name);
    const Bytes content = save_torch_file(value);
    file->append(ByteView(content));
    file->close();
  }
  return storage;
}

std::vector<std::string> keys(const CheckpointReader& reader) {
  std::vector<std::string> result;
  for (const TensorStorageMetadata& tensor : reader.metadata().tensors)
    result.push_back(tensor.key);
  return result;
}

Tensor small_tensor() {
  return Tensor::from_bytes(DType::kUInt8, {2}, as_bytes("ab"));
}

TEST(LegacyReader, FindsEveryTensorOfTheGoldenWithItsContent) {
  const auto reader =
      open_legacy_torch(posix_storage(dckpt::testing::golden(kGolden) / kIteration));
  const auto expected = expected_tensors();
  ASSERT_GT(expected.size(), 50u);
  EXPECT_EQ(reader->metadata().tensors.size(), expected.size());
  for (std::size_t tensor = 0; tensor < reader->metadata().tensors.size(); ++tensor) {
    const std::string& key = reader->metadata().tensors[tensor].key;
    ASSERT_TRUE(expected.contains(key)) << key;
    const Value content = dckpt::testing::describe_content(*reader, tensor);
    for (const char* const field : {"dtype", "shape", "sha256"})
      EXPECT_EQ(content.at(field), expected.at(key).at(field)) << key;
  }
}

TEST(LegacyReader, KeepsTheRestAsCommonStateByFile) {
  const auto reader =
      open_legacy_torch(posix_storage(dckpt::testing::golden(kGolden) / kIteration));
  const Value common = reader->common_state();
  const Value& main = common.at("mp_rank_01_000/model_optim_rng.pt");
  EXPECT_EQ(main.at("iteration"), Value(10));
  EXPECT_EQ(main.at("checkpoint_version"), Value(3.0));
  EXPECT_EQ(main.at("args").as_opaque().class_path(), "argparse.Namespace");
  EXPECT_TRUE(common.at("mp_rank_01_000/distrib_optim.pt").at("buckets_coalesced").as_bool());
}

TEST(LegacyReader, ChecksTheCrcsOfTheWholeFile) {
  const auto reader =
      open_legacy_torch(posix_storage(dckpt::testing::golden(kGolden) / kIteration));
  EXPECT_TRUE(reader->check_chunk(0, 0, *reader->storage().open(reader->metadata().files[0])));
}

TEST(LegacyReader, OneRankNeedsNoPrefixSeveralDo) {
  const Value state =
      Value::dict({{"model", Value::dict({{"weight", small_tensor()}})}, {"iteration", 3}});
  EXPECT_THAT(keys(*open_legacy_torch(storage_with({{"mp_rank_00/model_optim_rng.pt", state}}))),
              ElementsAre("model.weight"));
  Value other = state;
  other["model"]["weight"] = Tensor::from_bytes(DType::kUInt8, {2}, as_bytes("cd"));
  EXPECT_THAT(
      keys(*open_legacy_torch(storage_with({{"mp_rank_00_000/model_optim_rng.pt", state},
                                            {"mp_rank_00_001/model_optim_rng.pt", other}}))),
      ElementsAre("mp_rank_00_000/model.weight", "mp_rank_00_001/model.weight"));
}

TEST(LegacyReader, OpensALoneFile) {
  const auto reader = open_legacy_torch(
      storage_with({{"some.pt", Value::dict({{"w", small_tensor()}, {"lr", 0.5}})}}), "some.pt");
  EXPECT_THAT(keys(*reader), ElementsAre("w"));
  EXPECT_EQ(reader->common_state(), Value::dict({{"lr", 0.5}}));
  EXPECT_THAT(keys(*open_legacy_torch(storage_with({{"t.pt", small_tensor()}}), "t.pt")),
              ElementsAre("tensor"));
}

TEST(LegacyReader, ReadsTensorsInsideTuplesWithTheCommonState) {
  const Value state = Value::dict({{"pair", Value::tuple({1, small_tensor()})}});
  const auto reader = open_legacy_torch(storage_with({{"some.pt", state}}), "some.pt");
  EXPECT_TRUE(reader->metadata().tensors.empty());
  EXPECT_EQ(reader->common_state(), state);
}

TEST(LegacyReader, RefusesTwoTensorsOfOnePath) {
  const Value state =
      Value::dict({{"a.b", small_tensor()}, {"a", Value::dict({{"b", small_tensor()}})}});
  try {
    open_legacy_torch(storage_with({{"some.pt", state}}), "some.pt");
    FAIL() << "accepted";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("'a.b'"));
  }
}

TEST(LegacyReader, MissesFoldersAndFiles) {
  auto storage = memory_storage();
  EXPECT_THROW(open_legacy_torch(storage), CheckpointError);
  storage->make_directory("mp_rank_00");
  try {
    open_legacy_torch(storage);
    FAIL() << "accepted";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
    EXPECT_THAT(error.what(), HasSubstr("mp_rank_00"));
  }
}

TEST(LegacyReader, KnowsRankFoldersByName) {
  for (const char* const name :
       {"mp_rank_00", "mp_rank_07_003", "mp_rank_00_001_002", "mp_rank_128"})
    EXPECT_TRUE(is_rank_folder(name)) << name;
  for (const char* const name : {"mp_rank_", "mp_rank_0", "mp_rank_00_", "mp_rank_00_x",
                                 "mp_rank_00_001_002_003", "rank_00"})
    EXPECT_FALSE(is_rank_folder(name)) << name;
}

TEST(TakeApart, LeavesPlacesInListsAndOrderInDicts) {
  const Value state =
      Value::dict({{"z", small_tensor()},
                   {2, Value::list({small_tensor(), "kept"})},
                   {Value::tuple({Global{"torch", "bfloat16"}, Value()}), small_tensor()}});
  const NestedState parts = extract_tensors(state);
  EXPECT_EQ(parts.rest, Value::dict({{2, Value::list({Value(), "kept"})}}));
  std::vector<std::string> paths;
  for (const auto& [path, tensor] : parts.tensors) paths.push_back(path);
  EXPECT_THAT(paths, ElementsAre("z", "2.0", "(torch.bfloat16, None)"));
}

TEST(TakeApart, OpensOrderedDictsAndParameters) {
  Opaque parameter{.callable = Global{"torch._utils", "_rebuild_parameter"},
                   .args = Value::tuple({small_tensor(), true})};
  Opaque ordered{.callable = Global{"collections", "OrderedDict"}};
  ordered.dict_items.emplace_back("weight", std::move(parameter));
  ordered.dict_items.emplace_back("step", 4);
  const NestedState parts = extract_tensors(Value::dict({{"model", std::move(ordered)}}));
  ASSERT_EQ(parts.tensors.size(), 1u);
  EXPECT_EQ(parts.tensors[0].first, "model.weight");
  EXPECT_EQ(parts.rest.at("model").as_opaque().dict_items.size(), 1u);
}

}  // namespace
}  // namespace dckpt::legacy_reader_test
