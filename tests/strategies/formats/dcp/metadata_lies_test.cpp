#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <unordered_map>

#include "mapping/base/error.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "tests/strategies/formats/dcp/metadata_model.h"

namespace dckpt::testing::metadata_lies_test {
namespace {

using ::testing::HasSubstr;

struct Lie {
  const char* name;
  std::function<void(MetadataModel&)> tell;
  const char* key;      ///< key that the error names, or null
  const char* message;  ///< part of the message
  ErrorCode code = ErrorCode::kCorrupt;

  friend void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }
};

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

const Global kBFloat16{"torch", "bfloat16"};

/// Gives "b" a record with another file, or other numbers.
void record_b(MetadataModel& model, Value path, Value offset = 0, Value length = 5,
              Dict more = {}) {
  model.records[2].second =
      info(std::move(path), std::move(offset), std::move(length), std::move(more));
}

void rename_b(MetadataModel& model, const Value& key) {
  model.b_key = key;
  model.records[2].first = index(key, size({0}), 0);
}

void add_flat(MetadataModel& model, Value original) {
  MetadataModel::Tensor flat{properties("float32"),
                             size({2, 1, 24}),
                             {chunk({0, 0, 0}, {1, 1, 24}), chunk({1, 0, 0}, {1, 1, 24})}};
  model.more_entries.emplace_back("flat", MetadataModel::entry(flat));
  model.records.emplace_back(index("flat", size({0, 0, 0})), info("__0_0.distcp", 2000, 300));
  model.records.emplace_back(index("flat", size({1, 0, 0})), info("__0_0.distcp", 2300, 300));
  model.more.set(
      "mcore_data",
      Value::dict(
          {{"flat", Value::dict({{"nd_reformulated_orig_global_shape", std::move(original)}})}}));
}

const std::vector<Lie>& lies() {
  using M = MetadataModel;
  // clang-format off: one lie a line
  static const std::vector<Lie> all{
      // Boxes
      {"ChunkOffsetNegative",
       [](M& m) {
         m.w.chunks[0] = chunk({-4, 0}, {4, 6});
       },
       "w", "the int -4"},
      {"ChunkSizesNegative",
       [](M& m) {
         m.w.chunks[0] = chunk({0, 0}, {-4, -6});
       },
       "w", "the int -4"},
      {"TensorSizeNegative",
       [](M& m) {
         m.w.size = size({-8, 6});
       },
       "w", "the int -8"},
      {"ChunkBeyondTensor",
       [](M& m) {
         m.w.chunks[1] = chunk({6, 0}, {4, 6});
       },
       "w", "not inside the tensor of size (8, 6)"},
      {"ChunkEndOverflows",
       [](M& m) {
         m.w.chunks[1] = chunk({INT64_MAX, 0}, {4, 6});
       },
       "w", "not inside the tensor"},
      {"ChunkSizeOverflows",
       [](M& m) {
         m.w.chunks[1] = chunk({4, 0}, {INT64_MAX, INT64_MAX});
       },
       "w", "not inside the tensor"},
      {"ChunkWithMoreAxes",
       [](M& m) {
         m.w.chunks[1] = chunk({4, 0, 0}, {4, 6, 1});
       },
       "w", "not inside the tensor"},
      {"ChunkOffsetsAndSizesDisagree",
       [](M& m) {
         m.w.chunks[1] = chunk({4, 0}, {24});
       },
       "w", "not inside the tensor"},
      {"ScalarWithChunkOfOneAxis", [](M& m) { m.b.size = size({}); }, "b",
       "not inside the tensor of size ()"},
      {"ElementsWrap",
       [](M& m) {
         m.w.size = size({std::int64_t{1} << 32, std::int64_t{1} << 32});
       },
       "w", "more bytes than a file can have"},
      {"BytesWrap",
       [](M& m) {
         m.w.size = size({std::int64_t{1} << 61, 1});
       },
       "w", "more bytes than a file can have"},
      {"ZeroHidesOverflow",
       [](M& m) {
         m.w.size = size({0, kHuge, kHuge});
       },
       "w", "more bytes than a file can have"},
      {"SizeBeyond64Bits", [](M& m) { m.b.size = size({UINT64_MAX}); }, "b", "more than 64 bits"},
      {"SizeFloat", [](M& m) { m.b.size = size({5.0}); }, "b", "a float"},
      {"SizeText", [](M& m) { m.b.size = size({"5"}); }, "b", "the str '5'"},
      {"SizeBool", [](M& m) { m.b.size = size({true}); }, "b", "True"},
      {"SizeNone", [](M& m) { m.b.size = Value(); }, "b", "None"},
      {"SizeList", [](M& m) { m.b.size = Value::list({5}); }, "b", "a list"},
      {"SizeCall", [](M& m) { m.b.size = call("builtins", "eval", {"(5,)"}); }, "b",
       "the result of a call of 'builtins.eval'"},
      {"ManyAxes", [](M& m) { m.b.size = size(ValueList(65, 1)); }, "b",
       "65 axes, more than the limit of 64"},
      {"ChunksNone",
       [](M& m) {
         m.more_entries.emplace_back("t", object(kMetadataModule, "TensorStorageMetadata",
                                                 Value::dict({{"properties", properties("int8")},
                                                              {"size", size({1})},
                                                              {"chunks", Value()}})));
       },
       "t", "the list of chunks is None"},
      {"ChunkOfAnotherClass", [](M& m) { m.b.chunks[0] = object(kMetadataModule, "StorageMeta"); },
       "b", "expected: ChunkStorageMetadata"},
      {"OneChunkRepeatedForever", [](M& m) { m.w.chunks.assign(100'000, m.w.chunks[0]); }, "w",
       "over and over"},
      // Properties
      {"DtypeUnknown", [](M& m) { m.b.properties = properties("float128"); }, "b",
       "'torch.float128'", ErrorCode::kUnsupported},
      {"DtypeOfAnotherModule",
       [](M& m) {
         m.b.properties = properties(Global{"numpy", "float32"});
       },
       "b", "'numpy.float32'"},
      {"DtypeIsACall", [](M& m) { m.b.properties = properties(call("os", "system", {"x"})); }, "b",
       "'os.system'"},
      {"LayoutSparse",
       [](M& m) { m.b.properties = properties(kBFloat16, layout("torch.sparse_coo")); }, "b",
       "'torch.sparse_coo'", ErrorCode::kUnsupported},
      {"LayoutIsACall",
       [](M& m) { m.b.properties = properties(kBFloat16, call("os", "system", {"x"})); }, "b",
       "'os.system'"},
      {"MemoryFormatUnknown",
       [](M& m) { m.b.properties = properties(kBFloat16, layout(), memory_format(9)); }, "b",
       "memory format"},
      {"PropertiesWithFourFields",
       [](M& m) {
         m.b.properties =
             object(kMetadataModule, "TensorProperties",
                    Value::tuple({Global{"torch", "int8"}, layout(), false, memory_format()}));
       },
       "b", "4 fields"},
      {"PropertiesMissing", [](M& m) { m.b.properties = Value(); }, "b",
       "expected: TensorProperties"},
      // Keys
      {"KeyTwice", [](M& m) { m.more_entries.emplace_back("b", M::entry(m.b)); }, "b", "twice"},
      {"KeyTwiceAsTensorAndObject", [](M& m) { m.more_entries.emplace_back("b", bytes_entry()); },
       "b", "twice"},
      {"KeyEmpty", [](M& m) { rename_b(m, ""); }, "", "empty"},
      {"KeyInt", [](M& m) { rename_b(m, 5); }, nullptr, "the int 5"},
      {"KeyNone", [](M& m) { rename_b(m, Value()); }, nullptr, "None"},
      {"KeyNotUtf8", [](M& m) { rename_b(m, "\xED\xA0\x80"); }, "\xED\xA0\x80", "not UTF-8"},
      {"EntryInt", [](M& m) { m.rng = 3; }, "rng/shard_0_1", "the int 3"},
      {"EntryOfAnotherClass", [](M& m) { m.rng = object("os", "PathLike"); }, "rng/shard_0_1",
       "'os.PathLike'"},
      // Storage records
      {"RecordMissing", [](M& m) { m.records.erase(m.records.begin() + 1); }, "w",
       "no storage record says where chunk [4:8, 0:6]"},
      {"RecordOfObjectMissing", [](M& m) { m.records.pop_back(); }, "rng/shard_0_1",
       "no storage record"},
      {"RecordTwice",
       [](M& m) {
         m.records.emplace_back(index("w", size({0, 0}), 9), info("__1_0.distcp", 0, 1));
       },
       "w", "two storage records name the chunk at (0, 0)"},
      {"RecordOfObjectTwice",
       [](M& m) { m.records.emplace_back(index("rng/shard_0_1"), info("__1_0.distcp", 0, 1)); },
       "rng/shard_0_1", "two storage records"},
      {"RecordOfUnknownKey",
       [](M& m) { m.records.emplace_back(index("x", size({0})), info("__1_0.distcp", 0, 1)); }, "x",
       "does not have"},
      {"RecordAtAnotherOffset",
       [](M& m) {
         m.records[1].first = index("w", size({5, 0}), 1);
       },
       "w", "a chunk at (5, 0), where the tensor has none"},
      {"RecordWithFewerAxes", [](M& m) { m.records[1].first = index("w", size({4}), 1); }, "w",
       "a chunk at (4,)"},
      {"RecordOfTensorWithoutOffset", [](M& m) { m.records[2].first = index("b"); }, "b",
       "has no offset"},
      {"RecordOfObjectWithOffset",
       [](M& m) { m.records[3].first = index("rng/shard_0_1", size({0})); }, "rng/shard_0_1",
       "has an offset"},
      {"RecordForNoIndex", [](M& m) { m.records[0].first = "w"; }, nullptr,
       "expected: MetadataIndex"},
      {"RecordIsACall", [](M& m) { m.records[2].second = call("os", "system", {"x"}); }, "b",
       "'os.system'"},
      {"RecordOfAnotherWriter",
       [](M& m) { m.records[2].second = object("my.storage", "Info", Value::dict()); }, "b",
       "'my.storage.Info'", ErrorCode::kUnsupported},
      {"RecordKeyIsACall",
       [](M& m) { m.records[2].first = index(call("os", "system", {"x"}), size({0})); }, nullptr,
       "'os.system'"},
      {"RecordOffsetNegative", [](M& m) { record_b(m, "__0_0.distcp", -1, 5); }, "b", "the int -1"},
      {"RecordLengthNegative", [](M& m) { record_b(m, "__0_0.distcp", 0, -5); }, "b", "the int -5"},
      {"RecordEndOverflows", [](M& m) { record_b(m, "__0_0.distcp", INT64_MAX, INT64_MAX); }, "b",
       "63 bits"},
      {"RecordOffsetBeyond63Bits", [](M& m) { record_b(m, "__0_0.distcp", UINT64_MAX, 200); }, "b",
       "more than 64 bits"},
      {"RecordTransformed",
       [](M& m) {
         record_b(m, "__0_0.distcp", 0, 5, {{"transform_descriptors", Value::list({"zstd"})}});
       },
       "b", "'zstd'", ErrorCode::kUnsupported},
      {"RecordTransformedTwice",
       [](M& m) {
         record_b(m, "__0_0.distcp", 0, 5,
                  {{"transform_descriptors", Value::list({"stream.zstd/1", "stream.zstd/1"})}});
       },
       "b", "transformed more than once by 'stream.zstd/1'", ErrorCode::kUnsupported},
      {"RecordWithoutLength",
       [](M& m) {
         m.records[2].second = object(kFilesystemModule, "_StorageInfo",
                                      Value::dict({{"relative_path", "a"}, {"offset", 0}}));
       },
       "b", "the length of a storage record is missing"},
      // File names
      {"PathParent", [](M& m) { record_b(m, "../__0_0.distcp"); }, "b", "'..'"},
      {"PathParentInside", [](M& m) { record_b(m, "x/../../y"); }, "b", "'..'"},
      {"PathAbsolute", [](M& m) { record_b(m, "/etc/passwd"); }, "b", "absolute"},
      {"PathNul", [](M& m) { record_b(m, std::string("a\0b", 3)); }, "b", "NUL"},
      {"PathEmpty", [](M& m) { record_b(m, ""); }, "b", "empty"},
      {"PathDot", [](M& m) { record_b(m, "."); }, "b", "'.'"},
      {"PathLong", [](M& m) { record_b(m, std::string(70'000, 'a')); }, "b", "the limit is 4,096"},
      {"PathUrl", [](M& m) { record_b(m, "file:///etc/passwd"); }, "b", "empty component"},
      {"PathBackslash", [](M& m) { record_b(m, "..\\x"); }, "b", "backslash"},
      {"PathNotUtf8", [](M& m) { record_b(m, "__\xED\xA0\x80"); }, "b", "not UTF-8"},
      {"PathNone", [](M& m) { record_b(m, Value()); }, "b",
       "relative_path of a storage record is None"},
      {"PathInt", [](M& m) { record_b(m, 3); }, "b", "the int 3"},
      {"PathCall", [](M& m) { record_b(m, call("builtins", "eval", {"x"})); }, "b",
       "'builtins.eval'"},
      {"PosixPathParent",
       [](M& m) {
         record_b(m, call("pathlib", "PosixPath", {"..", "__0_0.distcp"}));
       },
       "b", "'..'"},
      {"PosixPathAbsoluteInside",
       [](M& m) {
         record_b(m, call("pathlib", "PosixPath", {"a", "/etc/passwd"}));
       },
       "b", "absolute"},
      {"PosixPathRepeatedForever",
       [](M& m) {
         record_b(m, call("pathlib", "PosixPath", ValueList(100'000, std::string(200, 'a'))));
       },
       "b", "longer than 4096 bytes"},
      // Original shapes of flattened tensors
      {"OriginalNegative",
       [](M& m) {
         add_flat(m, Value::tuple({-8, 6}));
       },
       "flat", "the int -8"},
      {"OriginalOfAnotherSize",
       [](M& m) {
         add_flat(m, Value::tuple({7, 6}));
       },
       "flat", "(7, 6)"},
      {"OriginalOverflows",
       [](M& m) {
         add_flat(m, Value::tuple({kHuge, kHuge}));
       },
       "flat", "more bytes"},
      {"OriginalEmpty", [](M& m) { add_flat(m, Value::tuple()); }, "flat", "()"},
      {"OriginalText", [](M& m) { add_flat(m, "8,6"); }, "flat", "the str '8,6'"},
      {"OriginalNone", [](M& m) { add_flat(m, Value()); }, "flat", "None"},
      {"OriginalWithMoreAxes",
       [](M& m) {
         add_flat(m, Value::tuple({2, 2, 2, 6}));
       },
       "flat", "(2, 2, 2, 6)"},
      {"McoreDataList",
       [](M& m) {
         m.more.set("mcore_data", Value::list({1, 2}));
       },
       nullptr, "mcore_data is a list"},
      {"McoreEntryInt",
       [](M& m) {
         m.more.set("mcore_data", Value::dict({{"w", 1}}));
       },
       "w", "the int 1"},
      {"McoreDataOfNothing",
       [](M& m) {
         m.more.set("mcore_data",
                    Value::dict({{"v", Value::dict({{"nd_reformulated_orig_global_shape",
                                                     Value::tuple({8, 6})}})}}));
       },
       "v", "not stored"},
      // The whole
      {"TopLevelOfAnotherClass",
       [](M& m) {
         m.type = Global{"torch.distributed.checkpoint.planner", "SavePlan"};
       },
       nullptr, "SavePlan"},
      {"TopLevelNameOfAnotherModule",
       [](M& m) {
         m.type = Global{"evil", "Metadata"};
       },
       nullptr, "'evil.Metadata'"},
      {"StorageDataList", [](M& m) { m.storage_data = Value::list({1}); }, nullptr,
       "storage_data is a list"},
      {"StorageDataNone", [](M& m) { m.storage_data = Value(); }, nullptr, "storage_data is None"},
  };
  // clang-format on
  return all;
}

class MetadataLies : public ::testing::TestWithParam<Lie> {};

TEST_P(MetadataLies, AreRefusedNamingKeyAndFile) {
  MetadataModel model;
  GetParam().tell(model);
  const Bytes pickle = model.pickle();
  try {
    read_dcp_metadata(pickle, "ckpt/.metadata");
    FAIL() << "was read";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_THAT(error.message(), HasSubstr(GetParam().message));
    EXPECT_EQ(error.context().file, "ckpt/.metadata");
    EXPECT_EQ(error.context().key, GetParam().key == nullptr
                                       ? std::nullopt
                                       : std::optional<std::string>(GetParam().key));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, MetadataLies, ::testing::ValuesIn(lies()),
                         [](const auto& lie) { return std::string(lie.param.name); });

std::string refusal(const Value& root) {
  try {
    read_dcp_metadata(pickle::write_pickle(root, {.protocol = 4}), "f");
  } catch (const CheckpointError& error) {
    return error.message();
  }
  return "was read";
}

TEST(MetadataTopLevel, MustBeMetadataWithState) {
  EXPECT_THAT(refusal(Value()), HasSubstr("None (expected: DCP's Metadata)"));
  EXPECT_THAT(refusal(Value::dict()), HasSubstr("a dict (expected: DCP's Metadata)"));
  EXPECT_THAT(refusal("Metadata"), HasSubstr("the str 'Metadata'"));
  EXPECT_THAT(refusal(call("builtins", "eval", {"x"})), HasSubstr("'builtins.eval'"));
  EXPECT_THAT(refusal(object(kMetadataModule, "Metadata")),
              HasSubstr("state_dict_metadata is missing"));
  EXPECT_THAT(refusal(object(kMetadataModule, "Metadata",
                             Value::dict({{"state_dict_metadata", Value::dict()}}))),
              HasSubstr("storage_data is missing"));
  EXPECT_THAT(refusal(object(kMetadataModule, "Metadata", Value::list())),
              HasSubstr("a list (expected: a dict)"));
}

TEST(MetadataTopLevel, MustHaveNoPersistentIdAnywhere) {
  // PROTO 2, NONE, BINPERSID, POP, NONE, STOP: no trace of it remains in the value, but every
  // unpickler fails on it.
  constexpr std::string_view kPopped("\x80\x02NQ0N.", 7);
  try {
    read_dcp_metadata(as_bytes(kPopped), "f");
    FAIL() << "was read";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.message(), HasSubstr("persistent id"));
  }
}

TEST(MetadataKeys, MustNotBeChosenToCollide) {
  constexpr std::size_t kKeys = 400;
  std::unordered_map<std::string_view, int> table;
  table.reserve(kKeys + 3);
  MetadataModel model;
  for (std::size_t i = 0; model.more_entries.size() < kKeys; ++i) {
    const std::string key = "k" + std::to_string(i);
    if (table.bucket(key) == 0) model.more_entries.emplace_back(key, bytes_entry());
  }
  try {
    read_dcp_metadata(model.pickle());
    FAIL() << "was read";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("more than 256 keys have the same hash"));
  }
}

TEST(MetadataRecords, MustNotNameAFieldTwiceEvenBehindSoundOnes) {
  MetadataModel model;
  model.records[3].second = info("__1_0.distcp", 1000, 700, Dict{{"offzzz", 5}});
  Bytes pickle = model.pickle();
  const std::size_t at = as_text(pickle).find("offzzz");
  ASSERT_NE(at, std::string_view::npos);
  std::ranges::copy(as_bytes("offset"), pickle.begin() + static_cast<std::ptrdiff_t>(at));
  try {
    read_dcp_metadata(pickle);
    FAIL() << "was read";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.message(), HasSubstr("the field 'offset' occurs twice"));
  }
}

TEST(MetadataTopLevel, MustNotBeChangedTwice) {
  Opaque twice = object(kMetadataModule, "Metadata", Value::dict()).as_opaque();
  twice.states.push_back(Value::dict());
  EXPECT_THAT(refusal(twice), HasSubstr("changed after it was made"));
}

}  // namespace
}  // namespace dckpt::testing::metadata_lies_test
