#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "mapping/base/error.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "tests/strategies/formats/dcp/golden_metadata.h"
#include "tests/strategies/formats/dcp/metadata_model.h"

namespace dckpt::testing::metadata_spellings_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Expects the content of the unmodified model, whatever its spelling.
void expect_model(const Metadata& metadata) {
  ASSERT_EQ(metadata.tensors.size(), 2u);
  const TensorStorageMetadata& w = metadata.tensors[0];
  EXPECT_EQ(w.key, "w");
  EXPECT_EQ(w.properties.dtype, DType::kFloat32);
  EXPECT_EQ(w.properties.memory_format, TensorProperties::MemoryFormat::kContiguous);
  EXPECT_FALSE(w.properties.requires_grad);
  EXPECT_EQ(w.size, (Shape{8, 6}));
  ASSERT_EQ(w.chunks.size(), 2u);
  EXPECT_EQ(w.chunks[1], (Box{{4, 0}, {4, 6}}));
  ASSERT_EQ(w.places.size(), 2u);
  EXPECT_EQ(metadata.files.at(w.places[0].file), "__0_0.distcp");
  EXPECT_EQ(metadata.files.at(w.places[1].file), "__1_0.distcp");
  EXPECT_EQ(w.places[1].length, 1000u);
  const TensorStorageMetadata& b = metadata.tensors[1];
  EXPECT_EQ(b.properties.dtype, DType::kBFloat16);
  EXPECT_EQ(b.places.at(0).offset, 1000u);
  ASSERT_EQ(metadata.objects.size(), 1u);
  EXPECT_EQ(metadata.objects[0].key, "rng/shard_0_1");
  EXPECT_EQ(metadata.objects[0].place.length, 700u);
  EXPECT_EQ(metadata.files.size(), 2u);
}

void expect_model(const MetadataModel& model) {
  expect_model(read_dcp_metadata(model.pickle()));
}

TEST(MetadataSpellings, OfTheModelItself) {
  expect_model(MetadataModel());
}

// The same model, pickled by Python 3.11 and torch 2.11 (tests/data/README.md).
TEST(MetadataSpellings, OfEveryPickleProtocol) {
  for (int protocol = 2; protocol <= 5; ++protocol) {
    SCOPED_TRACE(protocol);
    const auto file = std::filesystem::path(DCKPT_TEST_DATA) / "dcp_metadata" /
                      ("protocol_" + std::to_string(protocol) + ".metadata");
    expect_model(read_dcp_metadata(read_file(file)));
  }
}

TEST(MetadataSpellings, MegatronsOwnClass) {
  MetadataModel model;
  model.type = Global{"megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"};
  model.more.set("mcore_data", Value::dict());
  const Metadata metadata = read_dcp_metadata(model.pickle());
  expect_model(metadata);
  EXPECT_TRUE(metadata.has_mcore_data);
}

TEST(MetadataSpellings, PropertiesOfOldTorch) {
  constexpr const char* kOldModule = "torch.distributed._shard.sharded_tensor.metadata";
  MetadataModel model;
  const Value format = call(kOldModule, "MEM_FORMAT_ENCODING", {0});
  model.w.properties =
      object(kOldModule, "TensorProperties",
             Value::tuple({Global{"torch", "float32"}, layout(), false, format, false}));
  expect_model(model);
}

TEST(MetadataSpellings, PropertiesWithStridesOfNewTorch) {
  MetadataModel model;
  Value state = model.w.properties.as_opaque().states[0];
  state.mutable_items().push_back(Value::tuple({6, 1}));
  model.w.properties = object(kMetadataModule, "TensorProperties", state);
  expect_model(model);
}

TEST(MetadataSpellings, PropertiesAsADict) {
  MetadataModel model;
  model.w.properties = object(kMetadataModule, "TensorProperties",
                              Value::dict({{"dtype", Global{"torch", "float32"}}}));
  model.b.properties = object(kMetadataModule, "TensorProperties",
                              Value::dict({{"dtype", Global{"torch", "bfloat16"}},
                                           {"memory_format", Global{"torch", "contiguous_format"}},
                                           {"layout", Global{"torch", "strided"}}}));
  expect_model(model);
}

TEST(MetadataSpellings, EnumsByNameAsPython3_11_0Writes) {
  MetadataModel model;
  const Value by_name =
      call("builtins", "getattr",
           {Global{kMetadataModule, "_MEM_FORMAT_ENCODING"}, "TORCH_CONTIGUOUS_FORMAT"});
  model.w.properties = properties(Global{"torch", "float32"}, layout(), by_name);
  expect_model(model);
}

TEST(MetadataSpellings, PropertiesAreCarried) {
  MetadataModel model;
  model.w.properties =
      object(kMetadataModule, "TensorProperties",
             Value::tuple({Global{"torch", "float16"}, layout(), true, memory_format(2), true}));
  const TensorProperties found = read_dcp_metadata(model.pickle()).tensors[0].properties;
  EXPECT_EQ(found, (TensorProperties{DType::kFloat16, true,
                                     TensorProperties::MemoryFormat::kPreserve, true}));
}

TEST(MetadataSpellings, SizesAsPlainTuples) {
  MetadataModel model;
  model.b.size = Value::tuple({5});
  expect_model(model);
}

TEST(MetadataSpellings, PathsAsPathlibObjects) {
  for (const char* module : {"pathlib", "pathlib._local"}) {
    MetadataModel model;
    model.records[1].second = info(call(module, "PosixPath", {"__1_0.distcp"}), 0, 1000);
    expect_model(model);
  }
  MetadataModel model;
  model.records[1].second = info(call("pathlib", "PosixPath", {"sub", "dir", "x"}), 0, 1000);
  EXPECT_THAT(read_dcp_metadata(model.pickle()).files,
              ElementsAre("__0_0.distcp", "sub/dir/x", "__1_0.distcp"));
}

TEST(MetadataSpellings, EmptyTransformsAreNone) {
  MetadataModel model;
  model.records[1].second =
      info("__1_0.distcp", 0, 1000, {{"transform_descriptors", Value::list()}});
  model.records[2].second = info("__0_0.distcp", 1000, 500, {{"transform_descriptors", Value()}});
  expect_model(model);
}

TEST(MetadataSpellings, FieldsOfTheFutureAreSkipped) {
  MetadataModel model;
  model.more.set("future", Value::dict({{"a", call("os", "system", {"x"})}}));
  model.more.set("all_local_plans", Value::list({call("os", "system", {"x"}), 3}));
  model.records[1].second = info("__1_0.distcp", 0, 1000, {{"checksum", 17}});
  model.more.set("version", "9.9.9");
  const Metadata metadata = read_dcp_metadata(model.pickle());
  expect_model(metadata);
  EXPECT_EQ(metadata.version, "9.9.9");
}

TEST(MetadataRecords, AreFoundByOffsetWhateverTheHintSays) {
  for (const Value& hint :
       {Value(), Value(1), Value(0), Value(-1), Value(1'000'000), Value("x"), Value(INT64_MIN)}) {
    MetadataModel model;
    model.records[0].first = index("w", size({0, 0}), hint);
    model.records[1].first = index("w", size({4, 0}), hint);
    expect_model(model);
    std::reverse(model.records.begin(), model.records.end());
    const Metadata metadata = read_dcp_metadata(model.pickle());
    EXPECT_EQ(metadata.files[metadata.tensors[0].places[1].file], "__1_0.distcp");
  }
}

TEST(MetadataRecords, AreFoundInAnyOrderOfManyChunks) {
  const char* given = std::getenv("DCKPT_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("DCKPT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  MetadataModel model;
  model.w = {properties("float32"), size({30, 20, 1}), {}};
  model.records.erase(model.records.begin(), model.records.begin() + 2);
  std::vector<std::pair<int, int>> cells;
  for (int row = 0; row < 30; ++row) {
    for (int column = 0; column < 20; ++column) cells.emplace_back(row, column);
  }
  std::shuffle(cells.begin(), cells.end(), random);
  for (const auto& [row, column] : cells)
    model.w.chunks.push_back(chunk({row, column, 0}, {1, 1, 1}));
  std::shuffle(cells.begin(), cells.end(), random);
  for (const auto& [row, column] : cells)
    model.records.emplace_back(index("w", size({row, column, 0})),
                               info("f", row * 1000 + column, 1));

  const TensorStorageMetadata w = read_dcp_metadata(model.pickle()).tensors[0];
  for (std::size_t i = 0; i < w.chunks.size(); ++i) {
    EXPECT_EQ(static_cast<std::int64_t>(w.places[i].offset),
              w.chunks.offsets(i)[0] * 1000 + w.chunks.offsets(i)[1]);
  }
}

TEST(MetadataRecords, AreFoundWhenKeysAndFilesTakeTurns) {
  const char* given = std::getenv("DCKPT_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("DCKPT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr int kTensors = 7;
  constexpr int kChunks = 9;
  // Texts above 256 bytes are written again each time, shorter ones once.
  const auto key = [](int tensor) {
    return std::string(tensor % 2 == 0 ? 10 : 300, 'k') + std::to_string(tensor);
  };
  const auto file = [](int tensor, int chunk) {
    return "f" + std::to_string((tensor * kChunks + chunk) % 5);
  };
  MetadataModel model;
  std::vector<std::pair<int, int>> order;
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    ValueList chunks;
    for (int i = 0; i < kChunks; ++i) {
      chunks.push_back(chunk({i}, {1}));
      order.emplace_back(tensor, i);
    }
    model.more_entries.emplace_back(
        key(tensor), MetadataModel::entry({properties("float32"), size({kChunks}), chunks}));
  }
  const auto by_chunk = [](const auto& a, const auto& b) {
    return std::tie(a.second, a.first) < std::tie(b.second, b.first);
  };
  for (int turn = 0; turn < 3; ++turn) {  // tensor by tensor, rank by rank, unordered
    if (turn == 1) std::sort(order.begin(), order.end(), by_chunk);
    if (turn == 2) std::shuffle(order.begin(), order.end(), random);
    MetadataModel turned = model;
    for (const auto& [tensor, i] : order)
      turned.records.emplace_back(index(key(tensor), size({i}), i), info(file(tensor, i), i, 1));
    const Metadata metadata = read_dcp_metadata(turned.pickle());
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      const TensorStorageMetadata* const read = metadata.find_tensor(key(tensor));
      ASSERT_NE(read, nullptr);
      for (int i = 0; i < kChunks; ++i) {
        const StorageInfo& place = read->places[static_cast<std::size_t>(i)];
        EXPECT_EQ(place.offset, static_cast<std::uint64_t>(i));
        EXPECT_EQ(metadata.files[place.file], file(tensor, i));
      }
    }
  }
}

TEST(MetadataRecords, MayNameTheirFieldsInAnOrderOfTheirOwn) {
  MetadataModel model;
  model.records[1].second =
      object(kFilesystemModule, "_StorageInfo",
             Value::dict({{"length", 1000}, {"offset", 0}, {"relative_path", "__1_0.distcp"}}));
  model.records[2].first = object(kMetadataModule, "MetadataIndex",
                                  Value::dict({{"offset", size({0})}, {"index", 0}, {"fqn", "b"}}));
  model.w.chunks[1] = object(kMetadataModule, "ChunkStorageMetadata",
                             Value::dict({{"sizes", size({4, 6})}, {"offsets", size({4, 0})}}));
  expect_model(model);
}

// Python's dictionaries hold one record for them, since it is looked up by offsets.
TEST(MetadataRecords, AreSharedByEmptyChunksAtTheSameOffset) {
  MetadataModel model;
  model.b = {properties("bfloat16"),
             size({5}),
             {chunk({0}, {0}), chunk({0}, {5}), chunk({5}, {0}), chunk({5}, {0})}};
  model.records[2].first = index("b", size({0}), 1);
  model.records.emplace_back(index("b", size({5})), info("__0_0.distcp", 1500, 10));
  const TensorStorageMetadata b = read_dcp_metadata(model.pickle()).tensors[1];
  EXPECT_THAT(b.places, ElementsAre(StorageInfo{0, 1000, 500}, StorageInfo{0, 1000, 500},
                                    StorageInfo{0, 1500, 10}, StorageInfo{0, 1500, 10}));
}

TEST(MetadataPlannerData, IsReadWhereItIsAPath) {
  MetadataModel model;
  model.b_key = "model.list.3";
  model.records[2].first = index("model.list.3", size({0}), 0);
  const KeyPath path{"model", "list", std::int64_t{3}};
  model.more.set("planner_data",
                 Value::dict({{"w", Value::tuple({"w"})},
                              {"model.list.3", Value::tuple({"model", "list", 3})}}));
  EXPECT_THAT(read_dcp_metadata(model.pickle()).paths,
              ElementsAre(std::pair("w", KeyPath{"w"}), std::pair("model.list.3", path)));
}

TEST(MetadataPlannerData, OfAnotherFormIsNoReasonToFail) {
  const Value harmful = call("os", "system", {"x"});
  for (const Value& data :
       {Value(), Value::dict(), Value::list({1}), harmful, Value::dict({{"w", harmful}}),
        Value::dict({{"w", Value::tuple({harmful})}}), Value::dict({{1, Value::tuple({"w"})}})}) {
    MetadataModel model;
    model.more.set("planner_data", data);
    EXPECT_THAT(read_dcp_metadata(model.pickle()).paths, IsEmpty());
  }
}

TEST(MetadataPlannerData, KeysThatAreNotStoredAreKept) {
  MetadataModel model;
  model.more.set("planner_data",
                 Value::dict({{"w", Value::tuple({"w"})}, {"v", Value::tuple({"v"})}}));
  const Metadata metadata = read_dcp_metadata(model.pickle());
  EXPECT_THAT(metadata.paths, ElementsAre(std::pair("w", KeyPath{"w"})));
  EXPECT_THAT(metadata.stray_paths, ElementsAre("v"));
}

TEST(MetadataPlannerData, IsNotCopiedWhenItRepeatsALongText) {
  MetadataModel model;
  model.more.set("planner_data",
                 Value::dict({{"w", Value::tuple(ValueList(100'000, std::string(10'000, 'x')))}}));
  EXPECT_THAT(read_dcp_metadata(model.pickle()).paths, IsEmpty());
}

TEST(MetadataStorageMeta, KeepsWhatItUnderstands) {
  const auto read = [](Value checkpoint_id, Value save_id) {
    MetadataModel model;
    model.more.set("storage_meta", object(kMetadataModule, "StorageMeta",
                                          Value::dict({{"checkpoint_id", checkpoint_id},
                                                       {"save_id", save_id},
                                                       {"load_id", Value()},
                                                       {"modules", Value::list()}})));
    return read_dcp_metadata(model.pickle()).storage_meta.value();
  };
  EXPECT_EQ(read("/old/place", "id").checkpoint_id, "/old/place");
  EXPECT_EQ(read(call("pathlib", "PosixPath", {"/", "old", "place"}), "id").checkpoint_id,
            "/old/place");
  EXPECT_EQ(read(object("multistorageclient.types", "Path", Value::dict()), "id").checkpoint_id,
            std::nullopt);
  EXPECT_EQ(read(Value(), "id").save_id, "id");
  EXPECT_EQ(read(Value(), 7).save_id, std::nullopt);
}

TEST(MetadataMcoreData, GivesOriginalShapes) {
  MetadataModel model;
  model.w = {properties("float32"),
             size({2, 1, 24}),
             {chunk({0, 0, 0}, {1, 1, 24}), chunk({1, 0, 0}, {1, 1, 24})}};
  model.records[0].first = index("w", size({0, 0, 0}));
  model.records[1].first = index("w", size({1, 0, 0}));
  for (const Value& shape : {Value::tuple({8, 6}), size({8, 6})}) {
    model.more.set(
        "mcore_data",
        Value::dict({{"b", Value::dict()},
                     {"w", Value::dict({{"nd_reformulated_orig_global_shape", shape}})}}));
    const Metadata metadata = read_dcp_metadata(model.pickle());
    EXPECT_TRUE(metadata.has_mcore_data);
    EXPECT_EQ(metadata.tensors[0].flattened_shape, (Shape{8, 6}));
    EXPECT_EQ(metadata.tensors[0].global_shape(), (Shape{8, 6}));
    EXPECT_EQ(metadata.tensors[1].flattened_shape, std::nullopt);
  }
}

}  // namespace
}  // namespace dckpt::testing::metadata_spellings_test
