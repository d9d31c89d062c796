#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "configs/maps/key_map.h"
#include "migration/maps/findings/dropped_copies.h"
#include "tests/migration/maps/small_model.h"

namespace dckpt::map_direction_test {
namespace {

using testing::contents_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::Model;

enum class Writer : std::uint8_t { kUnknown, kMegatron, kTransformers };
constexpr KeyNames kMegatron = KeyNames::kMegatron, kHf = KeyNames::kHf;

Model written_by(Writer writer, const std::string& prefix = "") {
  Model model{.tensors = {{prefix + "h.0.query", {6, 1}}, {prefix + "h.1.query", {6, 1}}}};
  if (writer == Writer::kMegatron) model.args = Value::dict({{"num_layers", 2}});
  model.conventions.model_folder = writer == Writer::kTransformers;
  return model;
}

/// A trainer has the names of Hugging Face's files, and its own order of rows.
KeyMap map_with(const std::string& steps, const std::string& prefix_of_hf = "") {
  return KeyMap::from_text(
      "version: 1\nfamily: same\ntensors:\n  - {megatron: \"h.{l}.query\", hf: \"" + prefix_of_hf +
      "h.{l}.query\"" + steps + "}\n");
}
constexpr const char* kTurned = ", transform: {rope_interleave: 1}";

struct Source {
  std::string name;
  Writer writer;
  std::optional<KeyNames> to;      // --to
  std::vector<std::string> set{};  // --set
  std::optional<KeyNames> from;    // the right answer; empty: refused
};

const std::vector<Source> kSources{
    {"Folder", Writer::kTransformers, {}, {}, kHf},
    {"FolderToMegatron", Writer::kTransformers, kMegatron, {}, kHf},
    {"FolderToFolder", Writer::kTransformers, kHf, {}, {}},
    {"FolderAsHf", Writer::kTransformers, {}, {"keys=hf"}, {}},
    {"FolderAsMegatron", Writer::kTransformers, {}, {"keys=megatron"}, kHf},
    {"FolderOfTheTrainer", Writer::kTransformers, kHf, {"from=megatron"}, kMegatron},
    {"Args", Writer::kMegatron, {}, {}, kMegatron},
    {"ArgsToFolder", Writer::kMegatron, kHf, {}, kMegatron},
    {"ArgsToMegatron", Writer::kMegatron, kMegatron, {}, {}},
    {"ArgsAsMegatron", Writer::kMegatron, kMegatron, {"keys=megatron"}, kMegatron},
    {"Unknown", Writer::kUnknown, {}, {}, {}},
    {"UnknownToFolder", Writer::kUnknown, kHf, {}, kMegatron},
    {"UnknownToMegatron", Writer::kUnknown, kMegatron, {}, kHf},
    {"UnknownAsHf", Writer::kUnknown, {}, {"keys=hf"}, kMegatron},
    {"UnknownAsMegatron", Writer::kUnknown, kMegatron, {"keys=megatron"}, {}},
    {"UnknownFromHf", Writer::kUnknown, {}, {"from=hf"}, kHf},
    {"UnknownFromMegatron", Writer::kUnknown, {}, {"from=megatron"}, kMegatron},
};

/// Returns the elements of the tensor of layer 0.
std::vector<std::int32_t> first_tensor(const CheckpointReader& reader) {
  const Tensor content = read_box(reader, 0, whole(reader.metadata().tensors.at(0).size));
  std::vector<std::int32_t> elements(content.bytes().size() / sizeof(std::int32_t));
  std::memcpy(elements.data(), content.bytes().data(), content.bytes().size());
  return elements;
}

class MapDirection : public ::testing::TestWithParam<Source> {
 protected:
  static KeyMapOptions options() {
    std::vector<std::string> set = GetParam().set;
    set.emplace_back("layout=non-homogeneous");
    return {"same", std::move(set)};
  }

  static std::unique_ptr<CheckpointReader> open(const KeyMap& map, const Model& model) {
    return mapped_reader(model.open(), options(), nullptr, {.map = &map, .to = GetParam().to});
  }

  /// Checks what a map that turns rows makes of the model, or that it is refused.
  static void expect_right(const KeyMap& map, const Model& model) {
    const auto& [name, writer, to, set, from] = GetParam();
    if (!from) {
      EXPECT_THAT(error_of([&] { open(map, model); }).message(),
                  HasSubstr("add the setting from=hf if"));
      return;
    }
    const bool stays = std::ranges::find(set, "keys=megatron") != set.end() && from == kMegatron;
    const std::vector<std::int32_t> rows = stays          ? std::vector{0, 1, 2, 3, 4, 5}
                                           : *from == kHf ? std::vector{0, 3, 1, 4, 2, 5}
                                                          : std::vector{0, 2, 4, 1, 3, 5};
    EXPECT_EQ(first_tensor(*open(map, model)), rows);
  }
};

TEST_P(MapDirection, OfKeysThatBothSidesHaveIsToldByWriterAndTarget) {
  expect_right(map_with(kTurned), written_by(GetParam().writer));
}

/// Either side's prefixes make the keys of one side those of the other.
TEST_P(MapDirection, OfKeysThatDifferInAKnownPrefixIsToldLikewise) {
  expect_right(map_with(kTurned, "model."), written_by(GetParam().writer, "model."));
}

TEST_P(MapDirection, OfTensorsThatAreAlikeDoesNotMatter) {
  EXPECT_EQ(contents_of(*open(map_with(""), written_by(GetParam().writer))),
            contents_of(*written_by(GetParam().writer).open()));
}

TEST_P(MapDirection, OfARoundTripIsTheOpposite) {
  if (!GetParam().from) return;
  const KeyMap map = map_with(kTurned);
  const RoundTrip trip = round_trip([] { return written_by(GetParam().writer).open(); }, options(),
                                    {.map = &map, .to = GetParam().to});
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
}

INSTANTIATE_TEST_SUITE_P(, MapDirection, ::testing::ValuesIn(kSources),
                         [](const auto& source) { return source.param.name; });

TEST(MapDirectionOfOtherKeys, IsToldByTheKeysWhateverTheWriter) {
  const KeyMap map = KeyMap::from_text(
      "version: 1\nfamily: other\ntensors:\n  - {megatron: \"decoder.{l}.query\", hf: "
      "\"h.{l}.query\", transform: {rope_interleave: 1}}\n");
  for (const Writer writer : {Writer::kUnknown, Writer::kMegatron, Writer::kTransformers}) {
    MapReport report;
    mapped_reader(written_by(writer).open(), {"other", {}}, &report, {.map = &map, .to = kHf});
    EXPECT_EQ(report.keys.sides.from, kHf);
    EXPECT_THAT(error_of([&] {
                  mapped_reader(written_by(writer).open(), {"other", {"from=megatron"}}, nullptr,
                                {.map = &map});
                }).message(),
                HasSubstr("matches no tensor of this checkpoint, by Megatron's names"));
  }
}

/// The same names on both sides, one of which is a trainer's.
KeyMap trainers_map() {
  return KeyMap::from_text(R"(version: 1
family: same
left: Tiny
tensors:
  - {left: "h.{l}.query", hf: "h.{l}.query", transform: {rope_interleave: 1}}
  - {left: "norm", hf: "ln_f", optional: true}
ignore: {left: [], hf: ["h.*.bias"]}
)");
}

KeyNames side_of(const Model& model, const std::vector<std::string>& set,
                 std::optional<bool> to_folder) {
  const KeyMap map = trainers_map();
  MapReport report;
  mapped_reader(model.open(), {"same", set}, &report, {.map = &map, .to_model_folder = to_folder});
  EXPECT_EQ(report.trainer, "Tiny");
  return report.keys.sides.from;
}

TEST(MapDirectionOfATrainer, IsNotGuessedFromOneSign) {
  const Model folder = written_by(Writer::kTransformers), other = written_by(Writer::kUnknown);
  EXPECT_EQ(side_of(folder, {}, false), kHf);      // a folder of transformers that a trainer loads
  EXPECT_EQ(side_of(other, {}, true), kMegatron);  // --to hf
  EXPECT_EQ(side_of(other, {"keys=hf"}, {}), kMegatron);
  EXPECT_EQ(side_of(folder, {"from=left"}, true), kMegatron);
  EXPECT_EQ(side_of(other, {"from=hf"}, false), kHf);
  for (const auto& [model, to] : {std::pair(folder, std::optional<bool>()),
                                  {folder, true},
                                  {other, std::nullopt},
                                  {other, false},
                                  {written_by(Writer::kMegatron), std::nullopt}})
    EXPECT_THAT(
        error_of([&, &model = model, &to = to] { side_of(model, {}, to); }).message(),
        HasSubstr("add the setting from=hf if they are in the form that the map calls 'hf', "
                  "or from=left"));
}

TEST(MapDirectionOfATrainer, IsToldByAKeyThatOneSideAloneHas) {
  EXPECT_EQ(side_of(written_by(Writer::kUnknown).with("norm", {4}), {}, {}), kMegatron);
  EXPECT_EQ(side_of(written_by(Writer::kUnknown).with("ln_f", {4}), {}, {}), kHf);
  EXPECT_EQ(side_of(written_by(Writer::kUnknown).with("h.0.bias", {4}), {}, {}), kHf);
}

TEST(MapDirectionOfATrainer, MessagesHaveItsName) {
  const KeyMap map = trainers_map();
  const auto error = [&](const Model& model, const std::vector<std::string>& set) {
    return error_of([&] {
             mapped_reader(model.open(), {"same", set}, nullptr, {.map = &map});
           })
        .message();
  };
  const Model strange = written_by(Writer::kUnknown).with("norm", {4}).with("x.lora_A", {1});
  const Model foreign{.tensors = {{"a", {1}}}};
  for (const std::string& message :
       {error(strange, {}), error(foreign, {}), error(foreign, {"from=left"})}) {
    EXPECT_THAT(message, HasSubstr("Tiny"));
    EXPECT_THAT(message, ::testing::Not(HasSubstr("Megatron")));
  }
}

TEST(MapOfATrainer, MakesKeysAsItsRowsHaveThemAndNothingElse) {
  const KeyMap map = trainers_map();
  MapReport report;
  const auto made = mapped_reader(written_by(Writer::kTransformers).open(), {"same", {}}, &report,
                                  {.map = &map, .to_model_folder = false});
  EXPECT_EQ(made->metadata().tensors.at(1).key, "h.1.query");
  EXPECT_TRUE(made->metadata().objects.empty());
  EXPECT_TRUE(made->common_state().is_none());
  for (const Finding& finding : report.findings)
    EXPECT_THAT(finding.message, ::testing::Not(HasSubstr("Megatron")));
}

TEST(MapOfATrainer, ReportsDroppedCopiesWithoutAWordOnOthers) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: same
left: Tiny
numbers: {vocab_size: {else: 4}, padded_vocab_size: {else: 4}, tied: {hf: tie}}
tensors:
  - {left: wte, hf: wte, transform: pad_rows}
  - {left: head, hf: lm_head, unless: tied, transform: pad_rows}
)");
  const Model model{.tensors = {{"wte", {4, 2}}, {"lm_head", {4, 2}}},
                    .config = R"({"tie": true})"};
  MapReport report;
  mapped_reader(model.open(), {"same", {}}, &report, {.map = &map});
  const Findings findings = compare_copies(*model.open(), report.copies);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].message, HasSubstr("--set tied=false keeps it"));
  EXPECT_THAT(findings[0].message, ::testing::Not(HasSubstr("Megatron")));
}

}  // namespace
}  // namespace dckpt::map_direction_test
