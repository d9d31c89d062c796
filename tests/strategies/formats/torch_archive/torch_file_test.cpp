#include "strategies/formats/torch_archive/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/geometry/strided_copy.h"
#include "strategies/formats/pickle/value.h"
#include "strategies/formats/torch_archive/torch_layout.h"
#include "tests/strategies/formats/torch_archive/archive_files.h"

namespace dckpt::torch_file_test {
namespace {

using ::testing::HasSubstr;

Value load(ByteView bytes, const TorchFileOptions& options = {}) {
  return load_torch_file(*testing::file_of(bytes), options);
}

template <typename T>
Tensor tensor(DType dtype, const Shape& shape, const std::vector<T>& values) {
  return Tensor::from_bytes(dtype, shape, std::as_bytes(std::span(values)));
}

/// Returns the row-major elements; those of a tensor in a file are read from `file`.
Bytes elements(const Tensor& tensor, ByteView file = {}) {
  if (tensor.numel() == 0) return {};
  const std::byte* first =
      tensor.file_range() != nullptr ? file.data() + tensor.file_range()->offset : tensor.data();
  Bytes out(tensor.nbytes());
  strided_copy(tensor.shape(), item_size(tensor.dtype()), first, {0, tensor.strides()}, out.data(),
               {0, row_major_strides(tensor.shape())});
  return out;
}

void expect_tensor(const std::optional<Tensor>& found, const Tensor& expected, ByteView file = {}) {
  ASSERT_TRUE(found);
  EXPECT_EQ(found->dtype(), expected.dtype());
  EXPECT_EQ(found->shape(), expected.shape());
  EXPECT_EQ(to_hex(elements(*found, file)), to_hex(elements(expected)));
}

const Tensor kTied = tensor<float>(DType::kFloat32, {2, 3}, {0, 1, 2, 3, 4, 5});

/// Expects what the generator of state*.pt saved.
void expect_state(const Value& state, ByteView file = {}) {
  EXPECT_EQ(state.at("iteration"), Value(100));
  EXPECT_EQ(state.at("checkpoint_version"), Value(3.0));
  const Opaque& args = state.at("args").as_opaque();
  EXPECT_EQ(args.class_path(), "argparse.Namespace");
  ASSERT_EQ(args.states.size(), 1u);
  EXPECT_EQ(args.states[0].at("names"), Value::tuple({"a", "b"}));
  EXPECT_EQ(args.states[0].at("big").as_big_int().to_decimal(), "1180591620717411303424");  // 2^70

  const auto* model = mapping_items(state.at("model"));
  ASSERT_NE(model, nullptr);
  ASSERT_EQ(model->size(), 4u);
  expect_tensor(tensor_of((*model)[0].second), kTied, file);
  expect_tensor(tensor_of((*model)[1].second), kTied, file);
  expect_tensor(tensor_of((*model)[2].second), tensor<float>(DType::kFloat32, {2}, {1, 4}), file);
  expect_tensor(tensor_of((*model)[3].second),
                tensor<std::uint16_t>(DType::kBFloat16, {4}, {0, 0x3f80, 0x4000, 0x4040}), file);

  expect_tensor(tensor_of(state.at("rng").at("state")),
                tensor<std::uint8_t>(DType::kUInt8, {5}, {0, 1, 2, 3, 4}), file);
  EXPECT_TRUE(state.at("rng").at("none").is_none());
  EXPECT_EQ(state.at("rng").at("flags"), Value::list({true, false}));
  EXPECT_EQ(state.at("storage").as_storage().type, "LongStorage");
  expect_tensor(state.at("storage").as_storage().elements,
                tensor<std::int64_t>(DType::kInt64, {3}, {0, 1, 2}), file);
  EXPECT_EQ(state.at("parameter").as_opaque().class_path(), "torch._utils._rebuild_parameter");
  expect_tensor(tensor_of(state.at("parameter")), tensor<float>(DType::kFloat32, {2}, {0, 1}),
                file);
  EXPECT_TRUE(tensor_of(state.at("parameter"))->requires_grad);
  EXPECT_EQ(state.at(7), Value::set({1, 2}));
}

class StateFiles : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Forms, StateFiles,
                         ::testing::Values("state.pt", "state_protocol4.pt", "state_stream.pt",
                                           "state_stream_protocol4.pt"),
                         [](const auto& form) {
                           const std::string name = form.param;
                           return name.substr(0, name.size() - 3);
                         });

TEST_P(StateFiles, LoadAsTorchSavedThem) {
  expect_state(load(testing::torch_file(GetParam())));
}

TEST_P(StateFiles, LoadLazily) {
  const Bytes file = testing::torch_file(GetParam());
  const Value state = load(file, {.lazy = true});
  EXPECT_EQ(state.at("rng").at("state").as_tensor().data(), nullptr);
  EXPECT_EQ(state.at("rng").at("state").as_tensor().file_range()->file, "memory:archive.pt");
  expect_state(state, file);
}

TEST_P(StateFiles, LoadFromTheMiddleOfAFile) {
  const Bytes bytes = testing::torch_file(GetParam());
  Bytes file(123, std::byte{7});
  file.insert(file.end(), bytes.begin(), bytes.end());
  file.resize(file.size() + 9);
  const auto open = testing::file_of(file);
  expect_state(load_torch_file(*open, 123, bytes.size()));
  expect_state(load_torch_file(*open, 123, bytes.size(), {.lazy = true}), file);
}

TEST_P(StateFiles, LoadFromMemory) {
  Bytes bytes = testing::torch_file(GetParam());
  const Value state = load_torch_bytes(bytes, "an object", {.lazy = true});
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  expect_state(state);
}

TEST_P(StateFiles, ShareMemoryWhereTheStoragesWereShared) {
  const Value state = load(testing::torch_file(GetParam()));
  const auto& model = *mapping_items(state.at("model"));
  EXPECT_EQ(model[0].second.as_tensor().data(), model[1].second.as_tensor().data());
  EXPECT_EQ(model[0].second.as_tensor().data() + 4, model[2].second.as_tensor().data());
}

TEST_P(StateFiles, ComeBackEqualWhenTheyAreSavedAndLoaded) {
  const Value state = load(testing::torch_file(GetParam()));
  const Value again = load(save_torch_file(state));
  expect_state(again);
  EXPECT_EQ(again, state);
}

TEST_P(StateFiles, AreRefusedWhenTruncatedAnywhere) {
  const Bytes bytes = testing::torch_file(GetParam());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(load(ByteView(bytes).first(size)), CheckpointError) << size;
}

TEST_P(StateFiles, AreRefusedWithBytesAfterThem) {
  Bytes bytes = testing::torch_file(GetParam());
  bytes.push_back(std::byte{0});
  EXPECT_THROW(load(bytes), CheckpointError);
}

TEST_P(StateFiles, KeepWithinTheLimitOfTensorBytes) {
  const Bytes bytes = testing::torch_file(GetParam());
  const std::uint64_t tensor_bytes = 24 + 8 + 5 + 24 + 8;  // tied, half, rng, storage, parameter
  EXPECT_NO_THROW(load(bytes, {.max_tensor_bytes = tensor_bytes}));
  EXPECT_THROW(load(bytes, {.max_tensor_bytes = tensor_bytes - 1}), CheckpointError);
  EXPECT_NO_THROW(load(bytes, {.lazy = true, .max_tensor_bytes = 0}));
}

TEST(TorchFile, IsRecognizedByItsFirstBytes) {
  const auto detect = [](const Bytes& bytes) {
    return detect_torch_file(*testing::file_of(bytes), 0, bytes.size());
  };
  EXPECT_EQ(detect(testing::torch_file("state.pt")), TorchFileForm::kZip);
  EXPECT_EQ(detect(testing::torch_file("state_stream.pt")), TorchFileForm::kStream);
  EXPECT_EQ(detect(testing::torch_file("state_stream_protocol4.pt")), TorchFileForm::kStream);
  EXPECT_EQ(detect(to_bytes("\x80\x02}q\x01.")), std::nullopt);
  EXPECT_EQ(detect(to_bytes("version https://git-lfs.github.com/spec/v1\n")), std::nullopt);
  EXPECT_EQ(detect({}), std::nullopt);
}

TEST(TorchFile, RefusesTheTarFormAndEverythingElse) {
  Bytes tar(10240);
  std::memcpy(tar.data(), "storages", 8);
  std::memcpy(tar.data() + 257, "ustar", 5);
  EXPECT_THROW(load(tar), CheckpointError);
  EXPECT_THROW(load(to_bytes("\x80\x02}q\x01.")), CheckpointError);
  EXPECT_THROW(load({}), CheckpointError);
}

TEST(TorchFile, KeepsWhatIsMoreThanATensor) {
  for (const char* name : {"conjugate.pt", "sparse.pt", "quantized.pt"}) {
    SCOPED_TRACE(name);
    const Value value = load(testing::torch_file(name));
    EXPECT_TRUE(value.is(Value::Kind::kOpaque));
    EXPECT_EQ(tensor_of(value), std::nullopt);
    EXPECT_EQ(load(save_torch_file(value)), value);
  }
}

TEST(TorchFile, KeepsAttributesOfATensorBesideIt) {
  const Value value = load(testing::torch_file("attributes.pt"));
  EXPECT_EQ(value.as_opaque().class_path(), "torch._tensor._rebuild_from_type_v2");
  EXPECT_EQ(value.as_opaque().args.items()[3], Value::dict({{"note", "kept"}}));
  expect_tensor(tensor_of(value), tensor<float>(DType::kFloat32, {3}, {0, 1, 2}));
  EXPECT_EQ(load(save_torch_file(value)), value);
}

TEST(TorchFile, SavesOnlyTheElementsOfAView) {
  const Tensor big = Tensor::zeros(DType::kFloat32, {1000, 1000});
  const Value state =
      Value::dict({{"row", big.narrow(0, 500, 1)}, {"column", big.narrow(1, 500, 1)}});
  const Bytes bytes = save_torch_file(state);
  EXPECT_LT(bytes.size(), 12000u);
  const Value loaded = load(bytes);
  EXPECT_EQ(loaded.at("column").as_tensor().shape(), (Shape{1000, 1}));
  EXPECT_EQ(loaded, state);
}

TEST(TorchFile, SavesEveryTypeAndRequiresGrad) {
  for (const DType dtype : {DType::kBool, DType::kUInt16, DType::kBFloat16, DType::kComplex32,
                            DType::kComplex128, DType::kFloat8E4M3FN, DType::kFloat4E2M1FNx2}) {
    Tensor value = Tensor::zeros(dtype, {2, 3});
    value.requires_grad = dtype == DType::kBFloat16;
    const Tensor found = load(save_torch_file(value)).as_tensor();
    EXPECT_TRUE(equal(found, value)) << to_string(dtype);
    EXPECT_EQ(found.requires_grad, value.requires_grad);
  }
}

TEST(TorchFile, StreamsTheSameBytesAndPassesTensorMemoryOn) {
  const Value state =
      Value::dict({{"a", kTied}, {"b", Tensor::zeros(DType::kInt64, {0})}, {"c", 1}});
  Bytes streamed;
  bool passed_on = false;
  save_torch_file(state, [&](ByteView part) {
    passed_on = passed_on || part.data() == kTied.data();
    streamed.insert(streamed.end(), part.begin(), part.end());
  });
  EXPECT_EQ(streamed, save_torch_file(state));
  EXPECT_TRUE(passed_on);
}

TEST(TorchFile, AsksForElementsThatAreNotInMemoryInTheOrderOfTheValue) {
  const Tensor a = Tensor::zeros(DType::kInt32, {3});
  const Tensor b = Tensor::from_bytes(DType::kUInt8, {2}, Bytes(2, std::byte{7}));
  const auto state = [](const Tensor& first, const Tensor& second) {
    return Value::dict({{"a", first}, {"in memory", kTied}, {"none", Tensor()}, {"b", second}});
  };
  const Value described =
      state(Tensor::meta(a.dtype(), a.shape()), Tensor::meta(b.dtype(), b.shape()));
  std::vector<std::size_t> asked;
  const auto elements = [&](std::size_t tensor, const std::function<void(ByteView)>& sink) {
    asked.push_back(tensor);
    for (const std::byte& element : (tensor == 0 ? a : b).bytes()) sink({&element, 1});
  };
  Bytes saved;
  const auto append = [&](ByteView part) { saved.insert(saved.end(), part.begin(), part.end()); };
  save_torch_file(described, elements, append);
  EXPECT_EQ(saved, save_torch_file(state(a, b)));
  EXPECT_EQ(asked, (std::vector<std::size_t>{0, 1}));
  EXPECT_THROW(save_torch_file(
                   described, [](std::size_t, const auto&) {}, append),
               CheckpointError);
}

TEST(TorchFile, SavesWithoutCrcs) {
  const Value state = Value::dict({{"a", kTied}});
  const auto check = [](const Bytes& bytes) {
    return check_torch_file(*testing::file_of(bytes), 0, bytes.size());
  };
  EXPECT_TRUE(check(save_torch_file(state)));
  EXPECT_FALSE(check(save_torch_file(state, {.crc = false})));
  EXPECT_EQ(load(save_torch_file(state, {.crc = false})), state);
}

TEST(TorchFile, RefusesToSaveTensorsWithoutData) {
  EXPECT_THROW(save_torch_file(Tensor::meta(DType::kFloat32, {3})), CheckpointError);
  EXPECT_THROW(save_torch_file(load(testing::torch_file("state.pt"), {.lazy = true})),
               CheckpointError);
}

TEST(CheckTorchFile, FindsDamageInAnyMember) {
  const Bytes sound = testing::torch_file("state.pt");
  const auto file = testing::file_of(sound);
  const ZipArchive archive(*file, 0, sound.size());
  for (const ZipMember& member : archive.members()) {
    Bytes bytes = sound;
    bytes[archive.data_offset(member)] ^= std::byte{4};
    EXPECT_THROW(check_torch_file(*testing::file_of(bytes), 0, bytes.size()), CheckpointError)
        << member.name;
  }
}

TEST(CheckTorchFile, KnowsNoCrcsInTheStreamForm) {
  const Bytes bytes = testing::torch_file("state_stream.pt");
  EXPECT_FALSE(check_torch_file(*testing::file_of(bytes), 0, bytes.size()));
}

// The required contents of a torch archive.

using Members = std::vector<std::pair<std::string, std::string>>;
const std::string kNone = "\x80\x02N.";

void expect_refused(const Members& members, ErrorCode code, const std::string& part) {
  Bytes bytes;
  ZipWriter writer;
  for (const auto& [name, data] : members) writer.add_member(name, as_bytes(data), bytes);
  writer.finish(bytes);
  try {
    load(bytes);
    ADD_FAILURE() << "accepted, expected: " << part;
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_THAT(error.what(), HasSubstr("memory:archive.pt"));
  }
}

TEST(TorchFileRefuses, AMissingPickle) {
  expect_refused({{"a/version", "3\n"}}, ErrorCode::kCorrupt, "'data.pkl'");
}
TEST(TorchFileRefuses, AMissingVersion) {
  expect_refused({{"a/data.pkl", kNone}}, ErrorCode::kCorrupt, "'version'");
}
TEST(TorchFileRefuses, AnUnknownVersion) {
  for (const char* version : {"999999999999999999999\n", "0\n", "11\n", "three", "3\n\n", ""}) {
    expect_refused({{"a/data.pkl", kNone}, {"a/version", version}}, ErrorCode::kCorrupt,
                   "the version");
  }
}
TEST(TorchFileRefuses, BigEndianElements) {
  expect_refused({{"a/data.pkl", kNone}, {"a/version", "3\n"}, {"a/byteorder", "big"}},
                 ErrorCode::kUnsupported, "big-endian");
}
TEST(TorchFileRefuses, AnUnknownByteOrder) {
  expect_refused({{"a/data.pkl", kNone}, {"a/version", "3\n"}, {"a/byteorder", "middle"}},
                 ErrorCode::kCorrupt, "'middle'");
}
TEST(TorchFileRefuses, ASecondFolder) {
  expect_refused({{"a/data.pkl", kNone}, {"a/version", "3\n"}, {"b/data.pkl", kNone}},
                 ErrorCode::kCorrupt, "outside its folder");
}
TEST(TorchFileRefuses, TorchScript) {
  expect_refused({{"a/data.pkl", kNone}, {"a/version", "3\n"}, {"a/constants.pkl", kNone}},
                 ErrorCode::kUnsupported, "TorchScript");
}
TEST(TorchFileRefuses, UpperCaseNames) {
  expect_refused({{"a/DATA.PKL", kNone}, {"a/version", "3\n"}}, ErrorCode::kCorrupt, "'data.pkl'");
}

/// Returns a pickle in the zip form whose only value is the storage with this persistent id, stored
/// with 24 bytes.
Bytes storage_file(const Value& persistent_id) {
  const Value storage =
      TorchStorage{.type = "FloatStorage", .elements = Tensor::zeros(DType::kFloat32, {6})};
  const Bytes pickle =
      pickle::write_pickle(Value::list({storage}),
                           {.persistent_id = [&](const TorchStorage&) { return persistent_id; }});
  Bytes bytes;
  TorchArchiveWriter archive("archive", pickle, 64, {}, bytes);
  archive.begin_storage(24, bytes);
  bytes.resize(bytes.size() + 24);
  archive.end_storage(crc32(Bytes(24)), bytes);
  archive.finish(bytes);
  return bytes;
}

TEST(TorchFileRefuses, PersistentIdsThatAreNoStorages) {
  const Global type{"torch", "FloatStorage"};
  EXPECT_EQ(load(storage_file(Value::tuple({"storage", type, "0", "cpu", 6})))
                .items()[0]
                .as_storage()
                .elements.numel(),
            6);
  EXPECT_EQ(load(storage_file(Value::tuple({"storage", type, "0", "cuda:99999", 6})))
                .items()[0]
                .as_storage()
                .location,
            "cuda:99999");
  const std::vector<Value> unsound = {
      Value::tuple({"module", type, "file", "source"}),
      Value::tuple({"storage", type, "0", "cpu"}),
      Value::tuple(
          {"storage", type, "0", "cpu", 6, nullptr}),  // only the stream form has a sixth field
      Value::tuple({"storage", type, 0, "cpu", 6}),
      Value::tuple({"storage", "FloatStorage", "0", "cpu", 6}),
      Value::tuple({"storage", Global{"os", "FloatStorage"}, "0", "cpu", 6}),
      Value::tuple({"storage", type, "0", "cpu", "6"}),
      Value("0"),
      Value(),
  };
  for (const Value& id : unsound) EXPECT_THROW(load(storage_file(id)), CheckpointError);
}

TEST(TorchFileRefuses, OneStorageAsTwoTypes) {
  const Value storages =
      Value::list({TorchStorage{.type = "FloatStorage", .elements = kTied.view({6})},
                   TorchStorage{.type = "IntStorage", .elements = kTied.view({6})}});
  const Bytes pickle = pickle::write_pickle(
      storages, {.persistent_id = [](const TorchStorage& storage) {
        return Value::tuple({"storage", Global{"torch", storage.type}, "0", "cpu", 6});
      }});
  Bytes bytes;
  TorchArchiveWriter archive("archive", pickle, 64, {}, bytes);
  archive.begin_storage(24, bytes);
  bytes.resize(bytes.size() + 24);
  archive.end_storage(crc32(Bytes(24)), bytes);
  archive.finish(bytes);
  EXPECT_THROW(load(bytes), CheckpointError);
}

// The stream form.

/// Returns state_stream.pt with one text replaced by another of the same length.
Bytes bent_stream(std::string_view from, std::string_view to) {
  Bytes bytes = testing::torch_file("state_stream.pt");
  const std::size_t at = as_text(bytes).find(from);
  EXPECT_NE(at, std::string_view::npos);
  std::memcpy(bytes.data() + at, to.data(), to.size());
  return bytes;
}

TEST(TorchStreamRefuses, AnotherProtocol) {
  EXPECT_THROW(load(bent_stream("M\xe9\x03.", "M\xe8\x03.")), CheckpointError);
}
TEST(TorchStreamRefuses, BigEndianElements) {
  EXPECT_THROW(load(bent_stream("little_endianq\x02\x88", "little_endianq\x02\x89")),
               CheckpointError);
}
TEST(TorchStreamRefuses, StoragesOfAnotherSize) {
  Bytes bytes = testing::torch_file("state_stream.pt");
  bytes[bytes.size() - 24 - 8] = std::byte{4};  // the last storage: three int64 after their count
  EXPECT_THROW(load(bytes), CheckpointError);
}

TEST(TorchStream, IsReadInGrowingPieces) {
  // The pickle is longer than the first window. A million small numbers would be slow, so it is one
  // long text.
  const Value state = Value::dict({{"text", std::string(3000000, 't')}, {"t", kTied}});
  const Bytes object = pickle::write_pickle(
      state,
      {.reduce_tensor =
           [](const Tensor& tensor) {
             return Value(TorchStorage{.type = "FloatStorage", .elements = tensor.view({6})});
           },
       .persistent_id =
           [](const TorchStorage& storage) {
             return Value::tuple(
                 {"storage", Global{"torch", storage.type}, "key", "cpu", 6, nullptr});
           }});
  Bytes bytes = to_bytes("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.");
  for (const Bytes& part :
       {pickle::write_pickle(1001), pickle::write_pickle(Value::dict({{"little_endian", true}})),
        object, pickle::write_pickle(Value::list({"key"}))}) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  append_le(bytes, std::int64_t{6});
  bytes.insert(bytes.end(), kTied.data(), kTied.data() + 24);
  const Value loaded = load(bytes);
  EXPECT_EQ(loaded.at("text").as_str().size(), 3000000u);
  expect_tensor(loaded.at("t").as_storage().elements, kTied.view({6}));
}

}  // namespace
}  // namespace dckpt::torch_file_test
