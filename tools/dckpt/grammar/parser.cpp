#include "tools/dckpt/grammar/parser.h"

#include <CLI/CLI.hpp>

#include <utility>

#include "tools/dckpt/grammar/values.h"

namespace dckpt::tool {

Option Option::required() {
  option_->required();
  return *this;
}

Option Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option Option::repeatable() {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::takes(Takes kind) {
  option_->check(tool::takes(kind));
  return *this;
}

Option Option::one_of(std::vector<std::string> values) {
  option_->check(tool::one_of(std::move(values)));
  return *this;
}

Option Option::non_negative() {
  option_->check(not_negative());
  return *this;
}

Option Option::excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}

Parser::Parser(CLI::App& program, const std::string& name, const std::string& about)
    : app_(program.add_subcommand(name, about)) {}

void Parser::footer(const std::string& text) {
  app_->footer(text);
}

Option Parser::add_option(const std::string& name, std::string& value, const std::string& about) {
  return Option(app_->add_option(name, value, about));
}

Option Parser::add_option(const std::string& name, std::optional<double>& value,
                          const std::string& about) {
  return Option(app_->add_option(name, value, about));
}

Option Parser::add_option(const std::string& name, std::vector<std::string>& values,
                          const std::string& about) {
  return Option(app_->add_option(name, values, about));
}

Option Parser::add_option(const std::string& name,
                          std::function<std::string(const std::string&)> take,
                          const std::string& about) {
  const auto checked = [name, take = std::move(take)](const std::string& text) {
    if (const std::string problem = take(text); !problem.empty())
      throw CLI::ValidationError(name, problem);
  };
  return Option(app_->add_option_function<std::string>(name, checked, about));
}

Option Parser::add_flag(const std::string& name, bool& given, const std::string& about) {
  return Option(app_->add_flag(name, given, about));
}

bool Parser::given(const std::string& option) const {
  return app_->count(option) > 0;
}

std::vector<Option> Parser::options() const {
  std::vector<Option> all;
  for (CLI::Option* const option : app_->get_options({})) all.emplace_back(option);
  return all;
}

}  // namespace dckpt::tool
