#include "migration/adapters/model_names.h"

#include <algorithm>
#include <array>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::array kNamings{
    ModelNaming{"model.language_model.", "lm_head.", "model."},  // transformers ≥ 4.52
    ModelNaming{"language_model.model.", "language_model.lm_head.",
                ""},                        // before, LLaVA and others
    ModelNaming{"model.", "lm_head.", ""},  // before, Qwen2-VL and others; a language model alone
};

std::string translated(const std::string& key, const ModelNaming& from, const ModelNaming& to) {
  for (const auto part : {&ModelNaming::text, &ModelNaming::head, &ModelNaming::others}) {
    if (key.starts_with(from.*part)) return std::string(to.*part) + key.substr((from.*part).size());
  }
  return key;
}

}  // namespace

NamesInModel::NamesInModel(const std::unordered_map<std::string_view, std::size_t>& model,
                           std::span<const std::string> keys) {
  const auto consider = [&](NamesInModel names) {
    names.found_ = static_cast<std::size_t>(std::ranges::count_if(
        keys, [&](const std::string& key) { return model.contains(names(key)); }));
    if (names.found_ > found_) *this = names;
  };
  NamesInModel names = *this;
  consider(names);
  names.drop_first_ = true;
  consider(names);
  names.drop_first_ = false;
  for (const std::string_view add : {"model.", "transformer."}) {
    names.add_ = add;
    consider(names);
  }
  names.add_ = {};
  for (const ModelNaming& from : kNamings) {
    for (const ModelNaming& to : kNamings) {
      names.from_ = &from;
      names.to_ = &to;
      if (&from != &to) consider(names);
    }
  }
}

std::string NamesInModel::operator()(const std::string& key) const {
  if (from_ != nullptr) return translated(key, *from_, *to_);
  if (!drop_first_) return std::string(add_) + key;
  const std::size_t dot = key.find('.');
  return dot == std::string::npos ? key : key.substr(dot + 1);
}

std::string NamesInModel::change() const {
  if (from_ == nullptr) return {};
  return str_format("the language model's keys have {} in the adapter and {} in the model",
                    quote(std::string(from_->text)), quote(std::string(to_->text)));
}

}  // namespace dckpt
