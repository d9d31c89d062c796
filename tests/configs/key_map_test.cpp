#include "configs/maps/key_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "configs/maps/key_pattern.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::key_map_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

std::vector<std::string> problems_of(const std::string& yaml) {
  std::vector<std::string> lines;
  for (const ConfigProblem& problem : check_key_map(yaml).problems)
    lines.push_back(to_string(problem, "m.yaml"));
  return lines;
}

TEST(KeyPattern, TakesWholePartsThatAreDecimals) {
  const KeyPattern pattern("model.layers.{l}.mlp.experts.{e}.w1.weight");
  EXPECT_THAT(pattern.numbers(), ElementsAre("l", "e"));
  EXPECT_THAT(pattern.match("model.layers.31.mlp.experts.7.w1.weight"),
              Optional(ElementsAre(31, 7)));
  EXPECT_EQ(pattern.key(std::vector<std::int64_t>{31, 7}),
            "model.layers.31.mlp.experts.7.w1.weight");
  for (const char* const other :
       {"model.layers.031.mlp.experts.7.w1.weight", "model.layers.x.mlp.experts.7.w1.weight",
        "model.layers.1.mlp.experts.7.w1", "model.layers.1.mlp.experts.7.w1.weight.x", "",
        "model.layers..mlp.experts.7.w1.weight",
        "model.layers.99999999999999999999.mlp.experts.7.w1.weight"})
    EXPECT_FALSE(pattern.match(other)) << other;
  EXPECT_EQ(pattern.without("l").text(), "model.layers.mlp.experts.{e}.w1.weight");
  EXPECT_EQ(pattern.skeleton(), skeleton_of("model.layers.0.mlp.experts.12.w1.weight"));
}

TEST(KeyMap, RowsOfTheExtendedMapCanBeTakenAway) {
  const auto keys_of = [](const std::string& yaml) {
    std::vector<std::string> keys;
    for (const MapRow& row : KeyMap::from_text(yaml).tensors) keys.push_back(row.megatron);
    return keys;
  };
  const std::string row =
      "tensors:\n  - {megatron: \"decoder.layers.{l}.mlp.linear_fc1.weight\", hf: \"{l}.up\"}\n";
  const std::string without = "without: [\"*.bias\", \"*.linear_fc1.*\"]\n";
  const std::string start = "version: 1\nextends: llama\nfamily: mine\n";
  for (const std::string& yaml : {start + without + row, start + row + without}) {
    EXPECT_THAT(keys_of(yaml), Contains("decoder.layers.{l}.mlp.linear_fc1.weight")) << yaml;
    EXPECT_THAT(keys_of(yaml), Not(Contains(HasSubstr("bias"))));
    EXPECT_THAT(keys_of(yaml),
                Not(Contains("decoder.layers.{l}.mlp.linear_fc1.layer_norm_weight")));
  }
  EXPECT_THAT(
      problems_of(start + "without: [\"*.linear_fc3.*\"]\n" + row),
      ElementsAre(HasSubstr("without: the extended map has no row with a key on the left like "
                            "'*.linear_fc3.*'")));
}

TEST(KeyMap, ARefusalOfTheExtendedMapCanBeTakenAway) {
  const auto refused = [](const std::string& more) {
    std::vector<std::string> reasons;
    for (const MapRefusal& refusal :
         KeyMap::from_text("version: 1\nextends: gpt2\nfamily: mine\n" + more).refuse)
      reasons.push_back(refusal.only_if + ": " + refusal.because);
    return reasons;
  };
  const std::string without = "without: [apply_layernorm_1p]\n";
  const std::string own = "refuse:\n  - {if: apply_layernorm_1p, because: mine}\n";
  EXPECT_THAT(refused(""), ElementsAre(HasSubstr("lack the 1")));
  EXPECT_THAT(refused(without), IsEmpty());
  EXPECT_THAT(refused(without + own), ElementsAre("apply_layernorm_1p: mine"));
  EXPECT_THAT(refused(own + without), ElementsAre("apply_layernorm_1p: mine"));
  EXPECT_THAT(problems_of("version: 1\nextends: gpt2\nfamily: mine\nwithout: [tied]\n"),
              ElementsAre(HasSubstr("does not 'refuse' models by a number of this name")));
}

constexpr const char* kOfATrainer = R"(version: 1
family: tiny
left: Tiny
layout: non-homogeneous
extra_state: true
tensors:
  - {left: "h.{l}.up", hf: "layers.{l}.up.weight", cast: {left: float32}}
  - {left: ["h.{l}.q", "h.{l}.k"], hf: "layers.{l}.qk.weight", transform: {split_rows: 2}}
ignore:
  left: ["step"]
  hf: []
)";

TEST(KeyMap, TheLeftSideMayBeATrainers) {
  const KeyMap map = KeyMap::from_text(kOfATrainer);
  EXPECT_EQ(map.left_name(), "Tiny");
  EXPECT_EQ(map.layout, MegatronLayout::kNonHomogeneous);
  EXPECT_EQ(map.tensors.at(1).more, std::vector<std::string>{"h.{l}.k"});
  EXPECT_EQ(map.tensors.at(0).cast.of_left(), DType::kFloat32);
  EXPECT_THAT(to_yaml(map), Not(HasSubstr("megatron")));
  EXPECT_EQ(KeyMap::from_text(to_yaml(map)), map);
}

TEST(KeyMap, ModulesOfATrainerHaveExtraStatesOnRequest) {
  const auto has = [](const std::string& map, const std::string& row) {
    const KeyMap made = KeyMap::from_text("version: 1\nfamily: m\n" + map + "tensors:\n  - {" +
                                          row + ", hf: \"{l}.w\"}\n");
    return made.has_extra_state(made.tensors.front());
  };
  const std::string of_trainer = "left: \"h.{l}.weight\"";
  EXPECT_TRUE(has("", "megatron: \"h.{l}.weight\""));
  EXPECT_FALSE(has("extra_state: false\n", "megatron: \"h.{l}.weight\""));
  EXPECT_FALSE(has("left: Tiny\n", of_trainer));
  EXPECT_TRUE(has("left: Tiny\n", of_trainer + ", extra_state: true"));
  EXPECT_TRUE(has("left: Tiny\nextra_state: true\n", of_trainer));
}

TEST(KeyMap, WordsForTheLeftSideAreThoseOfTheMap) {
  const std::string start = "version: 1\nfamily: m\n";
  const auto row = [](const std::string& fields) { return "tensors:\n  - {" + fields + "}\n"; };
  EXPECT_THAT(problems_of(start + row("left: a, hf: b")),
              ElementsAre(HasSubstr("a: 'left' is for maps that name their left side")));
  EXPECT_THAT(problems_of(start + "left: Tiny\n" + row("megatron: a, hf: b")),
              ElementsAre(HasSubstr("a: the left side of this map is 'Tiny', so write 'left'")));
  EXPECT_THAT(problems_of(start + "extends: gpt2\nleft: Tiny\n" + row("left: a, hf: b")),
              Contains(HasSubstr("'without' takes away rows of an extended map")));
  EXPECT_THAT(problems_of(start + "left: Tiny\n" + row("left: a, megatron: b, hf: c")),
              ElementsAre(HasSubstr("has both")));
  EXPECT_THAT(problems_of(start + "left: Tiny\n" + row("hf: b")),
              ElementsAre(HasSubstr("'megatron' is missing")));
  EXPECT_THAT(
      problems_of(start + "left: Tiny\n" + row("left: a, hf: b, cast: {megatron: float32}")),
      ElementsAre(HasSubstr("write 'left'")));
  EXPECT_THAT(problems_of(start + "left: Tiny\nignore: {megatron: [x]}\n" + row("left: a, hf: b")),
              ElementsAre(HasSubstr("ignore: the left side")));
  EXPECT_THAT(problems_of(start + "left: Tiny\n" + row("left: a, local: c, hf: b")),
              ElementsAre(HasSubstr("'local' is for Megatron's keys")));
}

TEST(KeyMap, IgnoredKeysAndExtraStatesOfTheExtendedMapCanBeTakenAway) {
  const std::string module = "decoder.layers.{l}.self_attention.core_attention";
  const KeyMap map =
      KeyMap::from_text("version: 1\nextends: llama\nfamily: mine\nwithout: [\"*.k_scale\", \"" +
                        module + "\"]\nignore: {hf: [\"*.v_scale\", \"mtp.*\"]}\ntensors: []\n");
  EXPECT_THAT(map.ignore_hf, Not(Contains("*.k_scale")));
  EXPECT_THAT(map.ignore_hf, Contains("mtp.*"));
  EXPECT_EQ(std::ranges::count(map.ignore_hf, "*.v_scale"), 1);
  EXPECT_THAT(map.extra_states, Not(Contains(module)));
}

TEST(KeyPattern, KeysMayHoldMultiplesOfANumber) {
  const KeyPattern pattern("decoder.layers.{2l+1}.mlp.experts.{e}.w");
  EXPECT_THAT(pattern.numbers(), ElementsAre("l", "e"));
  EXPECT_TRUE(pattern.has_steps());
  EXPECT_FALSE(pattern.counts_on());
  EXPECT_THAT(pattern.match("decoder.layers.7.mlp.experts.2.w"), Optional(ElementsAre(3, 2)));
  EXPECT_FALSE(pattern.match("decoder.layers.6.mlp.experts.2.w"));
  EXPECT_FALSE(pattern.match("decoder.layers.0.mlp.experts.2.w"));
  EXPECT_EQ(pattern.key(std::vector<std::int64_t>{3, 2}), "decoder.layers.7.mlp.experts.2.w");
  EXPECT_EQ(pattern.text(), "decoder.layers.{2l+1}.mlp.experts.{e}.w");
  EXPECT_EQ(pattern.without_steps(), "decoder.layers.{l}.mlp.experts.{e}.w");
  EXPECT_EQ(pattern.without("l").text(), "decoder.layers.mlp.experts.{e}.w");
  EXPECT_THAT(KeyPattern("a.{3l}").match("a.6"), Optional(ElementsAre(2)));
  for (const char* const other : {"a.{1l}", "a.{2}", "a.{2e}", "a.{2l+2}", "a.{2l+}", "a.{2l+m}",
                                  "a.{l+1}", "a.{99l}", "a.{0l}"})
    EXPECT_TRUE(KeyPattern::problem_of(other)) << other;
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {}
tensors:
  - {megatron: "a.{2l}.w", hf: "b.{2l}.w"}
)"),
              Contains(HasSubstr("'{2l}' and '{2l+1}' are for keys of Megatron")));
}

TEST(KeyPattern, OverlapsWhereAKeyMayMatchBoth) {
  struct Case {
    std::string a, b;
    bool overlap;
  };
  for (const auto& [a, b, overlap] : std::vector<Case>{
           {"a.{l}.norm", "a.{l}.norm", true},
           {"a.{l}.norm", "a.{i}.norm", true},
           {"a.{l}.norm.0", "a.{l}.norm.1", false},
           {"a.{l}.norm.0", "a.{l}.norm.{e}", true},
           {"a.{l}.norm.0", "a.0.norm.{e}", true},
           {"a.{l}.norm.0", "a.0.norm.1", false},
           {"a.{l}.norm", "a.7.norm", true},
           {"a.{2l}.norm", "a.7.norm", false},
           {"a.{2l+1}.norm", "a.7.norm", true},
           {"a.{2l}.norm", "a.{2l+1}.norm", false},
           {"a.{2l}.norm", "a.{3l+1}.norm", true},
           {"a.{2l}.norm", "a.{4l+1}.norm", false},
           {"a.{2l}.norm", "a.{l}.norm", true},
           {"a.{l}.norm", "a.{l+m}.norm", false},
           {"a.{l}.norm", "a.{l}.norm.0", false},
           {"a.0", "a.00", false},
           {"a.b", "a.c", false},
       }) {
    EXPECT_EQ(KeyPattern(a).overlaps(KeyPattern(b)), overlap) << a << " and " << b;
    EXPECT_EQ(KeyPattern(b).overlaps(KeyPattern(a)), overlap) << b << " and " << a;
    if (overlap) {
      EXPECT_EQ(KeyPattern(a).skeleton(), KeyPattern(b).skeleton());
    }
  }
}

TEST(KeyPattern, NumbersMayCountOnBehindOthers) {
  const KeyPattern pattern("model.layers.{l+m}.enorm.weight");
  EXPECT_THAT(pattern.numbers(), ElementsAre("m"));
  EXPECT_EQ(pattern.text(), "model.layers.{l+m}.enorm.weight");
  EXPECT_FALSE(pattern.match("model.layers.61.enorm.weight")) << "nobody says how many layers";
  const KeyPattern behind = pattern.behind("l", 61);
  EXPECT_THAT(behind.match("model.layers.62.enorm.weight"), Optional(ElementsAre(1)));
  EXPECT_FALSE(behind.match("model.layers.60.enorm.weight"));
  EXPECT_EQ(behind.key(std::vector<std::int64_t>{1}), "model.layers.62.enorm.weight");
  for (const char* const other :
       {"a.{l+}", "a.{+m}", "a.{e+m}", "a.{l+l}", "a.{l+m+n}", "a.{m}.{l+m}"})
    EXPECT_TRUE(KeyPattern::problem_of(other)) << other;
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {}
tensors:
  - {megatron: "mtp.{m}.a", hf: "a.{l+m}"}
  - {megatron: "mtp.{l+m}.b", hf: "b.{m}"}
)"),
              ElementsAre("m.yaml:6:5: tensors[1]: '{l+m}' is for keys in Hugging Face files"));
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {}
tensors:
  - {megatron: "mtp.{m}.a", hf: "a.{l+m}"}
)"),
              ElementsAre(HasSubstr("m.yaml:5:5: mtp.{m}.a: there is no number 'num_layers'")));
}

TEST(KeyMap, EveryShippedMapIsSoundAndPrintsAsItself) {
  EXPECT_EQ(shipped_maps().size(), 33);
  for (const ShippedPolicy& shipped : shipped_maps()) {
    const KeyMap map = KeyMap::find(std::string(shipped.name));
    EXPECT_EQ(map.family, shipped.name);
    EXPECT_EQ(map.architectures.empty(), map.family == "megatron");
    EXPECT_EQ(KeyMap::from_text(to_yaml(map)), map) << shipped.name;
  }
}

TEST(KeyMap, FoldersOfModelsDoNotHideShippedMaps) {
  const TempDir folder;
  std::filesystem::create_directory(folder / "llama");
  std::filesystem::create_directory(folder / "qwen2");
  const PolicyText found = find_key_map("qwen2", folder / "");
  EXPECT_FALSE(found.folder);  // so its parent "llama" is the shipped one
  EXPECT_TRUE(check_key_map(found.yaml, found.folder).problems.empty());
}

TEST(KeyMap, ARowReplacesTheOneThatItExtends) {
  const KeyMap llama = KeyMap::find("llama");
  const KeyMap map = KeyMap::from_text(R"(version: 1
extends: llama
family: mine
tensors:
  - {megatron: decoder.final_layernorm.weight, hf: model.last_norm.weight}
  - {megatron: "decoder.layers.{l}.extra", hf: "model.layers.{l}.extra", transform: transpose}
)");
  EXPECT_EQ(map.tensors.size(), llama.tensors.size() + 1);
  EXPECT_EQ(map.numbers, llama.numbers);
  EXPECT_THAT(map.tensors[map.tensors.size() - 2].hf.keys, ElementsAre("model.last_norm.weight"));
}

TEST(KeyMap, MistakesHaveTheirPlace) {
  EXPECT_THAT(
      problems_of(R"(version: 1
family: mine
numbers:
  heads: {args: num_attention_heads, otherwise: 3}
  size: {else: a - b}
tensors:
  - {megatron: a.weight, hf: [b, c]}
  - {megatron: "a.{l}.weight", hf: "b.{k}.weight", transform: transpos}
  - {megatron: "a.x{l}", hf: b}
  - {hf: b}
)"),
      ElementsAre(
          "m.yaml:4:38: numbers.heads has no field 'otherwise'; it has args, args_if, args_not, "
          "hf, words, part_of and else",
          "m.yaml:5:16: numbers.size.else: found 'a - b', expected a number, true, false, "
          "the name of a number, or two with *, +, / or round_up between them",
          HasSubstr("m.yaml:7:5: tensors[0]: 2 tensors of Hugging Face are left where "
                    "Megatron has one"),
          HasSubstr("'b.{k}.weight' has the number '{k}', which 'a.{l}.weight' has not"),
          HasSubstr("did you mean 'transpose'?"), HasSubstr("'x{l}' is not a part of a key"),
          HasSubstr("m.yaml:10:5: tensors[3]: 'megatron' is missing")));
}

TEST(KeyMap, ErrorsAreAboutTheFileOfTheMap) {
  const CheckpointError error =
      error_of([] { KeyMap::from_text("version: 1\nfamily: [", "mine.yaml"); });
  EXPECT_EQ(error.with({.file = "model"}).context().file, "mine.yaml") << "not the checkpoint's";
}

TEST(KeyMap, LayersAreOfKindsOfOnesOwn) {
  const std::string begin = "version: 1\nfamily: mine\nnumbers: {}\n";
  const KeyMap map = KeyMap::from_text(begin + R"(kinds:
  - {layers: {mamba: [M, mamba], attention: "*"}, args: pattern, hf: [pattern, layer_types]}
  - layers: [mlp, no_mlp]
tensors:
  - {megatron: "{l}.mixer", layers: mamba, hf: "{l}.mixer"}
  - {megatron: "{l}.fc1", layers: mlp, hf: "{l}.up"}
  - {megatron: "{l}.router", layers: moe, hf: "{l}.gate"}
  - {megatron: "{l}.norm", layers: all, hf: "{l}.norm"}
)");
  EXPECT_THAT(map.kinds[0].find("mamba")->words, ElementsAre("M", "mamba"));
  EXPECT_EQ(map.tensors[3].layers, "");
  EXPECT_EQ(map.all_kinds().size(), 3) << "dense and moe need no declaration";
  EXPECT_EQ(KeyMap::from_text(to_yaml(map)), map);
  EXPECT_THAT(
      problems_of(begin + R"(kinds:
  - {layers: [one]}
  - {layers: {a: x, b: [x, y]}, hf: layer_types}
  - {layers: {c: z, d: []}}
  - {layers: [e, f], args: pattern}
tensors:
  - {megatron: "a", layers: a, hf: b}
)"),
      ElementsAre("m.yaml:5:5: kinds[0]: expected two kinds of layers or more",
                  "m.yaml:6:5: kinds[1]: 'x' means two kinds of layers",
                  "m.yaml:7:5: kinds[2]: the kinds have words, but neither 'args' nor 'hf' says "
                  "where configurations list them",
                  "m.yaml:8:5: kinds[3]: 'args' and 'hf' name lists of words, but no kind has any",
                  "m.yaml:10:5: tensors[0]: 'layers' is for keys with {l}"));
  EXPECT_THAT(problems_of(begin + R"(kinds:
  - {layers: [mamba, all]}
  - {layers: [mamba, moe]}
tensors:
  - {megatron: "{l}.a", layers: mambo, hf: "{l}.a"}
  - {megatron: "{l}.b", layers: dense, hf: "{l}.b"}
)"),
              ElementsAre("m.yaml:5:3: kinds: 'all' means every layer, not a kind of them",
                          "m.yaml:5:3: kinds: 'mamba' is named twice",
                          "m.yaml:8:5: {l}.a: there is no kind of layers 'mambo' (did you mean "
                          "'mamba'?); 'kinds' names them",
                          "m.yaml:9:5: {l}.b: there is no kind of layers 'dense'; 'kinds' names "
                          "them"));
}

TEST(KeyMap, SeveralKeysOfMegatronAreWhatTheLastStepMakes) {
  const std::string begin = "version: 1\nfamily: mine\nnumbers: {heads: {else: 2}}\ntensors:\n";
  const KeyMap map = KeyMap::from_text(
      begin + R"(  - {megatron: [z, x], hf: in, transform: {split_rows: [heads, 1]}}
  - {megatron: [q, k], hf: qk, transform: {split_groups: [heads, 2, 1]}, or: [{hf: [q2, k2], transform: [concat_rows, split_rows: [2, 1]]}]}
)");
  EXPECT_EQ(map.tensors[0].megatron, "z");
  EXPECT_THAT(map.tensors[0].more, ElementsAre("x"));
  EXPECT_EQ(KeyMap::from_text(to_yaml(map)), map);
  EXPECT_THAT(
      problems_of(begin + R"(  - {megatron: [a, b], hf: c}
  - {megatron: [d, e], hf: [f, g]}
  - {megatron: [h, i], hf: j, transform: {split_rows: 3}}
  - {megatron: [k, l], hf: m, transform: {split_rows: [2, 1]}, or: [{hf: n, transform: {split_rows: 2}}]}
  - {megatron: [o, p], local: q, hf: r, transform: {split_rows: 2}}
  - {megatron: [], hf: s}
  - {megatron: t, hf: u, transform: {split_groups: [heads, 1]}}
  - {megatron: ["v.{l}", w], hf: "x.{l}", transform: {split_rows: 2}}
)"),
      ElementsAre("m.yaml:5:5: tensors[0]: one tensor is left where Megatron has 2; the last step "
                  "is split_rows or split_groups with 2 parts",
                  HasSubstr("m.yaml:6:5: tensors[1]: 2 tensors are left where Megatron has 2; the "
                            "last step is split_rows"),
                  HasSubstr("m.yaml:7:5: tensors[2]: 3 tensors are left where Megatron has 2"),
                  "m.yaml:8:5: tensors[3]: each form divides the rows into the same parts",
                  "m.yaml:9:5: tensors[4]: 'local', 'aliases' and 'gated' are for rows with one "
                  "key of Megatron",
                  HasSubstr("m.yaml:10:16: tensors[5].megatron: found a list, expected a key"),
                  HasSubstr("m.yaml:11:5: tensors[6]: 'split_groups' cannot follow one tensor; it "
                            "takes one tensor, groups, and the parts of each"),
                  HasSubstr("m.yaml:12:5: tensors[7]: 'w' lacks the number '{l}' of 'v.{l}'")));
  EXPECT_THAT(problems_of(begin + R"(  - {megatron: [a, a], hf: b, transform: {split_rows: 2}}
  - {megatron: c, hf: d}
  - {megatron: [e, c], hf: f, transform: {split_rows: 2}}
)"),
              ElementsAre("m.yaml:5:5: 'a' is named twice in a row",
                          HasSubstr("m.yaml:7:5: 'c' is in two rows, with 'c' and with 'e'")));
}

TEST(KeyMap, KeysThatDifferInANumberOfTheirOwnAreTwo) {
  const std::string begin = "version: 1\nfamily: mine\nnumbers: {n: {else: 2}}\ntensors:\n";
  EXPECT_THAT(problems_of(begin + R"(  - {megatron: "l.{l}.a.0.w", hf: "x.{l}.norm.0.w"}
  - {megatron: "l.{l}.a.1.w", hf: "x.{l}.norm.1.w"}
  - {megatron: "l.{l}.b.w", hf: ["x.{l}.mlps.0.w", "x.{l}.mlps.1.w"], transform: concat_rows}
)"),
              IsEmpty());
  EXPECT_THAT(problems_of(begin + R"(  - {megatron: "l.{l}.a.w", hf: "x.{l}.norm.0.w"}
  - {megatron: "l.0.a.w", hf: "x.{l}.norm.1.w"}
)"),
              ElementsAre(HasSubstr("'x.{l}.norm.1.w' has the number '{l}'")));
  EXPECT_THAT(problems_of(begin + R"(  - {megatron: "l.{l}.e.{e}.w", hf: "x.{l}.e.{e}.w"}
  - {megatron: "l.{l}.e.0.w", hf: "x.{l}.f.w"}
)"),
              ElementsAre(HasSubstr("'l.{l}.e.0.w' is in two rows")));
}

TEST(KeyMap, NumbersThatDifferByLayerAreForRowsOfLayers) {
  const auto problems = [](const std::string& rest) {
    return problems_of(R"(version: 1
family: mine
numbers:
  size: {hf: "blocks.{l}.size"}
  half: {else: size / 2}
)" + rest);
  };
  EXPECT_THAT(problems(R"(tensors: [{megatron: "decoder.{l}.a", hf: "{l}.a", columns: half}])"),
              IsEmpty());
  const std::string message =
      "the number 'half' differs by layer; it is for 'columns', 'rows' and 'transform' of rows "
      "with {l}";
  for (const char* const row : {R"({megatron: "a", hf: "b", columns: half})",
                                R"({megatron: "a", hf: "b", transform: {rope_interleave: half}})",
                                R"({megatron: "decoder.{l}.a", hf: "{l}.a", if: half})"})
    EXPECT_THAT(problems(std::string("tensors: [") + row + "]"), ElementsAre(HasSubstr(message)))
        << row;
  const auto number = [](const std::string& text) {
    return problems_of("version: 1\nfamily: mine\nnumbers: {n: " + text +
                       "}\ntensors: [{megatron: a, hf: b}]\n");
  };
  EXPECT_THAT(number(R"({hf: "kinds.{l}", words: {wide: 2, narrow: 1}})"), IsEmpty());
  for (const char* const path : {"{l}", "{l}.a", "a.{l}.{l}", "a.{e}"})
    EXPECT_THAT(number(std::string("{hf: \"") + path + "\"}"), ElementsAre(HasSubstr("numbers.n")))
        << path;
  EXPECT_THAT(number("{hf: kind, words: {}}"), ElementsAre(HasSubstr("{WORD: NUMBER}")));
  EXPECT_THAT(number("{hf: kind, words: {wide: rows}}"),
              ElementsAre(HasSubstr("there is no number 'rows'")));
  EXPECT_THAT(number("{hf: kind, words: {wide: 2}, part_of: n}"),
              Contains(HasSubstr("'words' and 'part_of' exclude each other")));
}

TEST(KeyMap, BlocksOfScalesHaveRowsAndColumns) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
extends: llama
family: mine
numbers: {rows: {hf: [quantization.block.0, rows], else: 64}}
dequantize: {scales: .scales, block: [rows, 32]}
)");
  EXPECT_THAT(map.find_number("rows")->hf, ElementsAre("quantization.block.0", "rows"));
  EXPECT_EQ(map.dequantize.scales, ".scales");
  EXPECT_EQ(KeyMap::from_text(to_yaml(map)), map);
  EXPECT_EQ(KeyMap::from_text("version: 1\nextends: llama\nfamily: mine\n"
                              "dequantise: {scales: .scales, block: [1, 32]}")
                .dequantize.scales,
            ".scales");
  EXPECT_THAT(problems_of("version: 1\nextends: llama\nfamily: mine\n"
                          "dequantise: {scales: .a, block: [1, 32]}\n"
                          "dequantize: {scales: .b, block: [1, 32]}\n"),
              ElementsAre(HasSubstr("in two spellings; keep one")));
  EXPECT_THAT(
      problems_of(R"(version: 1
family: mine
numbers: {rows: {hf: "a..b"}}
dequantize: {scales: _scale, block: 128}
tensors:
  - {megatron: a, hf: b}
)"),
      ElementsAre(HasSubstr("m.yaml:3:22: numbers.rows.hf: found the text 'a..b', expected a name"),
                  HasSubstr("m.yaml:4:13: dequantize: expected {scales: SUFFIX, block: [ROWS, "
                            "COLUMNS]}"),
                  HasSubstr("m.yaml:4:37: dequantize.block")));
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {}
dequantize: {scales: _scale, block: [128, columns]}
tensors:
  - {megatron: a, hf: b}
)"),
              ElementsAre(HasSubstr("dequantize: there is no number 'columns'")));
}

TEST(KeyMap, RotarySteps) {
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {heads: {args: heads}}
tensors:
  - {megatron: a, hf: b, transform: [rope_interleave: heads]}
  - {megatron: c, hf: [d, e], transform: [rope_deinterleave: [heads, 0], concat_rows]}
)"),
              IsEmpty());
  EXPECT_THAT(
      problems_of(R"(version: 1
family: mine
numbers: {}
tensors:
  - {megatron: a, hf: b, transform: rope_interleave}
  - {megatron: c, hf: [d, e], transform: [rope_interleave: [1], concat_rows]}
  - {megatron: f, hf: g, transform: [rope_interleav: 1]}
)"),
      ElementsAre("m.yaml:5:5: tensors[0]: 'rope_interleave' cannot follow one tensor; it takes "
                  "the heads of each tensor, as in 'rope_interleave: [num_attention_heads]'",
                  HasSubstr("m.yaml:6:5: tensors[1]: 'rope_interleave' cannot follow 2 tensors"),
                  HasSubstr("did you mean 'rope_interleave'?")));
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {}
tensors:
  - {megatron: a, hf: b, transform: [rope_interleave: heads]}
)"),
              ElementsAre(HasSubstr("m.yaml:5:5: a: there is no number 'heads'")));
}

TEST(KeyMap, RowsOfATowerAreOfItOnBothSides) {
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {heads: {args: heads}}
towers: {keys: [vision., visual.], hf_text_prefix: "language_model."}
tensors:
  - {megatron: "vision.{v}.qkv", hf: "visual.{v}.qkv", transform: [split_rows: 3, qkv_interleave: [heads, heads]]}
  - {megatron: vision.mlp.0, hf: visual.mlp.0}
  - {megatron: vision.mlp.2, hf: visual.mlp.2}
)"),
              IsEmpty());
  EXPECT_THAT(
      problems_of(R"(version: 1
family: mine
numbers: {num_attention_heads: {args: a}, num_query_groups: {args: b}}
towers: {keys: [vision.]}
tensors:
  - {megatron: vision.norm, hf: visual.norm}
  - {megatron: a, hf: [b, c, d], transform: [qkv_interleave: [num_attention_heads, groups]]}
)"),
      ElementsAre(
          HasSubstr("m.yaml:6:5: only one of 'vision.norm' and 'visual.norm' is of a tower"),
          HasSubstr("m.yaml:7:5: a: there is no number 'groups'")));
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {}
towers: {hf_text_prefix: "language_model."}
tensors:
  - {megatron: a, hf: [b, c, d], transform: [gated_qkv_interleave: [4, 2]]}
)"),
              ElementsAre(HasSubstr("m.yaml:4:9: towers: 'keys' is missing"),
                          HasSubstr("'gated_qkv_interleave' cannot follow 3 tensors")));
}

TEST(KeyMap, RowsMayCastAndAdd) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: mine
numbers: {plus_one: {else: true}}
tensors:
  - {megatron: a, hf: b, add: -0.5, cast: {megatron: float32}}
  - {megatron: c, hf: d, add: {value: 1, if: plus_one, rounded: true}}
)");
  EXPECT_EQ(map.tensors[0].add.value, -0.5F);
  EXPECT_EQ(map.tensors[0].cast, (MapCast{.megatron = DType::kFloat32}));
  EXPECT_TRUE(map.tensors[1].add.rounded);
  EXPECT_EQ(KeyMap::from_text(to_yaml(map)), map);
  EXPECT_THAT(
      problems_of(R"(version: 1
family: mine
numbers: {vocab_size: {else: 1}, padded_vocab_size: {else: 1}}
tensors:
  - {megatron: a, hf: b, add: one, cast: {megatron: float23}}
  - {megatron: c, hf: d, add: {rounded: true}, cast: {}}
  - {megatron: e, hf: f, add: 1, transform: pad_rows}
  - {megatron: g, hf: h, add: 1e9, cast: {hf: int8, hg: float32}}
)"),
      ElementsAre(HasSubstr("m.yaml:5:31: tensors[0].add: found 'one', expected a number from "
                            "-1048576 to 1048576, not 0"),
                  HasSubstr("m.yaml:5:53: tensors[0].cast.megatron: found 'float23'"),
                  HasSubstr("m.yaml:6:31: tensors[1].add: 'value' is missing"),
                  HasSubstr("m.yaml:6:54: tensors[1].cast: expected {megatron: TYPE, hf: TYPE}"),
                  HasSubstr("m.yaml:7:5: tensors[2]: 'add' is not for rows that pad_rows fills"),
                  HasSubstr("m.yaml:8:31: tensors[3].add: found '1e9'"),
                  HasSubstr("m.yaml:8:47: tensors[3].cast.hf: found 'int8', expected bfloat16"),
                  HasSubstr("m.yaml:8:53: tensors[3].cast has no field 'hg'")));
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {}
tensors:
  - {megatron: a, hf: b, add: {value: 1, if: plus_one}}
)"),
              ElementsAre(HasSubstr("m.yaml:5:5: a: there is no number 'plus_one'")));
}

TEST(KeyMap, AKeyMayBeTheSameOnBothSides) {
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {}
tensors:
  - {megatron: "{l}.weight", hf: "{l}.weight"}
  - {megatron: "{l}.bias", hf: "{l}.offset"}
  - {megatron: "{l}.offset", hf: "{l}.bias"}
)"),
              IsEmpty());
}

TEST(KeyMap, WhatRowsReferToMustBeThere) {
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers: {tied: {else: false}, padded_vocab_size: {else: 8}}
tensors:
  - {megatron: a.weight, hf: b.weight, unless: tie}
  - {megatron: c.weight, hf: d.weight, transform: pad_rows}
  - {megatron: e.weight, hf: d.weight}
)"),
              ElementsAre(HasSubstr("m.yaml:5:5: a.weight: there is no number 'tie' (did you mean "
                                    "'tied'?); 'numbers' says where each comes from"),
                          HasSubstr("m.yaml:6:5: c.weight: there is no number 'vocab_size'"),
                          HasSubstr("m.yaml:7:5: 'd.weight' is in two rows, with 'c.weight' and "
                                    "with 'e.weight'")));
  EXPECT_THAT(problems_of(R"(version: 1
family: mine
numbers:
  one: {else: 1}
  a: {else: one * b}
  b: {args: b, part_of: a}
  c: {else: d}
tensors:
  - {megatron: a.weight, hf: b.weight}
  - {megatron: a.weight, hf: c.weight}
)"),
              ElementsAre("m.yaml:5:6: numbers.a: what it follows from follows from itself",
                          "m.yaml:6:6: numbers.b: what it follows from follows from itself",
                          HasSubstr("m.yaml:7:6: numbers.c: there is no number 'd'"),
                          HasSubstr("m.yaml:10:5: 'a.weight' has two rows, the other in line 9")));
  EXPECT_THAT(problems_of("version: 1\nfamily: mine\n"),
              ElementsAre("m.yaml:1:1: a map has rows: 'tensors' is missing"));
  EXPECT_THAT(problems_of("version: 2\nfamily: mine\ntensors: []\n"),
              ElementsAre(HasSubstr("reads maps of version 1, not of version 2")));
  EXPECT_THAT(error_of([] { KeyMap::find("lama"); }).message(),
              HasSubstr("no map 'lama' is shipped (did you mean 'llama'?)"));
}

}  // namespace
}  // namespace dckpt::key_map_test
