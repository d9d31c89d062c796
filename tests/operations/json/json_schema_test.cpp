#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>

#include "configs/maps/key_map_schema.h"
#include "configs/policy/policy_schema.h"
#include "dist_checkpointing/save/report_file.h"
#include "dist_checkpointing/save/save_report.h"
#include "mapping/base/text.h"
#include "operations/json/compare_fields.h"
#include "operations/json/config_fields.h"
#include "operations/json/convert_fields.h"
#include "operations/json/explain_fields.h"
#include "operations/json/inspect_fields.h"
#include "operations/json/transfer_fields.h"
#include "operations/json/upkeep_fields.h"
#include "operations/json/verify_fields.h"
#include "strategies/formats/json/json.h"
#include "tests/operations/json/config_sentences.h"
#include "tests/operations/json/schema_of.h"
#include "tests/operations/json/schema_of_form.h"

// docs/schemas has what the lists of fields say. To write the pages anew after a change:
//   DCKPT_WRITE_SCHEMAS=1 json_schema_test
namespace dckpt::json_schema_test {
namespace {

using json_schema::Page;

constexpr std::size_t kColumns = 100;

/// Returns JSON with a line for each member of what does not fit in one line.
std::string pretty(const Value& value, std::size_t indent = 0, std::size_t before = 0) {
  const std::string in_one_line = to_json(value);
  const bool is_dict = value.is_dict();
  if (before + in_one_line.size() < kColumns || !(is_dict || value.is(Value::Kind::kList)))
    return in_one_line;
  const std::string space(indent + 2, ' ');
  std::string text = is_dict ? "{\n" : "[\n";
  std::size_t column = 0;
  const auto add = [&](const std::string& entry, bool fills_lines) {
    if (column != 0) text += ",";
    if (column != 0 && fills_lines && column + entry.size() + 3 <= kColumns) {
      text += " " + entry;
      column += entry.size() + 2;
      return;
    }
    text += (column != 0 ? "\n" : "") + space + entry;
    column = space.size() + entry.size();
  };
  if (is_dict) {
    for (const auto& [key, member] : value.as_dict()) {
      const std::string name = to_json(key) + ": ";
      add(name + pretty(member, indent + 2, indent + 2 + name.size()), false);
    }
  } else {
    for (const Value& member : value.items())
      add(pretty(member, indent + 2, indent + 2), !member.is_dict());
  }
  return text + "\n" + std::string(indent, ' ') + (is_dict ? "}" : "]");
}

std::string content_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Compares a page with docs/schemas.
void expect_page(const std::string& name, const Value& page) {
  const std::string file = "docs/schemas/" + name + ".schema.json";
  const std::string text = pretty(page) + "\n";
  if (std::getenv("DCKPT_WRITE_SCHEMAS") != nullptr) std::ofstream(file) << text;
  EXPECT_EQ(text, content_of(file)) << "the fields of " << name << " have changed: write " << file
                                    << " by DCKPT_WRITE_SCHEMAS=1 json_schema_test";
}

template <HasJsonRecord Report>
void expect_page(const std::string& name, const std::string& about, const std::string& title = "") {
  Page page;
  const Value schema = page.object<Report>();
  expect_page(name, page.whole(title.empty() ? "dckpt " + name + " --json" : title, about, schema));
}

Value one_of(std::vector<Value> forms) {
  return Value::dict({{"oneOf", Value::list(std::move(forms))}});
}

/// Adds the fields that dckpt_report.json has.
template <HasFields Report>
Value report_object(Page& page, Value properties) {
  for_each_field<Report>([&](const auto& field) {
    using Type = std::remove_cvref_t<decltype(std::declval<Report>().*field.member)>;
    if constexpr (std::constructible_from<Value, Type>) {
      if (field.name != nullptr)
        properties[field.name] = Page::described(field.about, page.of<Type>());
    }
  });
  return properties;
}

Value object_with(const Value& properties) {
  ValueList required;
  for (const auto& [name, schema] : properties.as_dict()) required.push_back(name);
  return Value::dict({{"type", "object"},
                      {"required", Value::list(std::move(required))},
                      {"additionalProperties", false},
                      {"properties", properties}});
}

Value timing(Page& page) {
  Value phases = Value::dict();
  for (const auto& [phase, member] : kSavePhases)
    phases[Value(name_of(kPhaseNames, phase))] = page.reference("phase", [&] {
      return Page::described("What one phase took, over all ranks.",
                             object_with(report_object<PhaseReport>(page, Value::dict())));
    });
  Value properties = Value::dict(
      {{"version", Page::described("Version of the report.", Value::dict({{"const", 1}}))}});
  properties = report_object<SaveReport>(page, properties);
  properties["phases"] =
      Page::described("Phases of the save. Copy and sync are parts of write.", object_with(phases));
  return page.reference("timing", [&] {
    return Page::described("Report of the save (--timing), as kept in dckpt_report.json.",
                           object_with(properties));
  });
}

TEST(JsonSchema, OfInspect) {
  Page page;
  const Value checkpoint = page.of<InspectedCheckpoint>();
  expect_page("inspect",
              page.whole("dckpt inspect --json",
                         "Contents of a checkpoint, or with --timing the report of its save. For a "
                         "training root there are also resume, iterations and unfinished.",
                         one_of({checkpoint, timing(page)})));
}

TEST(JsonSchema, OfVerify) {
  Page page;
  const Value report = page.of<VerifyReport>();
  expect_page("verify", page.whole("dckpt verify --json",
                                   "Report of a checkpoint, or with --all of every checkpoint of a "
                                   "training root.",
                                   one_of({report, page.of<RootVerification>()})));
}

TEST(JsonSchema, OfReportsOfOneForm) {
  expect_page<Explanation>("explain",
                           "Where the bytes of one key are, how it is cut, and what belongs to "
                           "it.");
  expect_page<DiffReport>("diff", "Differences between two checkpoints A and B.");
  expect_page<Digests>("digest",
                       "SHA-256 of whole tensors and of objects, independent of format and "
                       "sharding.");
  expect_page<StatsReport>("stats", "Statistics of the elements of tensors.");
  expect_page<ConvertedCheckpoint>(
      "convert", "What a conversion did, or with --dry-run or --explain what it would do.");
  expect_page<WorkerSurvey>(
      "workers", "What the processes of a shared conversion (convert --workers) have done.");
  expect_page<Removal>("remove", "What was removed from a checkpoint, or with --dry-run would be.");
  expect_page<TreatedRoot>("doctor",
                           "What is in a training root, and what was or would be done about it. "
                           "All of it is as it was before, except resume.",
                           "dckpt doctor --json, dckpt prune --json");
  expect_page<FleetResult>("fleet",
                           "A line of the output: the result of one checkpoint. Lines come in the "
                           "order in which checkpoints are done.",
                           "dckpt verify --fleet --json");
  expect_page<ListedFormats>("formats", "Formats that can be read and written.");
  expect_page<TransferPlan>("transfer_plan",
                            "Moves of tensors from the ranks that hold them to the ranks that want "
                            "them (to_json of a TransferPlan).",
                            "dckpt transfer plan");
}

TEST(JsonSchema, OfConfigWithTheFormsOfPoliciesAndMaps) {
  Page page;
  const Value check = page.reference("check", [&] { return Page().of<CheckedConfig>(); });
  const auto shown = [&](const char* name, const config::Form& form,
                         std::span<const json_schema::Sentence> sentences) {
    json_schema::FormPage forms(sentences);
    const Value schema = page.reference(name, [&] { return forms.whole(form); });
    EXPECT_THAT(forms.mistakes(), ::testing::IsEmpty()) << "of " << name;
    return schema;
  };
  const Value policy = shown("policy", policy_type().form, json_schema::kPolicySentences);
  const Value map = shown("map", key_map_type().form, json_schema::kMapSentences);
  expect_page("config", page.whole("dckpt config check --json, dckpt config show --json",
                                   "Problems of a policy or map (check), or its fields (show).",
                                   one_of({check, policy, map})));
}

}  // namespace
}  // namespace dckpt::json_schema_test
