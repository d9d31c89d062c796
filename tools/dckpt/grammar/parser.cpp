#include "tools/dckpt/grammar/parser.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::tool {
namespace {

std::string take_number(const std::string& text, std::optional<double>& value) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end || !(number >= 0))
    return str_format("found {}, expected a number from 0 on", quote(text));
  value = number;
  return "";
}

}  // namespace

Option Option::required() {
  spec_->is_required = true;
  return *this;
}

Option Option::type_name(const std::string& name) {
  spec_->type_name = name;
  return *this;
}

Option Option::takes(Takes kind) {
  spec_->kind = kind;
  return *this;
}

Option Option::one_of(std::vector<std::string> values) {
  spec_->kind = Takes::kChoice;
  spec_->choices = std::move(values);
  return *this;
}

Option Option::excludes(Option other) {
  spec_->excludes.push_back(other.spec_);
  other.spec_->excludes.push_back(spec_);
  return *this;
}

Parser::Parser(ProgramSpec& program, const std::string& name, const std::string& about)
    : command_(&program.commands.emplace_back(name, about)) {}

void Parser::footer(const std::string& text) {
  command_->footer = text;
}

Option Parser::add_option(const std::string& name, std::string& value, const std::string& about) {
  return add_option(
      name,
      [&value](const std::string& text) {
        value = text;
        return std::string();
      },
      about);
}

Option Parser::add_option(const std::string& name, std::optional<double>& value,
                          const std::string& about) {
  return add_option(
      name, [&value](const std::string& text) { return take_number(text, value); }, about);
}

Option Parser::add_option(const std::string& name, std::vector<std::string>& values,
                          const std::string& about) {
  const Option option = add_option(
      name,
      [&values](const std::string& text) {
        values.push_back(text);
        return std::string();
      },
      about);
  command_->options.back().is_repeatable = true;
  return option;
}

Option Parser::add_option(const std::string& name,
                          std::function<std::string(const std::string&)> take,
                          const std::string& about) {
  return Option(command_->options.emplace_back(OptionSpec{
      .names = split(name, ','), .about = about, .type_name = "TEXT", .take = std::move(take)}));
}

Option Parser::add_flag(const std::string& name, bool& given, const std::string& about) {
  return Option(command_->options.emplace_back(OptionSpec{.names = split(name, ','),
                                                          .about = about,
                                                          .takes_value = false,
                                                          .take = [&given](const std::string&) {
                                                            given = true;
                                                            return std::string();
                                                          }}));
}

bool Parser::given(const std::string& option) const {
  return std::ranges::any_of(command_->options, [&](const OptionSpec& one) {
    return one.given > 0 && std::ranges::find(one.names, option) != one.names.end();
  });
}

std::vector<Option> Parser::options() const {
  std::vector<Option> all;
  for (OptionSpec& option : command_->options) all.emplace_back(option);
  return all;
}

}  // namespace dckpt::tool
