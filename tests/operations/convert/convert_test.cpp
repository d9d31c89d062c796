#include "operations/convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "operations/inspect/compatible_readers.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/dcp/metadata_writer.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "tests/operations/convert/conversions.h"
#include "tests/support/arange.h"
#include "tests/support/golden.h"
#include "tests/support/process_usage.h"

namespace dckpt::convert_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using testing::Refusal;
using testing::refusal_of;
using ::testing::UnorderedElementsAreArray;

class Convert : public testing::Conversions {
 protected:
  /// Returns the stored value of an object.
  Value stored(const std::string& checkpoint, const std::string& key) const {
    const auto reader = open_checkpoint(at(checkpoint));
    const std::vector<BytesStorageMetadata>& objects = reader->metadata().objects;
    for (std::size_t i = 0; i < objects.size(); ++i) {
      if (objects[i].key == key) return load_torch_bytes(reader->object_bytes(i), key);
    }
    ADD_FAILURE() << key << " is not stored";
    return {};
  }
};

StateDict nested_state() {
  StateDict state;
  state["model"]["blocks"] = Value::list(
      {Value::dict({{"w", arange({4})}, {"scale", 0.5}}), Value::dict({{"w", arange({5})}})});
  state["model"]["name"] = "tiny";
  state["model"]["x/shard_0_1"] = Value::tuple({"x", 1});
  state["model"]["y/shard_0_1"] = Value::list({7});
  state["step"] = 12;
  return state;
}

TEST_F(Convert, APlainDcpDirectoryComesBackFromTorchDistAsItWas) {
  save(nested_state(), at("dcp"), {.compat = Compat::kDcp});
  run("dcp", "megatron", {.target = {.strategy = "torch_dist"}});
  EXPECT_EQ(open_checkpoint(at("megatron"))
                ->common_state()
                .at("model")
                .at("blocks")
                .items()[0]
                .at("scale")
                .as_float(),
            0.5);
  run("megatron", "again", {.target = {.strategy = "torch_dist", .ranks = 2}});
  run("again", "back", {.target = {.strategy = "dcp"}});
  EXPECT_EQ(differences(at("dcp"), at("back")), 0U);
  const Metadata before = open_checkpoint(at("dcp"))->metadata();
  const Metadata after = open_checkpoint(at("back"))->metadata();
  EXPECT_THAT(after.paths, UnorderedElementsAreArray(before.paths));
  EXPECT_THAT(after.common_paths, IsEmpty());
}

TEST_F(Convert, TensorsAndObjectsKeepTheOrderThatTheyHaveTogether) {
  const auto keys = [&](const std::string& name) {
    const auto reader = open_checkpoint(at(name));
    std::map<std::uint32_t, std::string> in_order;
    for (const auto& tensor : reader->metadata().tensors) in_order[tensor.order] = tensor.key;
    for (const auto& object : reader->metadata().objects) in_order[object.order] = object.key;
    return in_order;
  };
  save(nested_state(), at("dcp"), {.compat = Compat::kDcp});
  run("dcp", "copy", {.target = {.ranks = 2}});
  EXPECT_EQ(keys("dcp").at(1), "model.blocks.0.scale");  // between tensors
  EXPECT_EQ(keys("copy"), keys("dcp"));
}

/// A trainer of float8 leaves such records: "w" is a call of its class.
TEST_F(Convert, RecordsThatAreNoPlainTensorsAreCopiedAsTheyAre) {
  Opaque wrapped{.form = Opaque::Form::kCall, .callable = Global{"trainlib", "Float8"}};
  wrapped.args = Value::tuple({arange({4}), 0.5});
  const Bytes w = save_torch_file(Value(wrapped)), b = save_torch_file(Value(arange({3})));
  save(Value::dict({{"w", arange({4})}, {"b", arange({3})}}), at("source"),
       {.compat = Compat::kDcp});
  Metadata metadata = open_checkpoint(at("source"))->metadata();
  metadata.tensors[0].places[0] = {.file = 0, .offset = 0, .length = w.size()};
  metadata.tensors[1].places[0] = {.file = 0, .offset = w.size(), .length = b.size()};
  const auto write = [&](const std::string& name, std::initializer_list<Bytes> parts) {
    std::ofstream file(at("source") / name, std::ios::binary);
    for (const Bytes& part : parts) file << as_text(part);
  };
  write(metadata.files[0], {w, b});
  write(".metadata", {write_dcp_metadata(metadata)});

  for (const std::string format : {"dcp", "torch_dist"}) {
    const ConvertReport report = run("source", format, {.target = {.strategy = format}});
    EXPECT_THAT(messages_of(report.findings),
                Contains(HasSubstr("not as plain tensors: 'w'; only trainers")));
    const auto reader = open_checkpoint(at(format));
    const StorageInfo& place = reader->metadata().find_tensor("w")->places[0];
    Bytes copied(place.length);
    reader->storage().open(reader->metadata().files[place.file])->read(place.offset, copied);
    EXPECT_EQ(copied, w);
    EXPECT_EQ(load_state_dict(at(format), {"b"}).at("b").as_tensor().data<const float>()[2], 2);
  }
  run("source", "renamed", {.target = {.rename = {{"^b$", "c"}}}});
  EXPECT_THAT(refusal_of([&] { run("source", "no", {.target = {.strategy = "zarr"}}); }),
              Pair(ErrorCode::kUnsupported, HasSubstr("'trainlib.Float8'")));
}

TEST_F(Convert, ThePlainValuesOfADcpDirectoryEqualTheCommonStateOfItsCopy) {
  save(nested_state(), at("dcp"), {.compat = Compat::kDcp});
  for (const std::string format : {"torch_dist", "zarr"}) {
    run("dcp", format, {.target = {.strategy = format}});
    EXPECT_EQ(differences(at("dcp"), at(format)), 0U);
  }
  run("torch_dist", "less", {.source = {.keys = {.exclude = {"model.name", "step"}}}});
  EXPECT_EQ(differences(at("dcp"), at("less")), 2U);
  EXPECT_FALSE(open_checkpoint(at("less"))->common_state().contains("step"));
}

TEST_F(Convert, ATorchFileBecomesADcpDirectoryThatItsStateLoads) {
  const auto state_of = [](Tensor (*tensor)(const Shape&), std::int64_t step) {
    const Value groups = Value::list({Value::dict({{"lr", 0.5}, {"params", Value::list({0})}})});
    return Value::dict(
        {{"model.net", Value::dict({{"layer.0.weight", tensor({4})}})},
         {"optim", Value::dict({{"state", Value::dict({{0, Value::dict({{"m", tensor({4})}})}})},
                                {"param_groups", groups}})},
         {"mixed", Value::list({tensor({2}), step, Value::dict({{"x", step}})})},
         {"step", step}});
  };
  const StateDict saved = state_of(arange, 7);
  std::ofstream(at("saved.pt"), std::ios::binary) << as_text(save_torch_file(saved));
  run("saved.pt", "dcp", {.target = {.strategy = "dcp"}});
  EXPECT_EQ(differences(at("saved.pt"), at("dcp")), 0U);
  StateDict loaded = state_of(untouched, 0);
  load(loaded, at("dcp"));
  EXPECT_EQ(loaded, saved);
  EXPECT_EQ(load_state_dict(at("dcp")).at("model.net").at("layer.0.weight"), Value(arange({4})));
  run("dcp", "megatron", {.target = {.strategy = "torch_dist"}});
  EXPECT_EQ(differences(at("dcp"), at("megatron")), 0U) << "and back";
}

TEST_F(Convert, ValuesOfACommonStateAreAlsoObjectsUnderTheirPathsInADcpDirectory) {
  StateDict state = Value::dict({{"weight", arange({4})}});
  state["iteration"] = 7;
  state["optimizer"] = Value::dict({{"param_groups", Value::list({Value::dict({{"lr", 0.5}})})}});
  state["steps"] = Value::dict({{7, "an integer as key"}});
  state["odd"] = Value::dict({{Value::tuple({1, 2}), "no text as key"}});
  save(state, at("a"));
  const StateDict common = open_checkpoint(at("a"))->common_state();
  const auto copied = [&](const std::string& from, const std::string& to, const std::string& as) {
    const ConvertReport report = run(from, to, {.target = {.strategy = as}});
    EXPECT_EQ(differences(at("a"), at(to)), 0U) << to;
    EXPECT_EQ(open_checkpoint(at(to))->common_state(), common) << to;
    EXPECT_TRUE(verify(*open_checkpoint(at(to)), {.deep = true}).ok()) << to;
    return messages_of(report.findings);
  };
  copied("a", "zarr", "zarr");
  EXPECT_THAT(copied("zarr", "dcp", "dcp"),
              AllOf(Contains(HasSubstr("also under their paths in the DCP directory")),
                    Contains(HasSubstr("PyTorch finds 'odd' only inside the common state"))));
  const auto raw = [&](const std::string& name) {
    const auto pickle = Location(at(name)).directory()->open(".metadata");
    Bytes bytes(pickle->size());
    pickle->read(0, bytes);
    return read_dcp_metadata(bytes);
  };
  EXPECT_NE(raw("dcp").find_object("steps.7"), nullptr);
  EXPECT_THAT(open_checkpoint(at("dcp"))->metadata().objects, IsEmpty()) << "readers hide copies";
  copied("dcp", "copy", "dcp");
  EXPECT_NE(raw("copy").find_object("steps.7"), nullptr) << "a copy keeps its form";
  copied("copy", "back", "torch_dist");
  EXPECT_EQ(raw("back").find_object("steps.7"), nullptr);
  run("copy", "less", {.source = {.keys = {.exclude = {"steps"}}}});
  EXPECT_EQ(raw("less").find_object("steps.7"), nullptr);
  EXPECT_FALSE(open_checkpoint(at("less"))->common_state().contains("steps"));
}

TEST_F(Convert, ObjectsThatLeadBackToThemselvesGoThroughEveryFormat) {
  Value node = Opaque{.callable = Global{"trainer", "Node"},
                      .states = {Value::dict({{"parent", Value::reference(77)}})}};
  node.set_label(77);
  StateDict state = nested_state();
  state["cfg"] = node;
  save(state, at("a"));
  run("a", "b", {.target = {.strategy = "zarr"}});
  run("b", "c", {.target = {.strategy = "torch_dist"}});
  const Value back = open_checkpoint(at("c"))->common_state().at("cfg");
  EXPECT_NE(back.label(), 0U);
  EXPECT_EQ(back.as_opaque().states[0].at("parent"), Value::reference(back.label()));
}

TEST_F(Convert, MegatronsObjectsAreInListsAndThoseOfDcpAreNotWhateverTheirKeysLookLike) {
  save(nested_state(), at("dcp"), {.compat = Compat::kDcp});
  run("dcp", "megatron", {.target = {.strategy = "torch_dist"}});
  run("megatron", "back", {.target = {.strategy = "dcp"}});
  EXPECT_EQ(stored("dcp", "model.y/shard_0_1"), Value::list({7}));
  EXPECT_EQ(stored("megatron", "model.x/shard_0_1"), Value::list({Value::tuple({"x", 1})}));
  EXPECT_EQ(stored("megatron", "model.y/shard_0_1"), Value::list({Value::list({7})}));
  EXPECT_EQ(stored("back", "model.x/shard_0_1"), Value::tuple({"x", 1}));
  EXPECT_EQ(stored("back", "model.y/shard_0_1"), Value::list({7}));
}

TEST_F(Convert, AMegatronCheckpointComesBackFromPlainDcpAsItWas) {
  for (const char* const name : {"mcore-0.14-synthetic", "mcore-head-synthetic"}) {
    convert(golden(name), at(name), {.target = {.strategy = "dcp"}});
    run(name, std::string(name) + "-back", {.target = {.strategy = "torch_dist"}});
    EXPECT_EQ(differences(golden(name), at(name)), 0U) << name;
    EXPECT_EQ(differences(golden(name), at(std::string(name) + "-back")), 0U) << name;
  }
}

TEST_F(Convert, KeysAreRenamedWithTheirPlacesInTheTree) {
  save(nested_state(), at("dcp"), {.compat = Compat::kDcp});
  run("dcp", "renamed", {.target = {.rename = {{"^model\\.", "net."}}}});
  const auto reader = open_checkpoint(at("renamed"));
  EXPECT_NE(reader->metadata().find_object("net.x/shard_0_1"), nullptr);
  EXPECT_THAT(
      reader->metadata().paths,
      Contains(std::pair("net.blocks.1.w", KeyPath{"net", "blocks", std::int64_t{1}, "w"})));
  EXPECT_THAT(refusal_of([&] {
                run("dcp", "one", {.target = {.rename = {{"^.*$", "same"}}}});
              }).second,
              HasSubstr("both become 'same'"));
  EXPECT_FALSE(fs::exists(at("one")));
}

TEST_F(Convert, AFormatAndReadersThatContradictEachOtherAreRefused) {
  save(nested_state(), at("dcp"), {.compat = Compat::kDcp});
  for (const ConvertOptions& options :
       {ConvertOptions{.target = {.strategy = "torch_dist", .compat = Compat::kDcp}},
        ConvertOptions{.target = {.strategy = "dcp", .compat = Compat::kMegatron}},
        ConvertOptions{.target = {.strategy = "dcp"},
        .optimizer = {.flattened = FlattenedForm::kMegatron}}}) {
    EXPECT_EQ(refusal_of([&] { run("dcp", "out", options); }).first, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(refusal_of([&] {
              run("dcp", "out", {.source = {.strategy = {.name = "torch_dist"}}});
            }).first,
            ErrorCode::kMismatch);
  EXPECT_EQ(run("dcp", "megatron", {.target = {.compat = Compat::kMegatron}}).to, "torch_dist")
      << "readers alone decide the format";
}

TEST_F(Convert, ACopyInTheSameFormatKeepsItsForm) {
  const fs::path flattened = golden("mcore-0.14-flattened-tp2pp2dp2");
  for (const ConvertOptions& options : {ConvertOptions{},
                                        {.target = {.strategy = "torch_dist"}},
                                        {.target = {.ranks = 2}},
                                        {.target = {.compat = Compat::kMegatron}},
                                        {.optimizer = {.flattened = FlattenedForm::kMegatron}}}) {
    const ConvertReport report = convert(flattened, at("copy"), options);
    EXPECT_TRUE(open_checkpoint(at("copy"))->metadata().has_mcore_data);
    EXPECT_THAT(messages_of(report.findings),
                Contains(HasSubstr("the optimizer continues in: Megatron-Core 0.8 to 0.15")));
    EXPECT_EQ(differences(flattened, at("copy")), 0U);
    fs::remove_all(at("copy"));
  }
  for (const char* const format : {"", "torch_dist"}) {
    convert(golden("mcore-head-synthetic"), at("newest"), {.target = {.strategy = format}});
    EXPECT_FALSE(fs::exists(at("newest") / "common.pt")) << format;
    fs::remove_all(at("newest"));
  }
  const ConvertReport old =
      convert(golden("mcore-head-synthetic"), at("old"), {.target = {.compat = Compat::kMegatron}});
  EXPECT_TRUE(fs::exists(at("old") / "common.pt"));
  EXPECT_THAT(messages_of(old.findings),
              Contains(HasSubstr("the model loads in: Megatron-Core 0.6 and newer")));
}

TEST_F(Convert, AFormFromWhichNoReleaseResumesIsRefusedWithTheWaysOn) {
  const fs::path flattened = golden("mcore-0.14-flattened-tp2pp2dp2");
  for (ConvertOptions options : {ConvertOptions{.optimizer = {.flattened = FlattenedForm::kBoxes}},
                                 ConvertOptions{.target = {.compat = Compat::kMegatron019}}}) {
    const auto [code, message] = refusal_of([&] { convert(flattened, at("x"), options); });
    EXPECT_EQ(code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(message, AllOf(HasSubstr("--optimizer fully_reshardable"), HasSubstr("without --"),
                               HasSubstr("--exclude 'optimizer.*'")));
    options.dry_run = true;
    options.source.keys.exclude = {"optimizer.*"};
    EXPECT_NO_THROW(convert(flattened, at("x"), options));
    options.source.keys = {};
    options.optimizer.flattened.reset();
    options.optimizer.sharding = OptimizerSharding::kFullyReshardable;
    EXPECT_THAT(messages_of(convert(flattened, at("x"), options).findings),
                Contains(HasSubstr("the optimizer continues in: Megatron-Core 0.1")));
  }
}

TEST_F(Convert, NobodyContinuesWithAnOptimizerOfWhichPartsAreLeftOut) {
  const auto remarks = [&](const char* source, const ConvertOptions& options) {
    return messages_of(convert(golden(source), at("x"), options).findings);
  };
  constexpr const char* kState = "mcore-0.16-fully-reshardable-tp2pp2dp2";
  ConvertOptions options{.source = {.keys = {.exclude = {"*exp_avg_sq*"}}}, .dry_run = true};
  EXPECT_THAT(remarks(kState, options),
              Contains("the optimizer continues in: nothing, as 13 of its tensors and objects are "
                       "left out"));
  options.target.strategy = "zarr";
  options.source.keys.exclude = {"*_sq.output_layer.weight"};
  EXPECT_THAT(remarks(kState, options), Contains(HasSubstr("nothing, as 1 of its tensors")));
  options = {.source = {.keys = {.exclude = {"optimizer*"}}}, .dry_run = true};
  EXPECT_THAT(remarks(kState, options), Not(Contains(HasSubstr("the optimizer continues"))));
  options.source.keys.exclude = {"rng_state"};
  EXPECT_THAT(remarks(kState, options), Contains(HasSubstr("continues in: Megatron-Core 0.15")));
  options.source.keys.exclude = {"rng_state", "output_layer.weight"};
  EXPECT_THAT(remarks(kState, options), Contains(HasSubstr("continues in: not known")));
  EXPECT_THAT(remarks("mcore-0.16-dp-reshardable-tp2pp1dp2", options),
              Contains("left out of the model, but not of the optimizer's buckets: "
                       "'output_layer.weight'"));
}

TEST_F(Convert, TensorsWithoutElementsGoThroughEveryFormat) {
  save(Value::dict({{"w", Tensor::zeros(DType::kBool, {1})},
                    {"nothing", Tensor::zeros(DType::kFloat32, {0, 3})},
                    {"number", Tensor::zeros(DType::kInt64, {})}}),
       at("dcp"), {.compat = Compat::kDcp});
  for (const char* const format : {"torch_dist", "zarr", "hf", "safetensors"}) {
    run("dcp", format, {.target = {.strategy = format}});
    for (const std::optional<int> ranks : {std::optional<int>(), std::optional<int>(3)}) {
      const std::string back = str_format("{} back {}", format, ranks.value_or(0));
      run(format, back, {.target = {.strategy = "dcp", .ranks = ranks}});
      const auto found =
          diff(*open_checkpoint(at("dcp")), *open_checkpoint(at(back)), {.common = false});
      EXPECT_THAT(found.differences, IsEmpty()) << back;
      EXPECT_EQ(found.tensors_compared, 3U);
    }
  }
}

TEST_F(Convert, OfAnEmptyCheckpointNoPatternIsBlamed) {
  save(Value::dict({}), at("empty"), {.compat = Compat::kDcp});
  for (const auto form :
       {OptimizerSharding::kFullyReshardable, OptimizerSharding::kFullyShardedModelSpace}) {
    const auto [code, message] = refusal_of([&] {
      run("empty", "x", {.target = {.strategy = "torch_dist"}, .optimizer = {.sharding = form}});
    });
    EXPECT_EQ(code, ErrorCode::kUnsupported);
    EXPECT_THAT(message, HasSubstr(str_format("no distributed optimizer that could become {};",
                                              name_of(kOptimizerShardingNames, form))));
  }
}

TEST_F(Convert, ADestinationInsideTheSourceIsRefused) {
  save(nested_state(), at("source"), {.compat = Compat::kDcp});
  for (const char* const inside : {"source/copy", "source/a/copy", "source/x/../copy"}) {
    const auto [code, message] = refusal_of([&] { run("source", inside); });
    EXPECT_EQ(code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(message, HasSubstr("the destination is inside the source"));
  }
  EXPECT_FALSE(fs::exists(at("source/a")));
  run("source", "source_2");  // has a common prefix with the source's name
}

/// Returns the sizes of the optimizer tensors as stored, and their shapes.
std::map<std::string, std::pair<Shape, std::optional<Shape>>> stored_forms(
    const fs::path& checkpoint) {
  std::map<std::string, std::pair<Shape, std::optional<Shape>>> forms;
  const auto reader = open_checkpoint(checkpoint);
  for (const TensorStorageMetadata& tensor : reader->metadata().tensors)
    forms[tensor.key] = {tensor.size, tensor.flattened_shape};
  return forms;
}

TEST_F(Convert, TheOptimizerOfAZarrCheckpointIsFlattenedOnTheGridThatMegatronHas) {
  convert(
      golden("mcore-0.14-zarr-tp2pp1dp2"), at("flattened"),
      {.target = {.strategy = "torch_dist"}, .optimizer = {.flattened = FlattenedForm::kMegatron}});
  EXPECT_EQ(differences(golden("mcore-0.14-zarr-tp2pp1dp2"), at("flattened")), 0U);
  const auto forms = stored_forms(at("flattened"));
  EXPECT_EQ(forms.at("optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight").first,
            (Shape{2, 1, 2, 1536}));
  EXPECT_EQ(forms.at("optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight").second,
            (Shape{2, 32, 96}));
  EXPECT_EQ(forms.at("decoder.layers.mlp.linear_fc2.weight").second, std::nullopt);

  // Boxes convert in the same way, and with another number of ranks.
  convert(golden("mcore-0.12-flattened-tp2pp1dp2"), at("boxes"));
  run("boxes", "again",
      {.target = {.ranks = 3}, .optimizer = {.flattened = FlattenedForm::kMegatron}});
  EXPECT_EQ(differences(at("boxes"), at("again")), 0U);
  EXPECT_EQ(stored_forms(at("again")), stored_forms(golden("mcore-0.12-flattened-tp2pp1dp2")));

  const Refusal error = refusal_of([&] {
    convert(golden("mcore-0.14-bucket-space-zarr-tp2pp1dp2"), at("no"),
            {.target = {.strategy = "torch_dist"},
             .optimizer = {.flattened = FlattenedForm::kMegatron}});
  });
  EXPECT_EQ(error.first, ErrorCode::kUnsupported);
  EXPECT_THAT(error.second, HasSubstr("bucket space"));
}

TEST_F(Convert, RankFoldersAreJoined) {
  convert(golden("legacy-torch-tp2pp2"), at("out"),
          {.target = {.strategy = "torch_dist"},
           .optimizer = {.sharding = OptimizerSharding::kFullyReshardable}});
  const auto reader = open_checkpoint(at("out"));
  EXPECT_NE(reader->metadata().find_tensor("optimizer.state.param.output_layer.weight"), nullptr);
  EXPECT_NE(reader->metadata().find_object("rng_state/shard_1.1_2.2"), nullptr);
  EXPECT_EQ(reader->common_state().at("iteration"), Value(10));
}

TEST_F(Convert, AnOptimizerThatIsLeftOutGetsNoForm) {
  for (const char* const name :
       {"mcore-0.14-flattened-tp2pp2dp2", "mcore-0.16-dp-reshardable-tp2pp1dp2"}) {
    ConvertOptions options{.source = {.keys = {.exclude = {"optimizer*"}}},
                           .optimizer = {.sharding = OptimizerSharding::kFullyReshardable},
                           .dry_run = true};
    const Refusal error = refusal_of([&] { convert(golden(name), at("out"), options); });
    EXPECT_EQ(error.first, ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.second, HasSubstr("(--include, --exclude) leave out the optimizer's state"));
    options.source.keys = {.include = {"optimizer.state.exp_avg.*"}};
    EXPECT_THAT(messages_of(convert(golden(name), at("out"), options).findings),
                Contains(HasSubstr("optimizer's state became")));
  }
}

TEST_F(Convert, BucketsThatCannotBeNamedAfterwardsAreSaid) {
  const auto source = golden("mcore-0.16-dp-reshardable-tp2pp1dp2");
  const auto said = Contains(HasSubstr("cut anew here"));
  EXPECT_THAT(messages_of(convert(source, at("cut"), {.target = {.ranks = 3}}).findings), said);
  EXPECT_THAT(refusal_of([&] {
                convert(at("cut"), at("x"),
                        {.optimizer = {.sharding = OptimizerSharding::kFullyReshardable}});
              }).second,
              HasSubstr("convert --ranks"));
  const ConvertOptions both{.target = {.ranks = 3},
                            .optimizer = {.sharding = OptimizerSharding::kFullyReshardable}};
  EXPECT_THAT(messages_of(convert(source, at("named"), both).findings), Not(said));
}

TEST_F(Convert, TakesNoMoreMemoryThanItIsGiven) {
  constexpr std::uint64_t kMiB = 1 << 20;
  run_ranks(2, [&](Communicator& comm) {  // columns, 32 MiB
    const Tensor columns = Tensor::zeros(DType::kFloat32, {1024, 4096});
    StateDict state =
        Value::dict({{"w", ShardedTensor::from_rank_offsets("w", columns, {{1, comm.rank(), 2}})}});
    save(state, at("columns"), {}, comm);
  });
  run("columns", "source", {.target = {.integrity = true}});
  const auto peak_of = [&](int ranks, std::uint64_t max_memory) {
    const std::uint64_t before = testing::memory_in_use();
    testing::MemoryPeak peak;
    run("source", "target",
        {.target = {.ranks = ranks, .overwrite = true}, .limits = {.memory = max_memory}});
    return peak.bytes() - before;
  };
  constexpr std::uint64_t kOthers = kMiB;  // metadata, open files, threads
  for (const int ranks : {1, 3}) EXPECT_LT(peak_of(ranks, 3 * kMiB), 3 * kMiB + kOthers);
  if (testing::memory_in_use() == 0) return;
  EXPECT_GT(peak_of(1, 64 * kMiB), 8 * kMiB) << "more would be seen";
}

TEST(DescribeReaders, SaysWhoResumesTheOptimizer) {
  const auto optimizer = [](const std::string& name, bool common_file) {
    const auto reader = open_checkpoint(golden(name));
    const std::vector<std::string> sentences = describe_readers(
        {reader->info().conventions, common_file, reader->metadata(), reader->common_state()});
    return sentences.size() == 2 ? sentences[1] : "";
  };
  EXPECT_THAT(optimizer("mcore-0.14-flattened-single", true),
              HasSubstr("Megatron-Core 0.8 to 0.15"));
  EXPECT_THAT(optimizer("mcore-0.14-flattened-single", false),
              HasSubstr("no Megatron-Core release"));
  EXPECT_THAT(optimizer("mcore-0.14-zarr-tp2pp1dp2", true), HasSubstr("Megatron-Core 0.8 to 0.15"));
  EXPECT_THAT(optimizer("mcore-0.16-fully-reshardable-tp2pp2dp2", true),
              HasSubstr("Megatron-Core 0.15 and newer, under any layout"));
  EXPECT_THAT(optimizer("mcore-0.16-fully-reshardable-tp2pp2dp2", false),
              HasSubstr("Megatron-Core 0.19 and newer"));
  EXPECT_THAT(optimizer("mcore-0.16-dp-reshardable-tp2pp1dp2", true),
              HasSubstr("Megatron-Core 0.15 and newer, under the same model parallel sizes"));
  EXPECT_THAT(optimizer("mcore-0.14-dp-zero-tp2pp1dp2", true),
              HasSubstr("under the same model parallel sizes"));
  EXPECT_THAT(optimizer("mcore-0.14-moe-ep2", true), HasSubstr("Megatron-Core 0.8 to 0.15"))
      << "a chain of optimizers";
  EXPECT_EQ(optimizer("mcore-0.14-synthetic", true), "");
}

TEST_F(Convert, ToZarrAndBackKeepsEverything) {
  for (const char* const name : {"mcore-0.14-flattened-tp2pp2dp2", "mcore-head-moe-ep2",
                                 "mcore-0.14-zarr-tp2pp1dp2", "legacy-torch-tp2pp2"}) {
    SCOPED_TRACE(name);
    const ConvertReport report = convert(
        golden(name), at("zarr"),
        {.target = {.strategy = "zarr", .overwrite = true}, .limits = {.io = {.fsync = false}}});
    EXPECT_EQ(differences(golden(name), at("zarr")), 0U);
    ConvertOptions plan{.target = {.strategy = "zarr", .overwrite = true}, .dry_run = true};
    EXPECT_EQ(convert(golden(name), at("zarr"), plan).files, report.files);
    convert(at("zarr"), at("back"),
            {.target = {.strategy = "torch_dist", .ranks = 3, .overwrite = true}});
    EXPECT_EQ(differences(golden(name), at("back")), 0U);
  }
}

TEST_F(Convert, WhatZarrCannotHoldIsRefused) {
  const auto message = [&](const std::string& name, ConvertOptions options) {
    options.target.strategy = "zarr";
    return refusal_of([&] { convert(golden(name), at("zarr"), options); }).second;
  };
  EXPECT_THAT(message("mcore-0.16-synthetic", {}), HasSubstr("folder of its name"));
  EXPECT_THAT(message("dcp-plain-nested", {}), HasSubstr("no elements of float8_e4m3fn"));
  EXPECT_THAT(message("mcore-0.14-flattened-single", {.target = {.ranks = 2}}),
              HasSubstr("not cut anew"));
  StateDict reserved;
  reserved["file"] = ShardedTensor::whole("__0_0.distcp", Tensor::zeros(DType::kFloat32, {2}));
  save(reserved, at("reserved"));
  EXPECT_THAT(refusal_of([&] {
                convert(at("reserved"), at("zarr"), {.target = {.strategy = "zarr"}});
              }).second,
              HasSubstr("folder of its name"));
  EXPECT_THAT(message("mcore-0.14-flattened-single",
                      {.target = {.rename = {{"(.*linear_qkv)[.]_extra_state", "\\1.weight"}}},
                       .dry_run = true}),
              HasSubstr("a tensor and objects of this key in one folder"))
      << "before anything is written";
  EXPECT_FALSE(fs::exists(at("zarr")));
  convert(golden("dcp-plain-nested"), at("zarr"),
          {.source = {.keys = {.exclude = {"fp8*"}}}, .target = {.strategy = "zarr"}});
  EXPECT_EQ(numel(open_checkpoint(at("zarr"))->metadata().find_tensor("empty")->size), 0);
}

}  // namespace
}  // namespace dckpt::convert_test
