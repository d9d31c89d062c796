#include "configs/yaml/schema.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "configs/yaml/yaml.h"

namespace dckpt::schema_test {
namespace {

using namespace config;
using ::testing::ElementsAre;
using ::testing::StartsWith;

enum class Wide { kLow = -7, kHigh = 1 << 20 };
constexpr EnumNames<Wide, 2> kWideNames{{{Wide::kLow, "low"}, {Wide::kHigh, "high"}}};

struct Inner {
  std::string name{};
  std::vector<int> ranks{};
  friend bool operator==(const Inner&, const Inner&) = default;
};

struct Everything {
  std::int8_t small = 0;
  std::uint8_t byte = 0;
  std::int16_t medium = 0;
  std::uint64_t large = 0;
  Wide wide = Wide::kLow;
  std::optional<int> maybe{};
  std::vector<std::string> names{};
  Inner inner{};
  std::vector<Inner> list{};
  friend bool operator==(const Everything&, const Everything&) = default;
};

Type<Inner> inner() {
  static const Schema<Inner> schema{
      {required(field("name", &Inner::name, text("a name"))),
       optional_field("ranks", &Inner::ranks,
                      list_of(integer(0, 99), "a list of ranks, for example [0, 1]"))},
      "; an inner is {name: NAME}"};
  return section(schema);
}

Type<Everything> everything() {
  static const Schema<Everything> schema{
      {field("small", &Everything::small, integer<std::int8_t>(-5, 5)),
       field("byte", &Everything::byte, integer<std::uint8_t>(0, 255)),
       field("medium", &Everything::medium, integer<std::int16_t>(-300, 300)),
       field("large", &Everything::large, integer<std::uint64_t>(0, std::uint64_t{1} << 40)),
       field("wide", &Everything::wide, choice(kWideNames)),
       optional_field("maybe", &Everything::maybe, optional_of(integer(1, 9))),
       field("names", &Everything::names, one_or_more(text("a name"), "a name, or names")),
       field("inner", &Everything::inner, inner()),
       field("list", &Everything::list, list_of(inner(), "a list"))}};
  return section(schema);
}

/// Returns the problems of a text; what it says goes to `into`.
std::vector<std::string> read(const std::string& yaml, Everything& into) {
  ConfigProblems problems;
  const std::optional<YamlNode> root = parse_yaml(yaml, problems);
  everything().read({*root, "", problems}, into);
  std::vector<std::string> messages;
  for (const ConfigProblem& problem : problems) messages.push_back(problem.message);
  return messages;
}

TEST(Schema, MembersOfAllSizesAreReadAndShown) {
  const std::string yaml =
      "small: -5\nbyte: 255\nmedium: -300\nlarge: 1099511627776\nwide: high\nmaybe: 9\n"
      "names: [a, b]\ninner:\n  name: c\n  ranks: [1, 2]\nlist: [{name: d}]\n";
  Everything all;
  EXPECT_THAT(read(yaml, all), ElementsAre());
  EXPECT_EQ(all, (Everything{-5,
                             255,
                             -300,
                             std::uint64_t{1} << 40,
                             Wide::kHigh,
                             9,
                             {"a", "b"},
                             {"c", {1, 2}},
                             {{"d", {}}}}));
  EXPECT_EQ(to_yaml_text(everything().show(all)), yaml);
}

TEST(Schema, WhatDoesNotFitLeavesTheMemberAlone) {
  Everything all{.small = 3, .wide = Wide::kHigh, .maybe = 5};
  EXPECT_THAT(
      read("{small: 6, wide: middle, maybe: 10, inner: {}, list: [{name: x, rank: 1}, y]}", all),
      ElementsAre("small: found '6', expected an integer from -5 to 5",
                  "wide: found 'middle', expected low or high",
                  "maybe: found '10', expected an integer from 1 to 9",
                  "inner: 'name' is missing; an inner is {name: NAME}",
                  "list[0] has no field 'rank' (did you mean 'ranks'?); it has name and ranks",
                  "list[1]: found 'y', expected a mapping with name and ranks"));
  EXPECT_EQ(all.small, 3);
  EXPECT_EQ(all.wide, Wide::kHigh);
  EXPECT_EQ(all.maybe, 5);
}

TEST(Schema, UnknownKeysAreReportedBeforeWhatTheOthersHold) {
  Everything all;
  EXPECT_THAT(read("small:\nsmal: 1\n", all),
              ElementsAre(StartsWith("the file has no field 'smal' (did you mean 'small'?)"),
                          "small: found nothing, expected an integer from -5 to 5"));
}

TEST(Schema, EqualFormsShareTheirParts) {
  const Form first = list_of(text("a name"), "names").form;
  EXPECT_EQ(first.parts, list_of(text("a name"), "other names").form.parts);
  EXPECT_NE(first.parts, list_of(text("a word"), "words").form.parts);
}

}  // namespace
}  // namespace dckpt::schema_test
