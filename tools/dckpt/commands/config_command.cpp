#include <algorithm>

#include "configs/maps/key_map.h"
#include "configs/maps/row_remarks.h"
#include "configs/policy/option_rules.h"
#include "configs/policy/policy_schema.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "operations/json/config_json.h"
#include "operations/json/reports.h"
#include "strategies/registry/registry.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/grammar/policy_argument.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

struct ConfigArguments {
  std::string action;
  PolicyArgument policy;
  bool json = false;
};

ExitCode code_of(const ConfigProblems& problems) {
  if (problems.empty()) return kOk;
  const bool unsupported = std::ranges::all_of(problems, [](const ConfigProblem& problem) {
    return problem.code == ErrorCode::kUnsupported;
  });
  return unsupported ? kUnsupported : kDiffers;
}

void report_problems(const ConfigArguments& options, const ConfigProblems& problems,
                     bool is_listed) {
  print_problem_count(problems.size(), options.policy.name,
                      to_string(problems.front(), options.policy.name), is_listed);
}

/// Checks that the named strategies exist and accept the options, which the file alone does not
/// show.
void check_strategies(const std::string& text, const Policy& policy, ConfigProblems& problems) {
  ConfigProblems known;
  const YamlNode root = parse_yaml(text, known).value_or(YamlNode{});
  const auto check = [&](const std::string& field, const auto& look_up) {
    try {
      look_up();
    } catch (const CheckpointError& error) {
      problems.push_back(
          {place_of(root, field), str_format("{}: {}", field, error.message()), error.code()});
    }
  };
  check("save.strategy", [&] {
    const SaveOptions save = canonical(policy.save);
    const SaveStrategyEntry& entry = find_save_strategy(save.strategy.name, save.strategy.version);
    const Backend backend = backend_of(entry);
    for (const BrokenRule& broken : broken_rules(Call::kSave, {.save = save}, &backend)) {
      const bool is_known = std::ranges::any_of(problems, [&](const ConfigProblem& problem) {
        return problem.message == broken.message;
      });
      if (!is_known)
        problems.push_back({place_of(root, broken.rule->field), broken.message, broken.rule->code});
    }
    entry.make(save);  // checks the strategy's own options
  });
  check("save.planner", [&] { make_save_planner(policy.save); });
  check("load.planner", [&] { make_load_planner(policy.load); });
  if (!policy.load.map.name.empty() && policy.load.map.name != "auto")
    check("load.map", [&] { find_key_map(policy.load.map.name); });
  if (policy.load.strategy.name != kAutoStrategy)
    check("load.strategy", [&] { find_load_strategy(policy.load.strategy); });
  sort_by_place(problems);
}

/// Returns the text of a file, or of the map or policy that ships under that name.
PolicyText text_of(const std::string& name) {
  const auto is_named = [&](const ShippedPolicy& map) { return map.name == name; };
  if (std::ranges::any_of(shipped_maps(), is_named)) return find_key_map(name);
  try {
    return find_policy(name);
  } catch (const CheckpointError& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    std::vector<std::string> maps;
    for (const ShippedPolicy& map : shipped_maps()) maps.emplace_back(map.name);
    const auto close = nearest(name, maps);
    throw CheckpointError(
        error.code(),
        str_format("{}; and of maps {}{}", error.message(), quoted_list(maps, maps.size()),
                   close ? str_format(" (did you mean {}?)", quote(*close)) : ""),
        error.context(), error.cause());
  }
}

struct Checked {
  ConfigProblems problems;
  std::vector<MapRemark> remarks{};  ///< on a map without problems
};

Checked check(const PolicyText& text) {
  if (is_key_map(text.yaml)) {
    CheckedKeyMap checked = check_key_map(text.yaml, text.folder);
    if (!checked.problems.empty()) return {std::move(checked.problems)};
    return {{}, map_remarks(checked.map)};
  }
  CheckedPolicy checked = check_policy(text.yaml, text.folder);
  check_strategies(text.yaml, checked.policy, checked.problems);
  return {std::move(checked.problems)};
}

int run_check(const ConfigArguments& options) {
  const auto [problems, remarks] = check(text_of(options.policy.name));
  for (const MapRemark& remark : remarks) {
    const ConfigProblem shown{.place = remark.place.place,
                              .message = "warning: " + remark.finding.message,
                              .file = remark.place.file};
    if (!options.json) print(safe_message(to_string(shown, options.policy.name)) + "\n");
  }
  if (options.json) {
    print_json(to_json(problems, options.policy.name, remarks));
  } else if (problems.empty()) {
    print(str_format("{}  {}\n", styled(Style::kGreen, "OK"), shown(options.policy.name)));
  } else {
    for (const ConfigProblem& problem : problems)
      print(safe_message(to_string(problem, options.policy.name)) + "\n");
  }
  if (!problems.empty()) report_problems(options, problems, !options.json);
  return code_of(problems);
}

int run_show(const ConfigArguments& options) {
  const PolicyText text = text_of(options.policy.name);
  const auto show = [&](const auto& checked, const auto& shown) -> int {
    if (!checked.problems.empty()) {
      report_problems(options, checked.problems, false);
      return code_of(checked.problems);
    }
    if (options.json) {
      print_json(to_json(shown));
    } else {
      const std::string yaml = to_yaml(shown);
      print_bytes(yaml.data(), yaml.size());
    }
    return kOk;
  };
  if (is_key_map(text.yaml)) {
    const CheckedKeyMap checked = check_key_map(text.yaml, text.folder);
    return show(checked, checked.map);
  }
  const CheckedPolicy checked = check_policy(text.yaml, text.folder);
  return show(checked, checked.policy);
}

}  // namespace

Command add_config(ProgramSpec& program) {
  const auto options = std::make_shared<ConfigArguments>();
  Parser command(program, "config",
                 "Check or show a policy (how to save and load) or a map of keys");
  std::string names;
  for (const ShippedPolicy& policy : shipped_policies()) names += "\n  " + std::string(policy.name);
  names += "\n\nand these maps:";
  for (const ShippedPolicy& map : shipped_maps()) names += "\n  " + std::string(map.name);
  command.footer(
      "check reports everything that is wrong, each with line and column, and warns about rows of "
      "maps that may not mean what they should; show prints every field "
      "with the value in effect, as YAML that is a policy (or map) itself.\n\n"
      "These policies come with dckpt and go by their names:" +
      names +
      "\n\n"
      "Exit codes: 0 sound; 1 something is wrong; 2 no such name; 3 the file cannot be read; "
      "6 it asks for what this version cannot do, and nothing else is wrong\n\n"
      "Examples:\n"
      "  dckpt config check run.yaml\n"
      "  dckpt config show production > run.yaml\n"
      "  dckpt config check run.yaml --json | jq '.problems'");
  command.add_option("ACTION", options->action, "check or show")
      .required()
      .type_name("")
      .one_of({"check", "show"});
  command
      .add_option("FILE", options->policy.name,
                  "Policy or map: a file, or the name of one that comes with dckpt")
      .required()
      .type_name("")
      .takes(Takes::kPolicyOrMap);
  add_json(command, options->json);
  return {&command.spec(), [options] {
            return options->action == "check" ? run_check(*options) : run_show(*options);
          }};
}

}  // namespace dckpt::tool
