#include "migration/adapters/expert_lora.h"

#include <algorithm>
#include <set>
#include <utility>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/views/rearranged_reader.h"

namespace dckpt {
namespace {

constexpr std::string_view kSingleWeight = ".weight";

/// A module of a single expert: "model.layers.0.mlp.experts", "3", "gate_proj".
struct SingleExpert {
  std::string experts;
  std::string number;
  std::string name;
};

std::optional<SingleExpert> single_expert(const std::string& path) {
  const std::size_t name = path.rfind('.');
  if (name == path.npos || name == 0) return std::nullopt;
  const std::size_t number = path.rfind('.', name - 1);
  if (number == path.npos) return std::nullopt;
  SingleExpert one{path.substr(0, number), path.substr(number + 1, name - number - 1),
                   path.substr(name + 1)};
  const bool known = std::ranges::any_of(kExpertParameters, [&](const ExpertParameter& parameter) {
    return std::ranges::find(parameter.singles, one.name) != parameter.singles.end();
  });
  return known && one.experts.ends_with("experts") && parse_u64(one.number) ? std::optional(one)
                                                                            : std::nullopt;
}

std::string key_of(const std::string& module, std::string_view parameter) {
  return str_format("{}.{}", module, parameter);
}

/// Returns the shape of a fused tensor; empty if the model has none.
Shape shape_of(const Metadata& model, const std::string& key) {
  const TensorStorageMetadata* const tensor = model.find_tensor(key);
  return tensor != nullptr && tensor->global_shape().size() == 3 ? tensor->global_shape() : Shape();
}

/// Returns whether a module has matrices of single experts one after the other: (experts, gate and
/// up, in) and (experts, out, in). gpt-oss alternates rows of gate and up, and has biases.
bool has_singles(const Metadata& model, const NamesInModel& names, const std::string& module) {
  const Shape up = shape_of(model, names(key_of(module, kExpertParameters[0].name)));
  const Shape down = shape_of(model, names(key_of(module, kExpertParameters[1].name)));
  return !up.empty() && !down.empty() && up[0] == down[0] && up[1] == 2 * down[2] &&
         up[2] == down[1] &&
         model.find_tensor(names(key_of(module, kExpertParameters[0].name) + "_bias")) == nullptr;
}

}  // namespace

std::string key_of_slice(const std::string& fused, std::int64_t expert) {
  return str_format("{}[{}]", fused, expert);
}

std::vector<std::string> keys_of_experts(const PeftAdapter& adapter) {
  std::vector<std::string> keys;
  for (const ExpertLora& lora : adapter.experts) {
    const std::string fused = key_of(lora.module, lora.parameter);
    keys.push_back(fused);
    keys.push_back(key_of_slice(fused, 0));
    for (const ExpertParameter& parameter : kExpertParameters)
      keys.push_back(str_format("{}.0.{}{}", lora.module, parameter.singles[0], kSingleWeight));
  }
  std::set<std::string> modules;
  for (const LoraModule& module : adapter.modules) {
    if (const auto single = single_expert(module.path)) modules.insert(single->experts);
  }
  for (const std::string& module : modules) keys.push_back(key_of(module, "gate_up_proj"));
  return keys;
}

std::vector<FusedExperts> fused_experts(const Metadata& model, const PeftAdapter& adapter,
                                        const NamesInModel& names) {
  std::vector<FusedExperts> all;
  std::set<std::string> seen;
  for (const ExpertLora& lora : adapter.experts) {
    FusedExperts one{.key = names(key_of(lora.module, lora.parameter)), .parts = {}};
    const Shape shape = shape_of(model, one.key);
    if (shape.empty() || !seen.insert(one.key).second) continue;
    for (std::int64_t expert = 0; expert < shape[0]; ++expert)
      one.parts.push_back(key_of_slice(one.key, expert));
    all.push_back(std::move(one));
  }
  for (const LoraModule& module : adapter.modules) {
    const auto single = single_expert(module.path);
    if (!single || !seen.insert(single->experts).second ||
        !has_singles(model, names, single->experts))
      continue;
    for (const ExpertParameter& parameter : kExpertParameters) {
      FusedExperts one{.key = names(key_of(single->experts, parameter.name)), .parts = {}};
      if (!seen.insert(one.key).second) continue;
      const std::int64_t experts = shape_of(model, one.key)[0];
      for (std::int64_t expert = 0; expert < experts; ++expert) {
        for (std::size_t part = 0; part < parameter.count; ++part)
          one.parts.push_back(names(str_format("{}.{}.{}{}", single->experts, expert,
                                               parameter.singles[part], kSingleWeight)));
      }
      all.push_back(std::move(one));
    }
  }
  return all;
}

CutFactors::CutFactors(std::shared_ptr<const CheckpointReader> adapter)
    : adapter_(std::move(adapter)) {}

std::size_t CutFactors::cut(std::size_t tensor, const Box& entries, const Shape& steps) {
  const std::size_t position = adapter_->metadata().tensors.size() + tensors_.size();
  tensors_.push_back(
      {.key = str_format("{}[{}]", adapter_->metadata().tensors[tensor].key, position),
       .properties = adapter_->metadata().tensors[tensor].properties,
       .size = entries.sizes,
       .parts = {{.target = whole(entries.sizes),
                  .tensor = static_cast<std::uint32_t>(tensor),
                  .source = entries,
                  .source_steps = steps}}});
  return position;
}

std::shared_ptr<const CheckpointReader> CutFactors::reader() && {
  if (tensors_.empty()) return adapter_;
  RearrangedContents contents;
  const Metadata& metadata = adapter_->metadata();
  for (std::uint32_t i = 0; i < metadata.tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = metadata.tensors[i];
    const Box all = whole(tensor.global_shape());
    contents.tensors.push_back({.key = tensor.key,
                                .properties = tensor.properties,
                                .size = tensor.global_shape(),
                                .parts = {{.target = all, .tensor = i, .source = all}}});
  }
  std::ranges::move(tensors_, std::back_inserter(contents.tensors));
  return rearranged_reader(std::make_unique<ForwardingReader>(adapter_), std::move(contents));
}

void cut_factors(const ExpertLora& lora, const ExpertUpdate& update, CutFactors& factors,
                 LowRankTerm& term) {
  // An expert has consecutive rows of lora_A, (experts · rank, in), and every column with its
  // number of lora_B, (out, rank · experts).
  const std::int64_t in = lora.in, out = lora.out, first = update.first, count = update.count;
  const std::int64_t row = update.expert * lora.rank;
  const auto of_a = [&](std::int64_t column, std::int64_t columns) {
    return factors.cut(lora.a, {{row, column}, {lora.rank, columns}}, {1, 1});
  };
  const auto of_b = [&](std::int64_t from, std::int64_t rows) {
    return factors.cut(lora.b, {{from, update.expert}, {rows, lora.rank}}, {1, lora.experts});
  };
  if (update.turned) {
    term.left = LowRankFactor{of_a(first, count), true};
    term.right = {of_b(0, out), true};
  } else {
    term.left = LowRankFactor{of_b(first, count), false};
    term.right = {of_a(0, in), false};
  }
}

}  // namespace dckpt
