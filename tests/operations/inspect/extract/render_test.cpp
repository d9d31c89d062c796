#include "operations/inspect/extract/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "dist_checkpointing/open/open.h"
#include "strategies/formats/json/json.h"
#include "strategies/formats/pickle/value.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace dckpt::render_test {
namespace {

std::string rendered(const Value& value) {
  return to_json(render(value));
}

Value call(const char* module, const char* name, ValueList args) {
  return Opaque{.callable = Global{module, name}, .args = Value::tuple(std::move(args))};
}

Value object_with_state(const char* module, const char* name, Value state) {
  return Opaque{
      .form = Opaque::Form::kNew, .callable = Global{module, name}, .states = {std::move(state)}};
}

TEST(Render, JsonValuesStandForThemselves) {
  EXPECT_EQ(rendered(Value::dict({{"a", Value::list({1, 2.5, "x", true, Value()})}})),
            R"({"a": [1, 2.5, "x", true, null]})");
}

TEST(Render, PythonContainersAreTagged) {
  EXPECT_EQ(rendered(Value::tuple({1, Value::tuple()})),
            R"({"__tuple__": [1, {"__tuple__": []}]})");
  EXPECT_EQ(rendered(Value::dict({{1, "a"}, {"b", 2}})), R"({"__dict__": [[1, "a"], ["b", 2]]})");
  EXPECT_EQ(rendered(Value::set({10, 9, 100})), R"({"__set__": [9, 10, 100]})");
  EXPECT_EQ(rendered(Value::frozen_set({"b", "a"})), R"({"__frozenset__": ["a", "b"]})");
}

TEST(Render, NumbersThatJsonWouldBendAreText) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 53;
  EXPECT_EQ(rendered(kLimit - 1), "9007199254740991");
  EXPECT_EQ(rendered(kLimit), R"({"__int__": "9007199254740992"})");
  EXPECT_EQ(rendered(-kLimit), R"({"__int__": "-9007199254740992"})");
  EXPECT_EQ(rendered(std::nan("")), R"({"__float__": "nan"})");
  EXPECT_EQ(rendered(-std::numeric_limits<double>::infinity()), R"({"__float__": "-inf"})");
  EXPECT_EQ(rendered(std::complex<double>(1.5, -2)), R"({"__complex__": [1.5, -2.0]})");
}

TEST(Render, ShortBytesAreShownLongOnesHashed) {
  EXPECT_THAT(rendered(Value::bytes(Bytes(64))), ::testing::HasSubstr("\"hex\": \"0000"));
  EXPECT_THAT(rendered(Value::bytes(Bytes(65))), ::testing::Not(::testing::HasSubstr("hex")));
}

TEST(Render, LongSequencesOfNumbersAreHashedLikePythonsRepr) {
  ValueList numbers;
  for (int i = 0; i < 64; ++i) numbers.emplace_back(i);
  EXPECT_TRUE(render(Value::list(numbers)).is_list());
  numbers.emplace_back(0.5);
  // hashlib.sha256(",".join(map(repr, [*range(64), 0.5])).encode()).hexdigest()
  EXPECT_EQ(
      rendered(Value::list(numbers)),
      R"({"__long__": "list", "len": 65, "sha256": "da6f4210e7089aebdb63234ccd6188d166cc940258460be7000698e85f70497d", "first": [0, 1, 2, 3]})");
}

TEST(Render, TorchNamesAreTagged) {
  EXPECT_EQ(rendered(Global{"torch", "bfloat16"}), R"({"__torch.dtype__": "bfloat16"})");
  EXPECT_EQ(rendered(Global{"torch.optim", "Adam"}), R"({"__global__": "torch.optim.Adam"})");
  EXPECT_EQ(rendered(call("torch", "Size", {Value::tuple({2, 3})})),
            R"({"__torch.Size__": [2, 3]})");
  EXPECT_EQ(rendered(call("torch", "device", {"cuda", 1})), R"({"__torch.device__": "cuda:1"})");
}

TEST(Render, EnumsAreKnownByValueAndByName) {
  const std::string expected =
      R"({"__enum__": "megatron.core.transformer.enums.AttnBackend", "name": "auto", "value": 5})";
  EXPECT_EQ(rendered(call("megatron.core.transformer.enums", "AttnBackend", {5})), expected);
  EXPECT_EQ(rendered(call("builtins", "getattr",
                          {Global{"megatron.core.transformer.enums", "AttnBackend"}, "auto"})),
            expected);
}

TEST(Render, UnknownObjectsStayVisible) {
  EXPECT_EQ(rendered(call("posix", "system", {"true"})),
            R"({"__opaque__": {"class": "posix.system", "args": ["true"], "state": null}})");
  EXPECT_EQ(rendered(object_with_state("a.b", "C", Value::dict({{"x", 1}}))),
            R"({"__opaque__": {"class": "a.b.C", "args": [], "state": {"x": 1}}})");
  EXPECT_EQ(
      rendered(call("megatron.core.enums", "ModelType", {99})),
      R"({"__opaque__": {"class": "megatron.core.enums.ModelType", "args": [99], "state": null}})");
}

TEST(Render, ReferencesSayHowFarOutTheirValueIs) {
  Value node = object_with_state("a", "Node", Value::dict({{"me", Value::reference(7)}}));
  EXPECT_EQ(rendered(node.as_opaque().states[0]), R"({"me": {"__reference__": null}})");
  node.set_label(7);
  EXPECT_THAT(rendered(Value::list({node})),
              ::testing::HasSubstr(R"("state": {"me": {"__reference__": 2}})"));
}

TEST(Render, ClassesHaveTheNamesOfTheNewestReleases) {
  for (const char* const module : {"numpy.core.multiarray", "numpy._core.multiarray"})
    EXPECT_THAT(rendered(call(module, "scalar", {Global{"pathlib._local", "PosixPath"}})),
                ::testing::AllOf(::testing::HasSubstr(R"("numpy._core.multiarray.scalar")"),
                                 ::testing::HasSubstr(R"("pathlib.PosixPath")")));
  EXPECT_EQ(rendered(Global{"numpy", "bool_"}), R"({"__global__": "numpy.bool"})");
  EXPECT_EQ(rendered(Global{"numpy.corelib", "x"}), R"({"__global__": "numpy.corelib.x"})");
}

TEST(Render, NumpyThatLiesAboutItsSizeStaysOpaque) {
  const Value dtype =
      Opaque{.callable = Global{"numpy", "dtype"},
             .args = Value::tuple({"f8", false, true}),
             .states = {Value::tuple({3, "<", Value(), Value(), Value(), -1, -1, 0})}};
  const Value make = Opaque{.callable = Global{"numpy.core.multiarray", "_reconstruct"},
                            .args = Value::tuple({Global{"numpy", "ndarray"}, Value::tuple({0}),
                                                  Value::bytes(to_bytes("b"))}),
                            .states = {Value::tuple({1, Value::tuple({std::int64_t{1} << 62, 8}),
                                                     dtype, false, Value::bytes(Bytes(8))})}};
  EXPECT_THAT(
      rendered(make),
      ::testing::StartsWith(R"({"__opaque__": {"class": "numpy._core.multiarray._reconstruct")"));
}

TEST(Render, NestingHasALimitThatIsAnErrorAndNoCrash) {
  Value deep;
  for (int i = 0; i < 5000; ++i) deep = Value::list({deep});
  EXPECT_EQ(testing::error_of([&] { render(deep); }).code(), ErrorCode::kUnsupported);
}

Value python_pickle(const std::string& name) {
  std::ifstream file(std::string(DCKPT_TEST_DATA) + "/pickles/" + name, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return pickle::value_from_graph(pickle::read_graph(as_bytes(bytes), name));
}

// hashlib.sha256(numpy.arange(6, dtype="<f4").tobytes()).hexdigest()
TEST(Render, NumpyOfEveryProtocol) {
  for (const char* const name : {"numpy.p2.pkl", "numpy.p4.pkl", "numpy.p5.pkl"}) {
    EXPECT_EQ(
        rendered(python_pickle(name)),
        R"({"array": {"__ndarray__": {"dtype": "<f4", "shape": [2, 3], "sha256": "e2c0a71510b5394df7773b63fb5f54372b84c3564e67811bde7d665be227976d"}}, )"
        R"("scalar": {"__npscalar__": "int64", "value": -3}})")
        << name;
  }
}

TEST(Render, ObjectsOfEveryProtocol) {
  for (int protocol = 2; protocol <= 5; ++protocol) {
    const Value objects = render(python_pickle("objects.p" + std::to_string(protocol) + ".pkl"));
    EXPECT_EQ(to_json(objects.at("ordered")), R"({"__OrderedDict__": [["b", 1], ["a", 2]]})")
        << protocol;
    EXPECT_EQ(to_json(objects.at("default")), R"({"__defaultdict__": [["k", [1]]]})") << protocol;
    EXPECT_EQ(to_json(objects.at("namespace")), R"({"__namespace__": {"lr": 0.1, "name": "x"}})")
        << protocol;
    EXPECT_EQ(to_json(objects.at("class")), R"({"__global__": "collections.OrderedDict"})")
        << protocol;
    EXPECT_TRUE(objects.at("point").contains("__opaque__")) << protocol;
  }
}

TEST(Render, ByteStreams) {
  EXPECT_THAT(to_json(render(python_pickle("stateful.p2.pkl")).at("buffer")),
              ::testing::MatchesRegex(
                  R"(\{"__BytesIO__": \{"len": 2, "sha256": "[0-9a-f]{64}", "hex": "00ff"\}\})"));
}

/// Expects the rendering that the producer's own Python gave; where ours says opaque, anything
/// matches.
void expect_same(const Value& expected, const Value& found, const std::string& path) {
  if (found.contains("__opaque__")) return;
  if (expected.is_dict() && found.is_dict()) {
    for (const auto& [key, value] : expected.as_dict()) {
      const Value* const other = found.find(key);
      ASSERT_NE(other, nullptr) << path << "." << key.as_str();
      expect_same(value, *other, path + "." + key.as_str());
    }
    EXPECT_EQ(expected.size(), found.size()) << path;
  } else if (expected.is_list() && found.is_list()) {
    ASSERT_EQ(expected.size(), found.size()) << path;
    for (std::size_t i = 0; i < expected.size(); ++i)
      expect_same(expected.items()[i], found.items()[i], path + "[" + std::to_string(i) + "]");
  } else {
    EXPECT_EQ(to_json(expected), to_json(found)) << path;
  }
}

class RenderGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(RenderGolden, EqualsWhatPythonHeldBeforeSaving) {
  const Value expected = testing::golden_expected(GetParam());
  const auto reader = open_checkpoint(testing::golden(GetParam()));
  if (expected.at("common").size() > 0)
    expect_same(expected.at("common"), render(reader->common_state()), "common");
  const Value& objects = expected.at("objects");
  EXPECT_EQ(reader->metadata().objects.size(), objects.size());
  for (std::size_t i = 0; i < reader->metadata().objects.size(); ++i) {
    const std::string& key = reader->metadata().objects[i].key;
    ASSERT_TRUE(objects.contains(key)) << key;
    expect_same(objects.at(key), render(reader->object(i)), key);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Producers, RenderGolden,
    ::testing::Values("mcore-0.14-synthetic", "mcore-0.16-synthetic", "mcore-head-synthetic",
                      "mcore-0.10-bucket-space-tp2pp1dp2", "mcore-0.14-dp-zero-tp2pp1dp2",
                      "mcore-0.14-moe-ep2", "mcore-head-moe-ep2", "mcore-0.14-zarr-tp2pp1dp2",
                      "mcore-0.15-flattened-tp2pp2dp2", "dcp-plain-nested",
                      "dcp-plain-nested-torch2.15", "dcp-fsdp-dtensor-layout", "dcp-zstd-torch2.15",
                      "mcore-0.16-nvrx-local", "tc-0.1-native-2d", "tc-0.1-async", "tc-0.1-single"),
    [](const auto& instance) {
      std::string name = instance.param;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

}  // namespace
}  // namespace dckpt::render_test
