#include "mapping/state/record.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tests/support/expect_error.h"

namespace dckpt::record_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

enum class Schedule : std::uint8_t { kConstant, kCosine };

struct Layer {
  std::int64_t width = 0;
  float dropout = 0;
};
constexpr auto fields(const Layer*) {
  return std::tuple(Field("width", &Layer::width), Field("dropout", &Layer::dropout));
}

struct RunConfig {
  std::string name;
  bool tied = false;
  std::uint64_t seed = 0;
  std::int8_t small = 0;
  Schedule schedule = Schedule::kConstant;
  std::filesystem::path data;
  std::vector<Layer> layers;
  std::optional<double> clip;
  Shape mesh;
  Value anything;
  int not_stored = 0;
};
constexpr auto fields(const RunConfig*) {
  using R = RunConfig;
  return std::tuple(Field("name", &R::name), Field("tied", &R::tied), Field("seed", &R::seed),
                    Field("small", &R::small), Field("schedule", &R::schedule),
                    Field("data", &R::data), Field("layers", &R::layers), Field("clip", &R::clip),
                    Field("mesh", &R::mesh), Field("anything", &R::anything),
                    Field(&R::not_stored));
}

RunConfig example() {
  return {.name = "a run",
          .tied = true,
          .seed = UINT64_MAX,
          .small = -3,
          .schedule = Schedule::kCosine,
          .data = "/data/text",
          .layers = {{64, 0.5F}, {128, 0}},
          .clip = {},
          .mesh = {2, 4},
          .anything = Value::tuple({1, "two"}),
          .not_stored = 9};
}

TEST(Record, BecomesADictAndReturns) {
  const Value dict = to_dict(example());
  EXPECT_EQ(dict.at("name"), Value("a run"));
  EXPECT_EQ(dict.at("schedule"), Value(1));
  EXPECT_EQ(dict.at("data"), Value("/data/text"));
  EXPECT_EQ(dict.at("layers").items().at(1), Value::dict({{"width", 128}, {"dropout", 0.0}}));
  EXPECT_TRUE(dict.at("clip").is_none());
  EXPECT_EQ(dict.size(), 10U);

  const auto back = from_dict<RunConfig>(dict);
  EXPECT_EQ(to_dict(back), dict);
  EXPECT_EQ(back.seed, UINT64_MAX);
  EXPECT_EQ(back.schedule, Schedule::kCosine);
  EXPECT_EQ(back.layers.at(0).dropout, 0.5F);
  EXPECT_EQ(back.not_stored, 0);
}

TEST(Record, NamesTheMembersThatAreMissingOrUnknown) {
  Value dict = to_dict(example());
  dict.mutable_dict().erase("seed");
  dict["sede"] = 1;
  Value layer = to_dict(Layer{});
  layer.mutable_dict().erase("dropout");
  const auto error = error_of([&] { from_dict<RunConfig>(dict); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_EQ(error.message(),
            "cannot read a record: the dict lacks 'seed', and has 'sede', of which the record has "
            "no field");
  dict = to_dict(example());
  dict["layers"] = Value::list({to_dict(Layer{}), layer});
  EXPECT_EQ(error_of([&] { from_dict<RunConfig>(dict); }).message(),
            "cannot read the member 'layers[1]' of a record: the dict lacks 'dropout'");
}

TEST(Record, NamesTheMemberThatDoesNotFit) {
  const auto message = [](const char* name, const Value& value) {
    Value dict = to_dict(example());
    dict[name] = value;
    return error_of([&] { from_dict<RunConfig>(dict); }).message();
  };
  EXPECT_EQ(message("small", 128),
            "cannot read the member 'small' of a record: the number 128 is out of range");
  EXPECT_EQ(message("schedule", 256),
            "cannot read the member 'schedule' of a record: the number 256 is out of range");
  EXPECT_THAT(message("seed", -1), HasSubstr("the number -1 is out of range"));
  EXPECT_EQ(message("name", 1),
            "cannot read the member 'name' of a record: expected str, found int");
  EXPECT_THAT(message("layers", 1), HasSubstr("'layers'"));
  EXPECT_THAT(message("layers", Value::list({1})),
              HasSubstr("'layers[0]' of a record: expected a dict with the members 'width', "
                        "'dropout', found int"));
}

TEST(Value, IsMadeOfPathsEnumeratorsAndRanges) {
  const std::vector<std::int64_t> numbers = {3, 4};
  const std::vector<std::vector<std::string>> texts = {{"a"}, {}};
  const std::array<bool, 2> flags = {true, false};
  EXPECT_EQ(Value(std::filesystem::path("/a/b")), Value("/a/b"));
  EXPECT_EQ(Value(Schedule::kCosine), Value(1));
  EXPECT_EQ(Value(std::span(numbers)), Value::list({3, 4}));
  EXPECT_EQ(Value(Shape{3, 4}), Value::list({3, 4}));
  EXPECT_EQ(Value(texts), Value::list({Value::list({"a"}), Value::list()}));
  EXPECT_EQ(Value(flags), Value::list({true, false}));
  static_assert(!std::is_constructible_v<Value, Bytes>, "bytes() or byte_array()");
  static_assert(!std::is_constructible_v<Value, ValueList>, "list(), tuple() or set()");
  static_assert(!std::is_constructible_v<Value, char>);
}

TEST(Shape, IsMadeOfRangesOfIntegers) {
  const std::vector<int> extents = {2, 3};
  const std::array<std::size_t, 2> sizes = {4, 5};
  const Shape shape = extents;
  EXPECT_THAT(shape, ElementsAre(2, 3));
  EXPECT_THAT(Shape(sizes), ElementsAre(4, 5));
  EXPECT_THAT(Shape(ShapeView(shape).first(1)), ElementsAre(2));
  const Tensor tensor = Tensor::empty(DType::kFloat32, extents);
  EXPECT_THAT(tensor.shape(), ElementsAre(2, 3));
}

TEST(Tensor, WrapsMemoryOfTheCallerOrOfAnOwner) {
  auto memory = std::make_shared<std::array<float, 6>>();
  Tensor tensor = Tensor::wrap(DType::kFloat32, {2, 3}, memory->data());
  tensor.data<float>()[5] = 7;
  EXPECT_EQ((*memory)[5], 7);
  EXPECT_THAT(tensor.strides(), ElementsAre(3, 1));
  EXPECT_EQ(memory.use_count(), 1);
  const Tensor owner = Tensor::wrap(DType::kFloat32, {6}, memory->data(), memory);
  EXPECT_EQ(memory.use_count(), 2);
  EXPECT_EQ(error_of([&] { Tensor::wrap(DType::kFloat32, {-1}, memory->data()); }).code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace dckpt::record_test
