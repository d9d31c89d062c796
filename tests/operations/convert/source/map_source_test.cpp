#include "operations/convert/source/map_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/migration/maps/small_model.h"

namespace dckpt::map_source_test {
namespace {

using ::testing::AllOf;
using testing::contents_of;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::llama;
using testing::Model;

constexpr const char* kAdapter = "model.layers.0.self_attn.q_proj.lora_A.weight";

MapRequest request(const Model& model, KeyFilter keys, std::vector<std::string> set = {}) {
  return {.open = [model] { return model.open(); },
          .map = {"llama", std::move(set)},
          .keys = std::move(keys)};
}

std::map<std::string, std::string> mapped(const MapRequest& request) {
  const MappedSource source = map_source(request);
  const RoundTrip trip = round_trip_of(request, source);
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
  return contents_of(*source.reader);
}

/// Returns a model with one layer, as its configuration says.
Model first_layer() {
  Model model = llama();
  for (const auto& [key, shape] : llama().tensors) {
    if (key.starts_with("model.layers.1.")) model = model.without(key);
  }
  return model;
}

TEST(MapSource, WhatTheMapDoesNotKnowIsLeftOutByName) {
  const Model with_adapter = llama().with(kAdapter, {2, 8});
  EXPECT_EQ(mapped(request(with_adapter, {.exclude = {"*.lora_A.*"}})),
            mapped(request(llama(), {})));
  const MappedSource source = map_source(request(with_adapter, {.exclude = {"*.lora_A.*"}}));
  EXPECT_THAT(source.gone_tensors, ElementsAre(kAdapter));
  EXPECT_TRUE(source.behind.exclude.empty());
  EXPECT_THAT(
      error_of([&] { map_source(request(with_adapter, {.exclude = {"*.lora_B.*"}})); }).message(),
      AllOf(HasSubstr("not in the map: 'model.layers.0.self_attn.q_proj.lora_A.weight'"),
            HasSubstr("no key of the source matches the pattern '*.lora_B.*'")));
}

TEST(MapSource, TheFirstLayersAreTakenInOneStep) {
  const std::vector<std::string> one{"num_layers=1"};
  const auto first = mapped(request(llama(), {.exclude = {"model.layers.1.*"}}, one));
  EXPECT_EQ(first.at("decoder.layers.mlp.linear_fc2.weight"),
            mapped(request(first_layer(), {}, one)).at("decoder.layers.mlp.linear_fc2.weight"));
  EXPECT_EQ(first.at("output_layer.weight"),
            mapped(request(llama(), {})).at("output_layer.weight"));
  EXPECT_THAT(
      error_of([] { map_source(request(llama(), {.exclude = {"model.layers.1.*"}})); }).message(),
      HasSubstr("the tensors have 1 layers, but num_layers is 2"));
}

TEST(MapSource, RowsOfWhichNothingIsLeftAreNotMade) {
  std::map<std::string, std::string> without_mlp = mapped(request(llama(), {}));
  std::erase_if(without_mlp, [](const auto& entry) {
    return entry.first.find(".mlp.linear_fc1.weight") != std::string::npos;
  });
  EXPECT_EQ(mapped(request(llama(), {.exclude = {"*.gate_proj.*", "*.up_proj.*"}})), without_mlp);
  EXPECT_THAT(
      error_of([] { map_source(request(llama(), {.exclude = {"*.1.mlp.up_proj.*"}})); }).message(),
      AllOf(HasSubstr("missing: 'model.layers.1.mlp.up_proj.weight'"),
            HasSubstr("the patterns leave 1 key of the source out")));
}

TEST(MapSource, PatternsToIncludeNameKeysOfOneSide) {
  const std::vector<std::string> one{"num_layers=1"};
  const auto names_result = map_source(request(llama(), {.include = {"*mbed*"}}));
  EXPECT_THAT(names_result.behind.include, ElementsAre("*mbed*"));
  EXPECT_TRUE(names_result.gone_tensors.empty());
  const auto names_source = map_source(request(llama(), {.include = {"model.layers.0.*"}}, one));
  EXPECT_TRUE(names_source.behind.include.empty());
  EXPECT_FALSE(contents_of(*names_source.reader).contains("output_layer.weight"));
  EXPECT_THAT(error_of([] {
                map_source(request(llama(), {.include = {"lm_head.*", "output_layer.*"}}));
              }).message(),
              HasSubstr("to include 'lm_head.*'"));
}

TEST(MapSource, PatternsOfBothSidesAreLeftForTheResultToo) {
  const MappedSource source = map_source(request(llama(), {.exclude = {"*.mlp.*"}}));
  EXPECT_THAT(source.behind.exclude, ElementsAre("*.mlp.*"));
  EXPECT_FALSE(contents_of(*source.reader).contains("decoder.layers.mlp.linear_fc2.weight"));
}

}  // namespace
}  // namespace dckpt::map_source_test
