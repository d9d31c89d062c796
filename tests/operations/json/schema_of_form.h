#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "configs/yaml/schema.h"
#include "tests/operations/json/config_sentences.h"
#include "tests/operations/json/schema_of.h"

// JSON schemas of what configs/yaml/schema.h describes, as `dckpt config show --json` prints it.
namespace dckpt::json_schema {

class FormPage {
 public:
  explicit FormPage(std::span<const Sentence> sentences)
      : sentences_(sentences), used_(sentences.size()) {}

  Value whole(const config::Form& form) { return described("", form); }

  /// Paths of fields without a sentence, and of sentences without a field.
  std::vector<std::string> mistakes() const {
    std::vector<std::string> all = missing_;
    for (std::size_t i = 0; i < sentences_.size(); ++i) {
      if (!used_[i]) all.emplace_back(sentences_[i].path);
    }
    return all;
  }

 private:
  Value described(const std::string& path, const config::Form& form) {
    std::string about;
    for (std::size_t i = 0; i < sentences_.size(); ++i) {
      if (path != sentences_[i].path) continue;
      used_[i] = true;
      about = sentences_[i].about;
    }
    if (about.empty()) missing_.push_back(path);
    const Value schema = of(path, form);
    return Page::described(about, form.or_null ? Page::or_null(schema) : schema);
  }

  /// `path` is that of the field to which the form belongs.
  Value of(const std::string& path, const config::Form& form) {
    using config::Kind;
    switch (form.kind) {
      case Kind::kAny: break;
      case Kind::kFlag: return typed("boolean");
      case Kind::kInteger:
        if (form.least == form.most) return Value::dict({{"const", form.least}});
        return Value::dict({{"type", "integer"}, {"minimum", form.least}, {"maximum", form.most}});
      case Kind::kNumber:
        return Value::dict({{"type", Value::list({"integer", "string"})},
                            {"pattern", "^-?[0-9.]+(e[-+]?[0-9]+)?$"}});
      case Kind::kSize: return like("^[0-9]+(B|KiB|MiB|GiB|TiB)$");
      case Kind::kDuration: return like("^(none|[0-9]+(ms|s|min|h))$");
      case Kind::kText: return typed("string");
      case Kind::kChoice: return Page::one_of(form.names.all());
      case Kind::kList: return list(path, form);
      case Kind::kOneOrMore: return any_of({of(path, form.parts[0]), list(path, form)});
      case Kind::kMapping: {
        Value schema = typed("object");
        if (form.names.count > 0) schema["propertyNames"] = Page::one_of(form.names.all());
        if (form.part_count > 0) schema["additionalProperties"] = of(path, form.parts[0]);
        return schema;
      }
      case Kind::kEither: {
        std::vector<Value> forms;
        for (const config::Form& part : std::span(form.parts, form.part_count))
          forms.push_back(of(path, part));
        return any_of(std::move(forms));
      }
      case Kind::kSection: return section(path, form);
    }
    return Value::dict();
  }

  static Value typed(const char* type) { return Value::dict({{"type", type}}); }
  static Value like(const char* pattern) {
    return Value::dict({{"type", "string"}, {"pattern", pattern}});
  }
  static Value any_of(std::vector<Value> forms) {
    if (forms.size() == 1) return forms.front();
    return Value::dict({{"anyOf", Value::list(std::move(forms))}});
  }

  Value list(const std::string& path, const config::Form& form) {
    Value schema = Value::dict({{"type", "array"}, {"items", of(path, form.parts[0])}});
    if (form.least > 0) schema["minItems"] = form.least;
    if (form.most > 0) schema["maxItems"] = form.most;
    return schema;
  }

  Value section(const std::string& path, const config::Form& form) {
    ValueList required;
    Value properties = Value::dict();
    for (const config::AnyField& field : form.section->fields) {
      if (field.hidden) continue;
      if (field.left_out == nullptr) required.emplace_back(field.name);
      properties[field.name] = described((path.empty() ? "" : path + ".") + field.name, field.form);
    }
    const bool has_short_form = properties.contains("strategy") && properties.contains("backend");
    Value schema = typed("object");
    schema["required"] = Value::list(std::move(required));
    schema["additionalProperties"] = false;
    schema["properties"] = std::move(properties);
    if (has_short_form)
      schema["oneOf"] = Value::list({Value::dict({{"required", Value::list({"strategy"})}}),
                                     Value::dict({{"required", Value::list({"backend"})}})});
    return schema;
  }

  std::span<const Sentence> sentences_;
  std::vector<bool> used_;
  std::vector<std::string> missing_;
};

}  // namespace dckpt::json_schema
