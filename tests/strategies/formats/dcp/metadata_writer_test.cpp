#include "strategies/formats/dcp/metadata_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "mapping/planning/save/messages.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/json/json.h"
#include "tests/strategies/formats/dcp/golden_metadata.h"

namespace dckpt::testing::metadata_writer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Metadata small_metadata() {
  Metadata metadata;
  metadata.files = {"__0_0.distcp", "__1_0.distcp"};
  TensorStorageMetadata tensor;
  tensor.key = "w";
  tensor.size = {2, 3};
  tensor.chunks = BoxList(2);
  tensor.chunks.push_back({{0, 0}, {1, 3}});
  tensor.chunks.push_back({{1, 0}, {1, 3}});
  tensor.places = {{0, 0, 100}, {1, 5'000'000'000, 100}};
  metadata.tensors.push_back(tensor);
  return metadata;
}

TEST(MetadataWriter, RefusesChunksWithoutPlacesAndPlacesWithoutFiles) {
  Metadata metadata = small_metadata();
  metadata.tensors[0].places.pop_back();
  EXPECT_THROW(write_dcp_metadata(metadata), CheckpointError);
  metadata = small_metadata();
  metadata.tensors[0].places[0].file = 2;
  try {
    write_dcp_metadata(metadata);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.context().key, "w");
  }
}

TEST(MetadataWriter, WritesAttributesOfMegatronOnlyWhenAsked) {
  Metadata metadata = small_metadata();
  EXPECT_THAT(std::string(as_text(write_dcp_metadata(metadata))),
              ::testing::Not(HasSubstr("mcore_data")));
  EXPECT_FALSE(read_dcp_metadata(write_dcp_metadata(metadata)).has_mcore_data);
  metadata.has_mcore_data = true;
  EXPECT_TRUE(read_dcp_metadata(write_dcp_metadata(metadata)).has_mcore_data);
}

TEST(MetadataWriter, PathsInTheCommonStateComeBackUnlessTheirKeysAreStored) {
  Metadata metadata = small_metadata();
  const std::vector<std::pair<std::string, KeyPath>> paths{{"a.0", {"a", std::int64_t{0}}},
                                                           {"b", {"b"}}};
  metadata.common_paths = paths;
  EXPECT_EQ(read_dcp_metadata(write_dcp_metadata(metadata)).common_paths, paths);
  metadata.common_paths.emplace_back("w", KeyPath{"w"});
  EXPECT_EQ(read_dcp_metadata(write_dcp_metadata(metadata)).common_paths, paths)
      << "a key is either";
}

TEST(MetadataWriter, IdentifiesRecordsAndTheCommonStateBesideThem) {
  Metadata metadata = small_metadata();
  metadata.tensors[0].places[0].crc = 7;
  metadata.tensors[0].places[1].crc = 0xFFFFFFFF;
  metadata.objects.push_back({"o", {.file = 1, .length = 5, .crc = 0x80000000}});
  metadata.objects.push_back({"of another producer", {.file = 1, .offset = 5, .length = 5}});
  const Metadata read = read_dcp_metadata(write_dcp_metadata(metadata, 0xFFFFFFFE));
  EXPECT_EQ(read.tensors[0].places, metadata.tensors[0].places);
  EXPECT_EQ(read.objects[0].place, metadata.objects[0].place);
  EXPECT_EQ(read.objects[1].place, metadata.objects[1].place);
  EXPECT_EQ(read.common_crc, 0xFFFFFFFE);
  EXPECT_EQ(read_dcp_metadata(write_dcp_metadata(read)).common_crc, 0u)
      << "that of another common.pt is not written again";
}

TEST(MetadataWriter, IsAsTerseAsPython) {
  for (const char* name :
       {"dcp-plain-nested", "dcp-fsdp2-dtensor", "mcore-0.16-dp-reshardable-tp2pp1dp2"}) {
    const Bytes theirs = read_file(golden(name) / "ckpt" / ".metadata");
    EXPECT_LE(write_dcp_metadata(read_dcp_metadata(theirs)).size(), theirs.size()) << name;
  }
}

/// Checks our writer with torch's classes. Runs if DCKPT_ORACLE_PYTHON names a Python that has
/// torch.
class MetadataForPython : public ::testing::Test {
 protected:
  void SetUp() override {
    if (python() == nullptr)
      GTEST_SKIP() << "DCKPT_ORACLE_PYTHON is not set: not compared with Python";
    std::string name = (fs::temp_directory_path() / "dckpt_metadata_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override {
    if (!directory_.empty()) fs::remove_all(directory_);
  }

  static const char* python() { return std::getenv("DCKPT_ORACLE_PYTHON"); }

  static fs::path script() {
    return fs::path(DCKPT_TEST_DATA).parent_path() / "strategies" / "formats" / "dcp" /
           "dump_metadata.py";
  }

  /// Returns the lines that the script prints.
  static std::vector<std::string> run(const std::vector<std::string>& arguments) {
    std::string command = "'" + std::string(python()) + "' '" + script().string() + "'";
    for (const std::string& argument : arguments) command += " '" + argument + "'";
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                               ::pclose);
    std::string out;
    std::array<char, 65536> part{};
    for (std::size_t got = 0; (got = std::fread(part.data(), 1, part.size(), pipe.get())) > 0;)
      out.append(part.data(), got);
    std::vector<std::string> lines = split(out, '\n');
    lines.pop_back();
    return lines;
  }

  fs::path write(const std::string& name, const Metadata& metadata) {
    const Bytes bytes = write_dcp_metadata(metadata, name.ends_with("/.metadata") ? 1 : 0);
    const fs::path file = directory_ / name;
    std::ofstream(file, std::ios::binary)
        .write(as_text(bytes).data(), static_cast<std::streamsize>(bytes.size()));
    return file;
  }

  fs::path directory_;
};

TEST_F(MetadataForPython, SaysFieldByFieldWhatTheProducersSaid) {
  std::vector<std::string> names = golden_names();
  // Their properties have a field that older torch does not load.
  std::erase_if(names, [](const std::string& name) { return name.ends_with("-torch2.15"); });
  std::vector<std::string> theirs;
  std::vector<std::string> ours;
  for (const std::string& name : names) {
    theirs.push_back((golden(name) / "ckpt" / ".metadata").string());
    ours.push_back(write(name, read_dcp_metadata(read_file(theirs.back()))).string());
  }
  const std::vector<std::string> expected = run(theirs);
  const std::vector<std::string> found = run(ours);
  ASSERT_EQ(expected.size(), names.size());
  ASSERT_EQ(found.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(parse_json(as_bytes(found[i]), "ours"), parse_json(as_bytes(expected[i]), "theirs"))
        << names[i];
  }
}

TEST_F(MetadataForPython, IsWhatTorchLoadsCheckpointsWith) {
  std::vector<std::string> arguments{"--load"};
  for (const char* name :
       {"dcp-plain-nested", "dcp-fsdp2-tp", "dcp-fsdp-dtensor-layout", "dcp-dedup-replicated"}) {
    const fs::path copy = directory_ / name;
    fs::copy(golden(name) / "ckpt", copy);
    fs::remove(copy / ".metadata");
    Metadata metadata = read_dcp_metadata(read_file(golden(name) / "ckpt" / ".metadata"));
    for (TensorStorageMetadata& tensor : metadata.tensors)
      for (StorageInfo& place : tensor.places) place.crc = 0xDEADBEEF;
    for (BytesStorageMetadata& object : metadata.objects) object.place.crc = 1;
    write(std::string(name) + "/.metadata", metadata);
    arguments.insert(arguments.end(), {(golden(name) / "ckpt").string(), copy.string()});
  }
  EXPECT_THAT(run(arguments), ::testing::ElementsAre("true", "true", "true", "true"));
}

TEST_F(MetadataForPython, HoldsEveryDtypeAndNumbersOfEverySize) {
  Metadata metadata = small_metadata();
  metadata.files.push_back("sub/\xC3\xA9.distcp");
  for (int i = 0; i <= static_cast<int>(DType::kQInt32); ++i) {
    if (!is_torch_dtype(static_cast<DType>(i))) continue;
    TensorStorageMetadata tensor = metadata.tensors[0];
    tensor.key = "t." + std::to_string(i);
    tensor.properties.dtype = static_cast<DType>(i);
    tensor.properties.memory_format = static_cast<TensorProperties::MemoryFormat>(i % 3);
    tensor.properties.requires_grad = i % 2 == 0;
    tensor.size = {std::int64_t{1} << (i * 2), 3, 1, 1, 1};
    tensor.chunks = BoxList(5);
    tensor.chunks.push_back(whole(tensor.size));
    tensor.places = {{2, std::uint64_t{1} << (2 * i), 70'000}};
    metadata.tensors.push_back(tensor);
  }
  const std::vector<std::string> lines = run({write("every", metadata).string()});
  ASSERT_EQ(lines.size(), 1u);
  const Value found = parse_json(as_bytes(lines[0]), "python");
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    const Value& entry = found.at("tensors").at(tensor.key);
    const char* formats[] = {"torch.contiguous_format", "torch.channels_last",
                             "torch.preserve_format"};
    EXPECT_EQ(entry.at("properties"),
              Value::list({"torch." + std::string(to_string(tensor.properties.dtype)),
                           "torch.strided", tensor.properties.requires_grad,
                           formats[static_cast<int>(tensor.properties.memory_format)], false}));
    EXPECT_EQ(entry.at("size").items()[0], Value(tensor.size[0]));
    const ValueList& place = found.at("places").at(tensor.key).items()[0].items();
    EXPECT_EQ(place[0].as_str(), metadata.files[tensor.places[0].file]);
    EXPECT_EQ(place[1], Value(static_cast<std::int64_t>(tensor.places[0].offset)));
  }
}

}  // namespace
}  // namespace dckpt::testing::metadata_writer_test
