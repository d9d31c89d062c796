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

constexpr int kMaxThreads = 1024;
constexpr std::uint64_t kMaxKept = 1'000'000'000'000;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kTiB = std::uint64_t{1} << 40;
constexpr EnumNames<bool, 2> kIntegrityNames{{{false, "none"}, {true, "sha256"}}};

Type<ParallelSaveOptions> parallel_save() {
  static const Schema<ParallelSaveOptions> schema{
      {field("enabled", &ParallelSaveOptions::enabled, flag()),
       hidden<ParallelSaveOptions>("exchange", [](const Input& in, ParallelSaveOptions&) {
         in.problems.push_back(
             {in.node.place,
              in.path + " does not apply to saves, in which ranks exchange no data; remove it "
                        "(load.parallel.exchange is the option for loads)"});
       })}};
  return section(schema);
}

Type<ParallelOptions> parallel_load() {
  static const Schema<ParallelOptions> schema{{
      field("enabled", &ParallelOptions::enabled, flag()),
      field("exchange", &ParallelOptions::exchange, choice(kExchangeNames)),
  }};
  return section(schema);
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

/// The options of a strategy or planner of its own, which reads them itself.
Field<StrategySpec> own_options(const char* expected) {
  const auto options = Type<OwnOptions>(Form{.kind = Kind::kMapping, .expected = expected})
                           .reading([](const Form& form, const Input& in, OwnOptions& into) {
                             if (in.node.kind == YamlNode::Kind::kMap)
                               into = OwnOptions(with_safe_texts(in.node));
                             else if (in.node.kind != YamlNode::Kind::kNull)
                               in.unfit(form.expected);
                           })
                           .showing([](const OwnOptions& shown) { return shown.tree(); });
  return optional_field("options", &StrategySpec::options, options);
}

Field<StrategySpec> planner_options() {
  return own_options("a mapping of the planner's own options");
}

/// Returns the built-in kinds, and the names of registered planners.
std::vector<std::string> names_of(const std::vector<PlannerName>& registered) {
  std::vector<std::string> names;
  for (const auto& [kind, name] : kPlannerKindNames) names.emplace_back(name);
  for (const PlannerName& planner : registered) names.push_back(planner.name);
  return names;
}

/// The field `kind` of save.planner: a built-in kind, or the name of a registered planner.
Field<SaveOptions> planner_kind() {
  return whole("kind",
               Type<SaveOptions>(Form{.kind = Kind::kText})
                   .reading([](const Input& in, SaveOptions& into) {
                     if (!read_name(in, names_of(save_planner_names()))) return;
                     const PlannerName* const registered =
                         find_planner_name(save_planner_names(), in.node.text);
                     into.planner.kind = registered != nullptr ? registered->rules
                                                               : *parse_planner_kind(in.node.text);
                     into.registered_planner.name = registered != nullptr ? in.node.text : "";
                   })
                   .showing([](const SaveOptions& save) {
                     const std::string& registered = save.registered_planner.name;
                     return registered.empty()
                                ? YamlNode::plain(std::string(to_string(save.planner.kind)))
                                : YamlNode::string(registered);
                   }));
}

/// The field `dedup`, whose default depends on the kind.
Field<PlannerOptions> dedup() {
  return whole("dedup",
               Type<PlannerOptions>(choice(kDedupNames).form)
                   .reading([](const Input& in, PlannerOptions& into) {
                     choice(kDedupNames).read(in, into.dedup.emplace(into.effective_dedup()));
                   })
                   .showing([](const PlannerOptions& options) {
                     return choice(kDedupNames).show(options.effective_dedup());
                   }));
}

/// The type of `planner`: its kind or registered name, and the options of all planners.
Type<SaveOptions> planner() {
  const auto of_all = [](const Field<PlannerOptions>& field) {
    return inside(&SaveOptions::planner, field);
  };
  static const Schema<SaveOptions> schema{
      {planner_kind(), inside(&SaveOptions::registered_planner, planner_options()), of_all(dedup()),
       of_all(field("cache", &PlannerOptions::cache, flag())),
       hidden<SaveOptions>("keep_plans",
                           [](const Input& in, SaveOptions&) {
                             in.problems.push_back(
                                 {in.node.place, in.path +
                                                     " is gone: each job plans its first save "
                                                     "itself; remove this field"});
                           }),
       of_all(field("validate", &PlannerOptions::validate, flag())),
       of_all(field("split_replicas", &PlannerOptions::split_replicas, flag()))},
      [](const Input& in, const SaveOptions& read) {
        const YamlNode* const options = in.node.find("options");
        const YamlNode* const named = in.node.find("kind");
        if (options != nullptr && options->kind == YamlNode::Kind::kMap &&
            read.registered_planner.name.empty() &&
            (named == nullptr || find_planner_name(save_planner_names(), named->text) != nullptr ||
             parse_planner_kind(named->text)))
          in.problems.push_back(
              {options->place, str_format("{}.options: are for registered planners, and kind is {}",
                                          in.path, to_string(read.planner.kind))});
      }};
  return section(schema).reading([](const Form& form, const Input& in, SaveOptions& into) {
    if (in.node.find("kind") != nullptr)
      into.registered_planner = {.name = ""};  // options of a policy that this one extends
    read_section(*form.section, in, &into);
  });
}

/// The type of a load planner; only registered ones exist.
Type<StrategySpec> load_planner() {
  const auto kind = Type<std::string>(Form{.kind = Kind::kText})
                        .reading([](const Input& in, std::string& into) {
                          if (read_name(in, load_planner_names())) into = in.node.text;
                        })
                        .showing([](const std::string& name) { return YamlNode::string(name); });
  static const Schema<StrategySpec> schema{
      {field("kind", &StrategySpec::name, kind), planner_options()},
      [](const Input& in, const StrategySpec& read) {
        if (read.name.empty() && in.node.find("kind") == nullptr)
          in.report("'kind' is missing: which planner it is");
      }};
  Type<StrategySpec> type = section(schema);
  type.form.or_null = true;
  return type
      .reading([](const Form& form, const Input& in, StrategySpec& into) {
        if (in.node.kind == YamlNode::Kind::kNull || in.node.find("kind") != nullptr)
          into = {.name = ""};
        read_section(*form.section, in, &into);
      })
      .showing([](const Form& form, const StrategySpec& planner) {
        return planner.name.empty() ? YamlNode{} : show_section(*form.section, &planner);
      });
}

Type<AsyncOptions> async() {
  static const Schema<AsyncOptions> schema{{
      field("enabled", &AsyncOptions::enabled, flag()),
      field("snapshot", &AsyncOptions::snapshot, choice(kSnapshotNames)),
      field("staging_memory", &AsyncOptions::staging_memory, size(kMiB, 1024 * kTiB)),
      field("when_busy", &AsyncOptions::when_busy, choice(kWhenBusyNames)),
  }};
  return section(schema);
}

Type<WriteOptions> io() {
  static const Schema<WriteOptions> schema{{
      field("engine", &WriteOptions::engine, choice(kIoEngineNames)),
      field("threads", &WriteOptions::threads, integer(1, kMaxThreads)),
      field("files_per_rank", &WriteOptions::files_per_rank, integer(1, kMaxThreads)),
      field("fsync", &WriteOptions::fsync, flag()),
      field("checksums", &WriteOptions::checksums, flag()),
      field("page_aligned", &WriteOptions::page_aligned, flag()),
  }};
  return section(schema);
}

bool needs_long_form(const StrategySpec& strategy) {
  return strategy.version || !strategy.options.empty();
}

/// The field `strategy: NAME`, short for `backend: {name: NAME}`, which is the printed form.
/// Options is SaveOptions or LoadOptions.
template <typename Options>
Field<Options> strategy(const char* expected) {
  return whole_unless(
      "strategy",
      Type<Options>(text(expected).form)
          .reading([](const Form& form, const Input& in, Options& into) {
            into.strategy =
                Options().strategy;  // an extended policy may have options of another strategy
            text(form.expected).read(in, into.strategy.name);
          })
          .showing([](const Options& options) { return YamlNode::string(options.strategy.name); }),
      [](const Options& options) { return needs_long_form(options.strategy); });
}

template <typename Options>
Field<Options> backend() {
  static const Schema<StrategySpec> schema{
      {field("name", &StrategySpec::name, text("the name of a strategy")),
       optional_field("version", &StrategySpec::version, optional_of(integer(1, 1'000'000))),
       own_options("a mapping of the strategy's own options")}};
  return whole_unless("backend",
                      Type<Options>(section_form(schema))
                          .reading([](const Form& form, const Input& in, Options& into) {
                            if (in.node.find("name") != nullptr) into.strategy = Options().strategy;
                            read_section(*form.section, in, &into.strategy);
                          })
                          .showing([](const Form& form, const Options& options) {
                            return show_section(*form.section, &options.strategy);
                          }),
                      [](const Options& options) { return !needs_long_form(options.strategy); });
}

void check_one_form(const Input& in) {
  const YamlNode* const backend = in.node.find("backend");
  if (backend != nullptr && in.node.find("strategy") != nullptr)
    in.of(*backend).report("strategy and backend say the same thing; keep one of them");
}

/// The type of a prefix of keys, or null for none.
Type<std::string> separation_hint() {
  Type<std::string> prefix = text("a prefix of keys, or null");
  prefix.form.or_null = true;
  return prefix
      .reading([](const Form& form, const Input& in, std::string& into) {
        if (in.node.kind == YamlNode::Kind::kNull) return into.clear();
        text(form.expected).read(in, into);
        if (const auto problem = problem_of_separation_hint(into)) in.report(*problem);
      })
      .showing([](const std::string& value) {
        return value.empty() ? YamlNode{} : YamlNode::string(value);
      });
}

Type<std::vector<FindingCode>> error_on() {
  return list_of(choice(kFindingCodeNames), "a list of codes, for example [no-effect]");
}

Type<SaveOptions> save() {
  static const Schema<SaveOptions> schema{
      {
          strategy<SaveOptions>("the name of a strategy"),
          backend<SaveOptions>(),
          field("compat", &SaveOptions::compat, choice(kCompatNames)),
          field("flattened", &SaveOptions::flattened, choice(kFlattenedFormNames)),
          field("flatten", &SaveOptions::flatten, flag()),
          whole("planner", planner()),
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
      [](const Input& in, const SaveOptions&) { check_one_form(in); }};
  return section(schema);
}

Type<RenameRule> rename_rule() {
  const Type<std::string> replacement =
      text("the text that replaces the match")
          .reading([](const Form& form, const Input& in, std::string& into) {
            if (in.node.kind == YamlNode::Kind::kText)
              into = in.node.text;  // may be empty: the match is removed
            else
              in.unfit(form.expected);
          });
  static const Schema<RenameRule> schema{
      {required(field("from", &RenameRule::from, text("a regular expression"))),
       required(field("to", &RenameRule::to, replacement))},
      [](const Input& in, const RenameRule& rule) {
        if (rule.from.empty()) return;  // already reported
        if (const auto problem = problem_of(rule)) in.report(*problem);
      },
      "; a rule is {from: REGEX, to: REPLACEMENT}"};
  return section(schema);
}

/// The type of a list of rules {keys: PATTERN, `name`: error, keep or drop}.
template <typename Rule, typename Choice>
Type<std::vector<Rule>> rules_of_keys(const char* name, Choice Rule::*member,
                                      const Type<Choice>& choices) {
  static const std::string rule =
      str_format("{{keys: PATTERN, {}: {}}}", name, joined(choices.form.names.all(), " or "));
  static const std::string written = "; a rule is " + rule;
  static const std::string expected = "a list of rules " + rule;
  static const Schema<Rule> schema{{required(field("keys", &Rule::keys, text("a pattern of keys"))),
                                    required(field(name, member, choices))},
                                   written.c_str()};
  return list_of(section(schema), expected.c_str());
}

/// The type of NAME=VALUE.
Type<std::string> setting() {
  return text("NAME=VALUE").reading([](const Form& form, const Input& in, std::string& into) {
    const std::size_t equals = in.node.text.find('=');
    if (in.node.kind == YamlNode::Kind::kText && (equals == 0 || equals == std::string::npos))
      return in.unfit(form.expected);
    text(form.expected).read(in, into);
  });
}

/// The type of `map: {name: NAME}`, for which `map: NAME` is short.
Type<KeyMapOptions> key_map() {
  const Type<std::string> name = text("the name of a map, a file, or auto");
  static const Schema<KeyMapOptions> schema{{
      field("name", &KeyMapOptions::name, name),
      field("set", &KeyMapOptions::set,
            list_of(setting(), "a list, for example [vocab_size=32000]")),
  }};
  const Form either =
      with_parts({.kind = Kind::kEither, .or_null = true}, {name.form, section_form(schema)});
  return Type<KeyMapOptions>(either)
      .reading([](const Form& form, const Input& in, KeyMapOptions& into) {
        into = {};
        const Form& one = form.parts[in.node.kind == YamlNode::Kind::kText ? 0 : 1];
        one.read(in, one.section == nullptr ? static_cast<void*>(&into.name) : &into);
      })
      .showing([](const Form& form, const KeyMapOptions& map) {
        if (map == KeyMapOptions()) return YamlNode{};
        const Form& both = form.parts[1];
        return map.set.empty() ? YamlNode::string(map.name) : both.show(&map);
      });
}

Type<std::vector<std::string>> patterns_of_keys(const char* expected) {
  return list_of(text("a pattern of keys"), expected);
}

Type<LoadOptions> load() {
  static const Schema<LoadOptions> schema{
      {
          strategy<LoadOptions>("the name of a strategy, or auto"),
          backend<LoadOptions>(),
          field("strict", &LoadOptions::strict, choice(kStrictNames)),
          field("missing", &LoadOptions::missing,
                rules_of_keys("action", &MissingRule::action, choice(kWhenMissingNames))),
          field("allow_partial_load", &LoadOptions::allow_partial_load, flag()),
          field("parallel", &LoadOptions::parallel, parallel_load()),
          field("allow_shape_mismatch", &LoadOptions::allow_shape_mismatch,
                patterns_of_keys("a list of patterns, for example [\"*.word_embeddings.weight\"]")),
          field("allow_truncation", &LoadOptions::allow_truncation,
                patterns_of_keys("a list of patterns, for example [\"*.word_embeddings.weight\"]")),
          field("allow_unloaded", &LoadOptions::allow_unloaded,
                patterns_of_keys("a list of patterns, for example [\"optimizer.*\"]")),
          field("padding", &LoadOptions::padding, choice(kPaddingNames)),
          field("cast", &LoadOptions::cast, choice(kCastNames)),
          field("planner", &LoadOptions::registered_planner, load_planner()),
          field("map", &LoadOptions::map, key_map()),
          field("rename", &LoadOptions::rename,
                list_of(rename_rule(), "a list of rules {from: REGEX, to: REPLACEMENT}")),
          field("objects", &LoadOptions::objects,
                rules_of_keys("when_resharded", &ObjectRule::when_resharded,
                              choice(kWhenReshardedNames))),
          field("validate_access_integrity", &LoadOptions::validate_access_integrity, flag()),
          field("verify", &LoadOptions::verify, choice(kVerifyNames)),
          hidden<LoadOptions>("verify_integrity",  // an older spelling of `verify: sha256`
                              [](const Input& in, LoadOptions& into) {
                                bool wanted = false;
                                flag().read(in, wanted);
                                if (wanted) into.verify = Verify::kSha256;
                              }),
          field("engine", &LoadOptions::engine, choice(kReadEngineNames)),
          field("threads", &LoadOptions::threads, integer(1, kMaxThreads)),
          field("staging", &LoadOptions::staging, size(kMiB, kTiB)),
          field("timeout", &LoadOptions::timeout, duration()),
          field("error_on", &LoadOptions::error_on, error_on()),
      },
      [](const Input& in, const LoadOptions&) { check_one_form(in); }};
  return section(schema);
}

Type<Retention> retention() {
  static const Schema<Retention> schema{{
      field("keep_last", &Retention::keep_last, integer<std::uint64_t>(0, kMaxKept)),
      field("keep_every", &Retention::keep_every, integer<std::uint64_t>(0, kMaxKept)),
      field("keep", &Retention::keep,
            list_of(text("a pattern of iterations"),
                    "a list of patterns, for example [\"2000\", \"15*\"]")),
  }};
  return section(schema);
}

Type<ResumeOptions> resume() {
  static const Schema<ResumeOptions> schema{{
      field("allow_dropped_keys", &ResumeOptions::allow_dropped_keys, flag()),
  }};
  return section(schema);
}

}  // namespace

const config::Type<Policy>& policy_type() {
  static const Schema<Policy> schema{
      {
          Field<Policy>(version_field("policies")),
          Field<Policy>(extends_field("the name of a policy that comes with dckpt, or a file")),
          field("save", &Policy::save, save()),
          field("load", &Policy::load, load()),
          field("retention", &Policy::retention, retention()),
          field("resume", &Policy::resume, resume()),
      },
      [](const Input& in, const Policy&) { require_version(in); }};
  static const Type<Policy> type = section(schema);
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
