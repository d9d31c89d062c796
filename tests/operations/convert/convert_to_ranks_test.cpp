// Conversions to Megatron's rank folders (format torch).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/megatron/run_args.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "strategies/legacy_torch/legacy_reader.h"
#include "strategies/storage/posix.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::convert_to_ranks_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::error_of;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Returns "{tensor_model_parallel_size: 2, …}" for models built without Transformer Engine.
OwnOptions options(const std::string& sizes) {
  return OwnOptions::from_yaml("{" + sizes + (sizes.empty() ? "" : ", ") +
                               "transformer_impl: local}");
}

std::string sizes(int tensor, int pipeline, int expert = 1, int chunks = 1) {
  std::string text = "tensor_model_parallel_size: " + std::to_string(tensor) +
                     ", pipeline_model_parallel_size: " + std::to_string(pipeline) +
                     ", expert_model_parallel_size: " + std::to_string(expert);
  if (chunks > 1) text += ", virtual_pipeline_model_parallel_size: " + std::to_string(chunks);
  return text;
}

class ConvertToRanks : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return directory_ / name; }

  ConvertReport to_ranks(const fs::path& source, const std::string& sizes,
                         ConvertOptions more = {}) const {
    more.target.strategy = "torch";
    more.target.options = options(sizes);
    more.target.overwrite = true;
    more.limits.io.fsync = false;
    if (more.source.keys.exclude.empty() && holds_optimizer(source))
      more.source.keys.exclude = {"optimizer*"};
    return convert(source, at("ranks"), more);
  }

  std::string refusal(const fs::path& source, const std::string& sizes,
                      const ConvertOptions& more = {}) const {
    return error_of([&] { to_ranks(source, sizes, more); }).message();
  }

  static bool holds_optimizer(const fs::path& source) {
    const auto reader = open_checkpoint(source);
    const auto of_optimizer = [](const auto& entry) { return entry.key.starts_with("optimizer"); };
    return std::ranges::any_of(reader->metadata().tensors, of_optimizer) ||
           std::ranges::any_of(reader->metadata().objects, of_optimizer);
  }

  std::vector<std::string> folders() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(at("ranks")))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  /// Saves a GPT of two layers that `change` has modified.
  void save_model(const std::function<void(StateDict&)>& change) const {
    StateDict state;
    const auto add = [&](const std::string& key, Shape shape) {
      state[Value(key)] = ShardedTensor::whole(key, arange(std::move(shape)));
    };
    add("embedding.word_embeddings.weight", {8, 4});
    add("decoder.layers.self_attention.linear_qkv.weight", {2, 12, 4});
    add("decoder.layers.mlp.linear_fc1.weight", {2, 16, 4});
    add("decoder.layers.mlp.linear_fc2.weight", {2, 4, 8});
    add("decoder.final_layernorm.weight", {4});
    state["args"] = Value::dict({{"num_attention_heads", 4}, {"num_layers", 2}});
    state["iteration"] = 3;
    change(state);
    save(state, at("model"), {.io = {.fsync = false}});
  }

  TempDir directory_;
};

TEST_F(ConvertToRanks, EachFileIsTheOneThatMegatronSaved) {
  for (const char* const name :
       {"legacy-torch-tp2pp2", "legacy-torch-vpp-tp1pp2", "legacy-torch-moe-pp2ep2"}) {
    SCOPED_TRACE(name);
    to_ranks(golden(name), "");
    const auto saved = open_legacy_torch(posix_storage(golden(name) / "iter_0000010"));
    const auto written = open_legacy_torch(posix_storage(at("ranks")));
    std::map<std::string, Value> contents;
    for (std::size_t i = 0; i < written->metadata().tensors.size(); ++i)
      contents.emplace(written->metadata().tensors[i].key, testing::describe_content(*written, i));
    for (std::size_t i = 0; i < saved->metadata().tensors.size(); ++i) {
      const std::string& key = saved->metadata().tensors[i].key;
      if (key.find("distrib_optim") != std::string::npos) continue;
      EXPECT_EQ(contents[key], testing::describe_content(*saved, i)) << key;
      contents.erase(key);
    }
    EXPECT_THAT(contents, IsEmpty());

    const Value states = saved->common_state();
    const Value own_states = written->common_state();
    for (const auto& [file, state] : states.as_dict()) {
      if (file.as_str().ends_with("distrib_optim.pt")) continue;
      const Value& own = own_states.at(file);
      EXPECT_EQ(*run_args(own), *run_args(state)) << file.as_str();
      for (const auto& [entry, value] : state.as_dict()) {
        if (entry == Value("optimizer")) continue;
        ASSERT_NE(own.find(entry), nullptr) << entry.as_str();
        const auto* const extra = mapping_items(value);
        if (!entry.as_str().starts_with("model"))
          EXPECT_EQ(own.at(entry), value) << entry.as_str();
        else
          for (const auto& [path, module] : *extra) EXPECT_EQ(own.at(entry).at(path), module);
      }
    }
  }
}

TEST_F(ConvertToRanks, TheWayThereAndBackIsEmptyInEveryLayout) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"mcore-0.16-fully-reshardable-tp2pp2dp2", {sizes(1, 1), sizes(2, 2), sizes(4, 1)}},
      {"mcore-0.14-flattened-tied-tp2pp1dp2", {sizes(2, 2), sizes(1, 1)}},
      {"mcore-0.14-zarr-tp2pp1dp2", {sizes(1, 2)}},
      {"mcore-0.14-moe-ep2", {sizes(2, 2, 2), sizes(1, 1, 4)}},
      {"mcore-head-moe-ep2", {sizes(1, 2)}},
      {"legacy-torch-vpp-tp1pp2", {sizes(2, 2), sizes(1, 2, 1, 2)}},
  };
  for (const auto& [name, layouts] : cases) {
    const Value expected = testing::golden_expected(name).at("tensors");
    for (const std::string& layout : layouts) {
      SCOPED_TRACE(name + " " + layout);
      to_ranks(golden(name), layout);
      ConvertOptions back{.target = {.strategy = "torch_dist", .overwrite = true},
                          .limits = {.io = {.fsync = false}}};
      convert(at("ranks"), at("back"), back);
      if (holds_optimizer(golden(name))) back.source.keys.exclude = {"optimizer*"};
      convert(golden(name), at("model"), back);
      const auto whole = open_checkpoint(at("model"));
      const auto after = open_checkpoint(at("back"));
      for (const Difference& difference : diff(*whole, *after, {.common = false}).differences)
        EXPECT_TRUE(difference.key.starts_with("rng_state")) << difference.key;
      for (std::size_t i = 0; i < after->metadata().tensors.size(); ++i) {
        const std::string& key = after->metadata().tensors[i].key;
        EXPECT_EQ(testing::describe_content(*after, i).at("sha256"), expected.at(key).at("sha256"))
            << key;
      }
      const Value before = whole->common_state();
      const Value common = after->common_state();
      for (const auto& [key, value] : before.as_dict()) {
        const bool of_layout =
            key == Value("args") || key == Value("optimizer") || key == Value("content_metadata");
        EXPECT_TRUE(of_layout || common.at(key) == value) << key.as_str();
      }
    }
  }
}

TEST_F(ConvertToRanks, TheModelOfEveryMegatronIsTheSame) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(DCKPT_TEST_DATA) / "checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("mcore-") || name.ends_with("-synthetic")) continue;
    if (!fs::is_directory(golden(name))) continue;
    SCOPED_TRACE(name);
    to_ranks(golden(name), sizes(2, 1));
    for (const Difference& difference :
         diff(*open_checkpoint(golden(name)), *open_checkpoint(at("ranks")), {.common = false})
             .differences)
      EXPECT_THAT(difference.key, ::testing::AnyOf(::testing::StartsWith("optimizer"),
                                                   ::testing::StartsWith("rng_state")));
    ++count;
  }
  EXPECT_GT(count, 20U);
}

TEST_F(ConvertToRanks, WhatLiesBesideTheSourceIsNamed) {
  save_model([](StateDict&) {});
  std::ofstream(at("model") / "run_config.yaml") << "a: 1";
  EXPECT_THAT(messages_of(to_ranks(at("model"), "").findings),
              Contains(HasSubstr("'run_config.yaml'")));
}

TEST_F(ConvertToRanks, StatesOfGeneratorsStayWithTheirRanks) {
  const fs::path source = golden("mcore-0.16-fully-reshardable-tp2pp2dp2");
  EXPECT_THAT(messages_of(to_ranks(source, "").findings),
              Not(Contains(HasSubstr("--no-load-rng"))));
  EXPECT_NE(open_checkpoint(at("ranks"))->metadata().find_object("rng_state/shard_1.0_2.2"),
            nullptr);
  EXPECT_THAT(messages_of(to_ranks(source, sizes(2, 1)).findings),
              Contains(HasSubstr("--no-load-rng")));
  EXPECT_EQ(open_checkpoint(at("ranks"))->metadata().find_object("rng_state/shard_0.0_1.2"),
            nullptr);
}

TEST_F(ConvertToRanks, ArgsSayTheNewLayoutAndFoldersHaveItsNames) {
  const auto ranks = [&] {
    std::vector<std::int64_t> numbers;
    const Value states = open_legacy_torch(posix_storage(at("ranks")))->common_state();
    for (const auto& [file, state] : states.as_dict())
      numbers.push_back(run_arg(run_args(state), "rank").value());
    return numbers;
  };
  to_ranks(golden("mcore-0.14-moe-ep2"), sizes(1, 1, 2));
  EXPECT_THAT(folders(), ElementsAre("mp_rank_00_000", "mp_rank_00_001"));
  EXPECT_THAT(ranks(), ElementsAre(0, 1));
  to_ranks(golden("mcore-0.14-moe-ep2"), sizes(2, 2, 1));
  EXPECT_THAT(ranks(), ElementsAre(0, 2, 1, 3)) << "mp_rank_00_000, mp_rank_00_001, …";
  const Value common = open_checkpoint(at("ranks"))->common_state();
  const Value& args = *run_args(common);
  EXPECT_EQ(args.at("tensor_model_parallel_size"), Value(2));
  EXPECT_EQ(args.at("expert_model_parallel_size"), Value(1));
  EXPECT_EQ(args.at("data_parallel_size"), Value(1)) << "there are four ranks in all";
  EXPECT_EQ(args.at("ckpt_format"), Value("torch"));
}

/// Megatron-Core cuts the rows of a query group evenly if several ranks share it.
TEST_F(ConvertToRanks, MoreRanksThanQueryGroupsShareThem) {
  const fs::path source = fs::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/mcore";  // 4 heads, 2 groups
  to_ranks(source, sizes(4, 1));
  EXPECT_THAT(folders(), ElementsAre("mp_rank_00", "mp_rank_01", "mp_rank_02", "mp_rank_03"));
  const auto ranks = open_checkpoint(at("ranks"));
  const auto* const qkv =
      ranks->metadata().find_tensor("decoder.layers.self_attention.linear_qkv.weight");
  ASSERT_NE(qkv, nullptr);
  std::vector<std::int64_t> first;  // row of each rank's part, of 96
  for (std::size_t i = 0; i < qkv->chunks.size(); ++i) {
    const Box part = qkv->chunks[i];
    EXPECT_EQ(part.sizes[1], 24);
    first.push_back(part.offsets[1]);
  }
  EXPECT_THAT(first, ElementsAre(0, 0, 24, 24, 48, 48, 72, 72)) << "two layers";
  convert(at("ranks"), at("back"), {.target = {.strategy = "torch_dist"}});
  EXPECT_TRUE(diff(*open_checkpoint(at("back")), *ranks, {.common = false}).differences.empty());
}

TEST_F(ConvertToRanks, LayoutsThatDoNotDivideTheModelAreRefused) {
  const fs::path source = golden("mcore-0.16-fully-reshardable-tp2pp2dp2");
  EXPECT_THAT(refusal(source, sizes(8, 1)),
              HasSubstr("num_query_groups 4 cannot be divided evenly"));
  EXPECT_THAT(refusal(source, sizes(1, 4)), HasSubstr("2 layers cannot be divided evenly"));
  EXPECT_THAT(refusal(source, sizes(1, 2, 1, 2)), HasSubstr("of 2 chunks"));
  EXPECT_THAT(refusal(source, sizes(1, 1, 1, 2)), HasSubstr("no chunks"));
  EXPECT_THAT(refusal(source, sizes(1, 1, 2)), HasSubstr("0 experts"));
  EXPECT_THAT(refusal(golden("mcore-0.14-moe-ep2"), sizes(1, 1, 3)), HasSubstr("4 experts"));
  save_model([](StateDict& state) {
    const std::string key = "embedding.word_embeddings.weight";
    state[Value(key)] = ShardedTensor::whole(key, arange({7, 4}));
  });
  EXPECT_THAT(refusal(at("model"), sizes(2, 1)), HasSubstr("(7, 4) cannot be divided evenly"));
  EXPECT_FALSE(fs::exists(at("ranks")));
}

TEST_F(ConvertToRanks, WhatRankFoldersCannotHoldIsRefusedWithWhatToDo) {
  const fs::path source = golden("mcore-0.16-fully-reshardable-tp2pp2dp2");
  const ConvertOptions all{.source = {.keys = {.exclude = {"rng_state*"}}}};
  EXPECT_THAT(refusal(source, sizes(2, 2), all), HasSubstr("--exclude 'optimizer*'"));
  EXPECT_THAT(
      error_of([&] {
        convert(source, at("ranks"),
                {.source = {.keys = {.exclude = {"optimizer*"}}}, .target = {.strategy = "torch"}});
      }).message(),
      HasSubstr("--transformer-impl"));
  save_model([](StateDict& state) {
    state["mtp"] = ShardedTensor::whole("mtp.weight", arange({4, 4}));
  });
  EXPECT_THAT(refusal(at("model"), sizes(2, 1)), HasSubstr("is not known"));
  EXPECT_THAT(refusal(at("model"), sizes(1, 2)), HasSubstr("which of 2 pipeline stages"));
  EXPECT_EQ(to_ranks(at("model"), sizes(1, 1)).tensors, 9U) << "one stage has everything";
  EXPECT_THAT(refusal(source, sizes(2, 2), {.target = {.ranks = 3}}),
              HasSubstr("leave out the number"));
  const ConvertOptions half{.source = {.keys = {.exclude = {"optimizer*", "*linear_fc2.weight"}}}};
  EXPECT_THAT(refusal(source, sizes(2, 1), half), HasSubstr("whether there is a gate in it"));
  EXPECT_THAT(refusal(golden("dcp-plain-nested"), ""), HasSubstr("--map"));
}

TEST_F(ConvertToRanks, NumbersOfACheckpointAreNotTrusted) {
  const auto with = [&](Dict args, Shape norm) {
    fs::remove_all(at("model"));
    save_model([&](StateDict& state) {
      state["args"] = args;
      const std::string key = "decoder.layers.mlp.linear_fc1.layer_norm_weight";
      state["norm"] = ShardedTensor::whole(key, Tensor::zeros(DType::kFloat32, norm));
    });
    return refusal(at("model"), "", {.source = {.keys = {.include = {"*layer_norm_weight"}}}});
  };
  const std::int64_t many = std::int64_t{1} << 40;
  EXPECT_THAT(with({{"tensor_model_parallel_size", many}}, {2, 4}), HasSubstr("from 1 to"));
  EXPECT_THAT(with({{"pipeline_model_parallel_size", 0}}, {2, 4}), HasSubstr("from 1 to"));
  EXPECT_THAT(
      with({{"tensor_model_parallel_size", 4096}, {"pipeline_model_parallel_size", 4096}}, {2, 4}),
      HasSubstr("rank folders"));
  EXPECT_THAT(with({}, {many, 0}), HasSubstr("at most"));
  EXPECT_THAT(with({{"tensor_model_parallel_size", 1 << 20}}, {1'000, 0}), HasSubstr("more than"));
}

TEST_F(ConvertToRanks, StagesAreEvenWhateverTheRunHad) {
  save_model([](StateDict& state) {
    state["args"].mutable_dict().set("decoder_first_pipeline_num_layers", 3);
    state["args"].mutable_dict().set("account_for_loss_in_pipeline_split", false);
  });
  EXPECT_THAT(messages_of(to_ranks(at("model"), sizes(1, 2)).findings),
              Contains(HasSubstr("without 'decoder_first_pipeline_num_layers'")));
  const Value common = open_checkpoint(at("ranks"))->common_state();
  EXPECT_TRUE(common.at("args").at("decoder_first_pipeline_num_layers").is_none());
  EXPECT_EQ(common.at("args").at("account_for_loss_in_pipeline_split"), Value(false));
}

TEST_F(ConvertToRanks, WithoutArgsTheLayoutIsGiven) {
  save_model([](StateDict& state) { state.mutable_dict().erase("args"); });
  EXPECT_THAT(messages_of(to_ranks(at("model"), sizes(2, 2)).findings),
              Contains(HasSubstr("no args")));
  EXPECT_EQ(folders().size(), 4U);
  EXPECT_EQ(open_checkpoint(at("ranks"))->common_state().at("checkpoint_version"), Value(3.0));
}

TEST_F(ConvertToRanks, ArgsSayWhatModulesAreCalled) {
  save_model([](StateDict& state) {
    state["args"] = Value::dict({{"num_attention_heads", 4},
                                 {"num_layers", 2},
                                 {"transformer_impl", "transformer_engine"},
                                 {"moe_grouped_gemm", true}});
    const std::string experts = "decoder.layers.mlp.experts.experts.linear_fc";
    const std::string norm = "decoder.layers.self_attention.linear_qkv.layer_norm_weight";
    state["fc1"] = ShardedTensor::whole(experts + "1.weight", arange({2, 4, 16, 4}));
    state["fc2"] = ShardedTensor::whole(experts + "2.weight", arange({2, 4, 4, 8}));
    state["norm"] = ShardedTensor::whole(norm, arange({2, 4}));
    for (std::int64_t cell = 0; cell < 8; ++cell)
      state[Value(cell)] = ShardedObject{.key = experts + "1._extra_state",
                                         .data = cell,
                                         .global_shape = {2, 4},
                                         .global_offset = {cell / 4, cell % 4}};
  });
  ConvertOptions to{.source = {.keys = {.exclude = {"*.mlp.linear_fc*"}}},
                    .target = {.strategy = "torch"}};
  to.target.options = options(sizes(2, 1, 2));
  to.target.options.remove("transformer_impl");
  convert(at("model"), at("ranks"), to);
  const auto ranks = open_legacy_torch(posix_storage(at("ranks")));
  const std::string layer = "mp_rank_01_001/model.decoder.layers.1.";
  EXPECT_NE(ranks->metadata().find_tensor(layer + "mlp.experts.linear_fc1.weight1"), nullptr);
  EXPECT_NE(ranks->metadata().find_tensor(layer + "self_attention.linear_qkv.layer_norm_weight"),
            nullptr);
  const Value states = ranks->common_state();
  const Value& model = states.at("mp_rank_01_001/model_optim_rng.pt").at("model");
  EXPECT_EQ(model.at("decoder.layers.1.mlp.experts.linear_fc1._extra_state"), Value(6));
  EXPECT_EQ(model.at("decoder.layers.1.mlp.experts.linear_fc1._extra_state1"), Value(7));

  const auto whole = open_checkpoint(at("model"));
  const auto back = open_checkpoint(at("ranks"));
  EXPECT_THAT(diff(*whole, *back, {.keys = to.source.keys, .common = false}).differences,
              IsEmpty());
}

TEST_F(ConvertToRanks, ASaveDoesNotMakeThem) {
  const auto error = error_of([&] {
    save(Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}}), at("ranks"),
         {.strategy = {.name = "torch"}});
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("dckpt convert --to torch"));
}

TEST_F(ConvertToRanks, ADryRunTellsFiles) {
  const fs::path source = golden("mcore-0.16-fully-reshardable-tp2pp2dp2");
  const ConvertReport expected = to_ranks(source, sizes(2, 2), {.dry_run = true});
  EXPECT_FALSE(fs::exists(at("ranks")));
  EXPECT_EQ(to_ranks(source, sizes(2, 2)).files, expected.files);
}

}  // namespace
}  // namespace dckpt::convert_to_ranks_test
