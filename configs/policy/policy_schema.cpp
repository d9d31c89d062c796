#include "configs/policy/policy_schema.h"

#include <algorithm>

#include "configs/policy/planner_names.h"
#include "configs/policy/rename.h"
#include "configs/policy/separation_hint.h"
#include "mapping/base/finding.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

using namespace config;

constexpr std::int64_t kPolicyVersion = 1;
constexpr int kMaxThreads = 1024;
constexpr std::uint64_t kMaxKept = 1'000'000'000'000;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kTiB = std::uint64_t{1} << 40;
constexpr EnumNames<bool, 2> kIntegrityNames{{{false, "none"}, {true, "sha256"}}};

/// A field that earlier builds had, so that policies written for them are told what to do.
template <typename S>
Field<S> gone(const std::string& name, const std::string& why) {
  return {name,
          [why](const YamlNode& node, const std::string& path, S&, ConfigProblems& problems) {
            problems.push_back(
                {node.place, str_format("{} is gone: {}; remove this field", path, why)});
          },
          [](const S&) { return std::optional<YamlNode>(); }};
}

Type<ParallelSaveOptions> parallel_save() {
  const Field<ParallelSaveOptions> exchange{
      "exchange",
      [](const YamlNode& node, const std::string& path, ParallelSaveOptions&,
         ConfigProblems& problems) {
        problems.push_back(
            {node.place, path +
                             " does not apply to saves, in which ranks exchange no data; remove it "
                             "(load.parallel.exchange is the option for loads)"});
      },
      [](const ParallelSaveOptions&) { return std::optional<YamlNode>(); }};
  return section(Schema<ParallelSaveOptions>{
      {field("enabled", &ParallelSaveOptions::enabled, flag()), exchange}});
}

Type<ParallelOptions> parallel_load() {
  return section(Schema<ParallelOptions>{{
      field("enabled", &ParallelOptions::enabled, flag()),
      field("exchange", &ParallelOptions::exchange, choice(kExchangeNames)),
  }});
}

/// Returns the same node, quoted where a text could not be printed anywhere or read back as itself.
YamlNode with_safe_texts(YamlNode node) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  };
  if (node.kind == YamlNode::Kind::kText && !std::ranges::all_of(node.text, plain))
    node.quoted = true;
  for (YamlNode& key : node.keys) key = with_safe_texts(std::move(key));
  for (YamlNode& value : node.values) value = with_safe_texts(std::move(value));
  return node;
}

/// The fields of `planner`: its kind or registered name, and the options of all planners.
struct PlannerFields : PlannerOptions {
  StrategySpec registered{.name = ""};
};

Field<PlannerFields> of_all(const Field<PlannerOptions>& field) {
  return {field.name,
          [field](const YamlNode& node, const std::string& path, PlannerFields& into,
                  ConfigProblems& problems) { field.read(node, path, into, problems); },
          [field](const PlannerFields& fields) { return field.show(fields); }};
}

/// The field of a planner's own options, which the planner reads itself.
template <typename S>
Field<S> own_options(StrategySpec S::*planner) {
  return {
      "options",
      [planner](const YamlNode& node, const std::string& path, S& into, ConfigProblems& problems) {
        if (node.kind == YamlNode::Kind::kMap)
          (into.*planner).options = OwnOptions(with_safe_texts(node));
        else if (node.kind != YamlNode::Kind::kNull)
          report_unfit(node, path, "a mapping of the planner's own options", problems);
      },
      [planner](const S& fields) {
        const OwnOptions& options = (fields.*planner).options;
        return options.empty() ? std::nullopt : std::optional(options.tree());
      }};
}

/// Returns the built-in kinds, and the names of registered planners.
std::vector<std::string> names_of(const std::vector<PlannerName>& registered) {
  std::vector<std::string> names;
  for (const auto& [kind, name] : kPlannerKindNames) names.emplace_back(name);
  for (const PlannerName& planner : registered) names.push_back(planner.name);
  return names;
}

Type<SaveOptions> planner() {
  const Type<Dedup> names = choice(kDedupNames);
  const Field<PlannerOptions> dedup{
      "dedup",
      [names](const YamlNode& node, const std::string& path, PlannerOptions& into,
              ConfigProblems& problems) {
        names.read(node, path, into.dedup.emplace(into.effective_dedup()), problems);
      },
      [names](const PlannerOptions& options) -> std::optional<YamlNode> {
        return names.show(options.effective_dedup());
      }};
  const Field<PlannerFields> kind{
      "kind",
      [](const YamlNode& node, const std::string& path, PlannerFields& into,
         ConfigProblems& problems) {
        if (!read_name(node, path, names_of(save_planner_names()), problems)) return;
        const PlannerName* const registered = find_planner_name(save_planner_names(), node.text);
        into.kind = registered != nullptr ? registered->rules : *parse_planner_kind(node.text);
        into.registered.name = registered != nullptr ? node.text : "";
      },
      [](const PlannerFields& fields) -> std::optional<YamlNode> {
        return fields.registered.name.empty() ? YamlNode::plain(std::string(to_string(fields.kind)))
                                              : YamlNode::string(fields.registered.name);
      }};
  const Type<PlannerFields> fields = section(Schema<PlannerFields>{
      {kind, own_options(&PlannerFields::registered), of_all(dedup),
       of_all(field("cache", &PlannerOptions::cache, flag())),
       gone<PlannerFields>("keep_plans", "each job plans its first save itself"),
       of_all(field("validate", &PlannerOptions::validate, flag())),
       of_all(field("split_replicas", &PlannerOptions::split_replicas, flag()))},
      [](const YamlNode& node, const std::string& path, const PlannerFields& read,
         ConfigProblems& problems) {
        const YamlNode* const options = node.find("options");
        const YamlNode* const named = node.find("kind");
        if (options != nullptr && options->kind == YamlNode::Kind::kMap &&
            read.registered.name.empty() &&
            (named == nullptr || find_planner_name(save_planner_names(), named->text) != nullptr ||
             parse_planner_kind(named->text)))
          problems.push_back(
              {options->place, str_format("{}.options: are for registered planners, and kind is {}",
                                          path, to_string(read.kind))});
      }});
  return {[fields](const YamlNode& node, const std::string& path, SaveOptions& into,
                   ConfigProblems& problems) {
            PlannerFields read{{into.planner}, into.registered_planner};
            if (node.find("kind") != nullptr)
              read.registered = {.name = ""};  // options of a policy that this one extends
            fields.read(node, path, read, problems);
            into.planner = static_cast<const PlannerOptions&>(read);
            into.registered_planner = std::move(read.registered);
          },
          [fields](const SaveOptions& options) {
            return fields.show({{options.planner}, options.registered_planner});
          }};
}

struct LoadPlannerFields {
  StrategySpec registered{.name = ""};
};

/// The type of a load planner; only registered ones exist.
Type<StrategySpec> load_planner() {
  const Field<LoadPlannerFields> kind{
      "kind",
      [](const YamlNode& node, const std::string& path, LoadPlannerFields& into,
         ConfigProblems& problems) {
        if (load_planner_names().empty())
          return report_unfit(node, path,
                              "a planner that the program registers for loads, of which there are "
                              "none; leave it out",
                              problems);
        if (read_name(node, path, load_planner_names(), problems)) into.registered.name = node.text;
      },
      [](const LoadPlannerFields& fields) -> std::optional<YamlNode> {
        return YamlNode::string(fields.registered.name);
      }};
  const Type<LoadPlannerFields> fields = section(Schema<LoadPlannerFields>{
      {kind, own_options(&LoadPlannerFields::registered)},
      [](const YamlNode& node, const std::string& path, const LoadPlannerFields& read,
         ConfigProblems& problems) {
        if (read.registered.name.empty() && node.find("kind") == nullptr)
          problems.push_back(
              {node.place, str_format("{}: 'kind' is missing: which planner it is", path)});
      }});
  return {[fields](const YamlNode& node, const std::string& path, StrategySpec& into,
                   ConfigProblems& problems) {
            if (node.kind == YamlNode::Kind::kNull) return void(into = {.name = ""});
            LoadPlannerFields read{into};
            if (node.find("kind") != nullptr) read.registered = {.name = ""};
            fields.read(node, path, read, problems);
            into = std::move(read.registered);
          },
          [fields](const StrategySpec& planner) {
            return planner.name.empty() ? YamlNode{} : fields.show({planner});
          }};
}

Type<AsyncOptions> async() {
  return section(Schema<AsyncOptions>{{
      field("enabled", &AsyncOptions::enabled, flag()),
      field("snapshot", &AsyncOptions::snapshot, choice(kSnapshotNames)),
      field("staging_memory", &AsyncOptions::staging_memory, size(kMiB, 1024 * kTiB)),
      field("when_busy", &AsyncOptions::when_busy, choice(kWhenBusyNames)),
  }});
}

Type<WriteOptions> io() {
  return section(Schema<WriteOptions>{{
      field("engine", &WriteOptions::engine, choice(kIoEngineNames)),
      field("threads", &WriteOptions::threads, integer(1, kMaxThreads)),
      field("files_per_rank", &WriteOptions::files_per_rank, integer(1, kMaxThreads)),
      field("fsync", &WriteOptions::fsync, flag()),
      field("checksums", &WriteOptions::checksums, flag()),
      field("page_aligned", &WriteOptions::page_aligned, flag()),
  }});
}

bool needs_long_form(const StrategySpec& strategy) {
  return strategy.version || !strategy.options.empty();
}

/// The field `strategy: NAME`, short for `backend: {name: NAME}`, which is the printed form.
/// Options is SaveOptions or LoadOptions.
template <typename Options>
Field<Options> strategy(const std::string& expected) {
  const Type<std::string> name = text(expected);
  return {"strategy",
          [name](const YamlNode& node, const std::string& path, Options& into,
                 ConfigProblems& problems) {
            into.strategy =
                Options().strategy;  // an extended policy may have options of another strategy
            name.read(node, path, into.strategy.name, problems);
          },
          [name](const Options& options) {
            return needs_long_form(options.strategy)
                       ? std::nullopt
                       : std::optional(name.show(options.strategy.name));
          }};
}

Type<StrategySpec> strategy_spec(const std::string& expected) {
  const Type<int> version = integer(1, 1'000'000);
  const Field<StrategySpec> optional_version{
      "version",
      [version](const YamlNode& node, const std::string& path, StrategySpec& into,
                ConfigProblems& problems) {
        version.read(node, path, into.version.emplace(1), problems);
      },
      [version](const StrategySpec& strategy) {
        return strategy.version ? std::optional(version.show(*strategy.version)) : std::nullopt;
      }};
  const Field<StrategySpec> options{
      "options",
      [](const YamlNode& node, const std::string& path, StrategySpec& into,
         ConfigProblems& problems) {
        if (node.kind == YamlNode::Kind::kMap)
          into.options = OwnOptions(with_safe_texts(node));
        else if (node.kind != YamlNode::Kind::kNull)
          report_unfit(node, path, "a mapping of the strategy's own options", problems);
      },
      [](const StrategySpec& strategy) {
        return strategy.options.empty() ? std::nullopt : std::optional(strategy.options.tree());
      }};
  return section(Schema<StrategySpec>{
      {field("name", &StrategySpec::name, text(expected)), optional_version, options}});
}

template <typename Options>
Field<Options> backend(const std::string& expected) {
  const Type<StrategySpec> type = strategy_spec(expected);
  return {"backend",
          [type](const YamlNode& node, const std::string& path, Options& into,
                 ConfigProblems& problems) {
            if (node.find("name") != nullptr) into.strategy = Options().strategy;
            type.read(node, path, into.strategy, problems);
          },
          [type](const Options& options) {
            return needs_long_form(options.strategy) ? std::optional(type.show(options.strategy))
                                                     : std::nullopt;
          }};
}

template <typename Options>
void check_one_form(const YamlNode& node, const std::string& path, const Options&,
                    ConfigProblems& problems) {
  const YamlNode* const backend = node.find("backend");
  if (backend != nullptr && node.find("strategy") != nullptr)
    problems.push_back(
        {backend->place, path + ": strategy and backend say the same thing; keep one of them"});
}

/// The type of a prefix of keys, or null for none.
Type<std::string> separation_hint() {
  const Type<std::string> prefix = text("a prefix of keys, or null");
  return {[prefix](const YamlNode& node, const std::string& path, std::string& into,
                   ConfigProblems& problems) {
            if (node.kind == YamlNode::Kind::kNull) return into.clear();
            prefix.read(node, path, into, problems);
            if (const auto problem = problem_of_separation_hint(into))
              problems.push_back({node.place, str_format("{}: {}", path, *problem)});
          },
          [prefix](const std::string& value) {
            return value.empty() ? YamlNode{} : prefix.show(value);
          }};
}

Field<SaveOptions> planner_field() {
  const Type<SaveOptions> type = planner();
  return {"planner", type.read,
          [type](const SaveOptions& options) { return std::optional(type.show(options)); }};
}

Type<std::vector<FindingCode>> error_on() {
  return list_of(choice(kFindingCodeNames), "a list of codes, for example [no-effect]");
}

Type<SaveOptions> save() {
  return section(Schema<SaveOptions>{
      {
          strategy<SaveOptions>("the name of a strategy"),
          backend<SaveOptions>("the name of a strategy"),
          field("compat", &SaveOptions::compat, choice(kCompatNames)),
          field("flattened", &SaveOptions::flattened, choice(kFlattenedFormNames)),
          field("flatten", &SaveOptions::flatten, flag()),
          planner_field(),
          field("parallel", &SaveOptions::parallel, parallel_save()),
          field("async", &SaveOptions::async, async()),
          field("separation_hint", &SaveOptions::separation_hint, separation_hint()),
          field("io", &SaveOptions::io, io()),
          field("timeout", &SaveOptions::timeout, duration()),
          field("integrity", &SaveOptions::integrity, choice(kIntegrityNames)),
          field("report", &SaveOptions::report, flag()),
          field("check_replicas", &SaveOptions::check_replicas, choice(kCheckReplicasNames)),
          field("error_on", &SaveOptions::error_on, error_on()),
      },
      check_one_form<SaveOptions>});
}

Type<RenameRule> rename_rule() {
  Type<std::string> replacement = text("the text that replaces it");
  replacement.read = [](const YamlNode& node, const std::string& path, std::string& into,
                        ConfigProblems& problems) {
    if (node.kind == YamlNode::Kind::kText)
      into = node.text;  // may be empty: the match is removed
    else
      report_unfit(node, path, "the text that replaces the match", problems);
  };
  return section(Schema<RenameRule>{
      {field("from", &RenameRule::from, text("a regular expression")),
       field("to", &RenameRule::to, replacement)},
      [](const YamlNode& node, const std::string& path, const RenameRule& rule,
         ConfigProblems& problems) {
        for (const char* const name : {"from", "to"}) {
          if (node.find(name) == nullptr)
            problems.push_back(
                {node.place,
                 str_format("{}: '{}' is missing; a rule is {{from: REGEX, to: REPLACEMENT}}", path,
                            name)});
        }
        if (rule.from.empty()) return;  // already reported
        if (const auto problem = problem_of(rule))
          problems.push_back({node.place, str_format("{}: {}", path, *problem)});
      }});
}

/// Returns "{keys: PATTERN, when_resharded: error, keep, reinit, drop or gather}".
template <typename Choice, std::size_t Count>
std::string form_of_rule(const char* name, const EnumNames<Choice, Count>& choices) {
  std::string text = str_format("{{keys: PATTERN, {}: ", name);
  for (std::size_t i = 0; i < Count; ++i)
    text += std::string(i == 0          ? ""
                        : i + 1 < Count ? ", "
                                        : " or ") +
            std::string(choices[i].second);
  return text + "}";
}

/// The type of a list of such rules.
template <typename Rule, typename Choice, std::size_t Count>
Type<std::vector<Rule>> rules_of_keys(const char* name, Choice Rule::*member,
                                      const EnumNames<Choice, Count>& choices) {
  const Type<Rule> rule = section(Schema<Rule>{
      {field("keys", &Rule::keys, text("a pattern of keys")), field(name, member, choice(choices))},
      [name, &choices](const YamlNode& node, const std::string& path, const Rule&,
                       ConfigProblems& problems) {
        for (const char* const due : {"keys", name}) {
          if (node.find(due) != nullptr) continue;
          problems.push_back({node.place, str_format("{}: '{}' is missing; a rule is {}", path, due,
                                                     form_of_rule(name, choices))});
        }
      }});
  return list_of(rule, "a list of rules " + form_of_rule(name, choices));
}

/// The type of NAME=VALUE.
Type<std::string> setting() {
  const Type<std::string> any = text("NAME=VALUE");
  Type<std::string> type = any;
  type.read = [any](const YamlNode& node, const std::string& path, std::string& into,
                    ConfigProblems& problems) {
    const std::size_t equals = node.text.find('=');
    if (node.kind == YamlNode::Kind::kText && (equals == 0 || equals == std::string::npos))
      return report_unfit(node, path, "NAME=VALUE", problems);
    any.read(node, path, into, problems);
  };
  return type;
}

/// The type of `map: {name: NAME}`, for which `map: NAME` is short.
Type<KeyMapOptions> key_map() {
  const Type<std::string> name = text("the name of a map, a file, or auto");
  const Type<KeyMapOptions> both = section(Schema<KeyMapOptions>{{
      field("name", &KeyMapOptions::name, name),
      field("set", &KeyMapOptions::set,
            list_of(setting(), "a list, for example [vocab_size=32000]")),
  }});
  return {[name, both](const YamlNode& node, const std::string& path, KeyMapOptions& into,
                       ConfigProblems& problems) {
            into = {};
            if (node.kind == YamlNode::Kind::kText)
              name.read(node, path, into.name, problems);
            else
              both.read(node, path, into, problems);
          },
          [name, both](const KeyMapOptions& map) {
            if (map == KeyMapOptions()) return YamlNode{};
            return map.set.empty() ? name.show(map.name) : both.show(map);
          }};
}

/// An older spelling of `verify: sha256`, which is not kept.
Field<LoadOptions> verify_integrity() {
  return {"verify_integrity",
          [](const YamlNode& node, const std::string& path, LoadOptions& into,
             ConfigProblems& problems) {
            bool wanted = false;
            flag().read(node, path, wanted, problems);
            if (wanted) into.verify = Verify::kSha256;
          },
          [](const LoadOptions&) { return std::optional<YamlNode>(); }};
}

Type<LoadOptions> load() {
  return section(Schema<LoadOptions>{
      {
          strategy<LoadOptions>("the name of a strategy, or auto"),
          backend<LoadOptions>("the name of a strategy"),
          field("strict", &LoadOptions::strict, choice(kStrictNames)),
          field("missing", &LoadOptions::missing,
                rules_of_keys("action", &MissingRule::action, kWhenMissingNames)),
          field("allow_partial_load", &LoadOptions::allow_partial_load, flag()),
          field("parallel", &LoadOptions::parallel, parallel_load()),
          field("allow_shape_mismatch", &LoadOptions::allow_shape_mismatch,
                list_of(text("a pattern of keys"),
                        "a list of patterns, for example [\"*.word_embeddings.weight\"]")),
          field("allow_truncation", &LoadOptions::allow_truncation,
                list_of(text("a pattern of keys"),
                        "a list of patterns, for example [\"*.word_embeddings.weight\"]")),
          field("allow_unloaded", &LoadOptions::allow_unloaded,
                list_of(text("a pattern of keys"),
                        "a list of patterns, for example [\"optimizer.*\"]")),
          field("padding", &LoadOptions::padding, choice(kPaddingNames)),
          field("cast", &LoadOptions::cast, choice(kCastNames)),
          field("planner", &LoadOptions::registered_planner, load_planner()),
          field("map", &LoadOptions::map, key_map()),
          field("rename", &LoadOptions::rename,
                list_of(rename_rule(), "a list of rules {from: REGEX, to: REPLACEMENT}")),
          field("objects", &LoadOptions::objects,
                rules_of_keys("when_resharded", &ObjectRule::when_resharded, kWhenReshardedNames)),
          field("validate_access_integrity", &LoadOptions::validate_access_integrity, flag()),
          field("verify", &LoadOptions::verify, choice(kVerifyNames)),
          verify_integrity(),
          field("engine", &LoadOptions::engine, choice(kReadEngineNames)),
          field("threads", &LoadOptions::threads, integer(1, kMaxThreads)),
          field("staging", &LoadOptions::staging, size(kMiB, kTiB)),
          field("timeout", &LoadOptions::timeout, duration()),
          field("error_on", &LoadOptions::error_on, error_on()),
      },
      check_one_form<LoadOptions>});
}

Type<Retention> retention() {
  return section(Schema<Retention>{{
      field("keep_last", &Retention::keep_last, integer<std::uint64_t>(0, kMaxKept)),
      field("keep_every", &Retention::keep_every, integer<std::uint64_t>(0, kMaxKept)),
      field("keep", &Retention::keep,
            list_of(text("a pattern of iterations"),
                    "a list of patterns, for example [\"2000\", \"15*\"]")),
  }});
}

Type<ResumeOptions> resume() {
  return section(Schema<ResumeOptions>{{
      field("allow_dropped_keys", &ResumeOptions::allow_dropped_keys, flag()),
  }});
}

/// The version of this schema, which tells later ones apart; there is one so far, and it is not
/// kept.
Field<Policy> policy_version() {
  return {
      "version",
      [](const YamlNode& node, const std::string& path, Policy&, ConfigProblems& problems) {
        std::int64_t version = kPolicyVersion;
        integer64(1, INT32_MAX).read(node, path, version, problems);
        if (version == kPolicyVersion) return;
        problems.push_back(
            {node.place,
             str_format("{}: this release reads policies of version 1, not of version {}", path,
                        version),
             ErrorCode::kUnsupported});
      },
      [](const Policy&) { return std::optional(YamlNode::plain(std::to_string(kPolicyVersion))); }};
}

/// The policy to begin with, which is read by the caller.
Field<Policy> policy_extends() {
  return {"extends",
          [](const YamlNode& node, const std::string& path, Policy&, ConfigProblems& problems) {
            std::string name;
            text("the name of a policy that comes with dckpt, or a file")
                .read(node, path, name, problems);
          },
          [](const Policy&) { return std::optional<YamlNode>(); }};
}

void check_version_is_given(const YamlNode& node, const std::string&, const Policy&,
                            ConfigProblems& problems) {
  if (node.find("version") == nullptr)
    problems.push_back(
        {node.place, "the version of the schema is missing; begin with the line 'version: 1'"});
}

}  // namespace

const config::Type<Policy>& policy_type() {
  static const Type<Policy> type =
      section(Schema<Policy>{{
                                 policy_version(),
                                 policy_extends(),
                                 field("save", &Policy::save, save()),
                                 field("load", &Policy::load, load()),
                                 field("retention", &Policy::retention, retention()),
                                 field("resume", &Policy::resume, resume()),
                             },
                             check_version_is_given});
  return type;
}

TextPlace place_of(const YamlNode& root, std::string_view field) {
  const YamlNode* node = &root;
  for (const std::string& name : split(field, '.')) {
    const YamlNode* next = node->find(name);
    if (next == nullptr && name == "strategy") next = node->find("backend");  // its long form
    if (next == nullptr) break;
    node = next;
  }
  return node->place;
}

}  // namespace dckpt
