#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "migration/maps/mapped_reader.h"
#include "tests/migration/maps/hf_pair.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing {

/// A model in memory: keys with shapes, and a configuration.
struct Model {
  std::vector<std::pair<std::string, Shape>> tensors;
  std::string config = "{}";
  Value args{};
  Conventions conventions{};

  std::unique_ptr<FakeReader> open() const {
    auto reader = std::make_unique<FakeReader>();
    std::int32_t next = 0;
    for (const auto& [key, shape] : tensors) {
      auto values = counting<std::int32_t>(static_cast<std::size_t>(numel(shape)));
      for (std::int32_t& value : values) value += next;
      next += static_cast<std::int32_t>(values.size());
      reader->tensor(key, DType::kInt32, shape, values);
    }
    reader->common(args.is_none() ? Value() : Value::dict({{"args", args}}));
    reader->conventions(conventions).write();
    add_file(*reader, "config.json", config);
    return reader;
  }

  std::map<std::string, std::string> mapped(const KeyMapOptions& options,
                                            MapReport* report = nullptr) const {
    return contents_of(*mapped_reader(open(), options, report));
  }
  std::string error(const KeyMapOptions& options) const {
    return error_of([&] { mapped(options); }).message();
  }
  Model without(const std::string& key) const {
    Model model = *this;
    std::erase_if(model.tensors, [&](const auto& tensor) { return tensor.first == key; });
    return model;
  }
  Model with(const std::string& key, Shape shape) const {
    Model model = without(key);
    model.tensors.emplace_back(key, std::move(shape));
    return model;
  }
};

/// Returns a model with two layers, four heads of two rows, two groups, eleven words.
inline Model llama() {
  Model model{.tensors = {{"model.embed_tokens.weight", {11, 8}}},
              .config = R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8,
                            "num_attention_heads": 4, "num_key_value_heads": 2,
                            "vocab_size": 11})"};
  for (const std::string& layer : {std::string("0"), std::string("1")}) {
    const auto add = [&](const std::string& name, Shape shape) {
      model.tensors.emplace_back("model.layers." + layer + "." + name + ".weight", shape);
    };
    add("input_layernorm", {8});
    add("self_attn.q_proj", {8, 8});
    add("self_attn.k_proj", {4, 8});
    add("self_attn.v_proj", {4, 8});
    add("self_attn.o_proj", {8, 8});
    add("post_attention_layernorm", {8});
    add("mlp.gate_proj", {6, 8});
    add("mlp.up_proj", {6, 8});
    add("mlp.down_proj", {8, 6});
  }
  model.tensors.emplace_back("model.norm.weight", Shape{8});
  model.tensors.emplace_back("lm_head.weight", Shape{11, 8});
  return model;
}

inline std::vector<std::string> object_keys(const CheckpointReader& reader) {
  std::vector<std::string> keys;
  for (const BytesStorageMetadata& object : reader.metadata().objects) keys.push_back(object.key);
  return keys;
}

}  // namespace dckpt::testing
