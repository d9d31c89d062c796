#include "migration/maps/findings/map_findings.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "configs/maps/key_map.h"
#include "configs/maps/row_remarks.h"
#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::size_t kShownDropped = 20;

std::string name_of_keys(const KeyMap& map, KeyNames names, MegatronLayout layout) {
  return names == KeyNames::kHf ? std::string("Hugging Face's")
         : !map.is_megatrons()
             ? str_format("{}'s", map.left)
             : str_format("Megatron's ({})", std::string(name_of(kMegatronLayoutNames, layout)));
}

void describe_keys(const KeyMap& map, const MapReport& report, const MapNumbers& numbers,
                   DType values, Findings& findings) {
  const MappedKeys& keys = report.keys;
  findings.push_back(
      {FindingCode::kKeysChanged,
       str_format("keys: {} became {}, by the map {}",
                  name_of_keys(map, keys.sides.from, keys.sides.from_layout),
                  name_of_keys(map, keys.sides.to, keys.sides.to_layout), quote(report.map))});
  const auto padding = [](std::uint64_t elements) {
    return elements == 0 ? std::string()
                         : str_format(" and {} that pad the vocabulary", grouped(elements));
  };
  findings.push_back({FindingCode::kParameters,
                      str_format("parameters: {}{} before, {}{} after",
                                 grouped(keys.counts.elements_in - keys.counts.padding_in),
                                 padding(keys.counts.padding_in),
                                 grouped(keys.counts.elements_out - keys.counts.padding_out),
                                 padding(keys.counts.padding_out))});
  for (const std::string& number : numbers.overridden())
    findings.push_back({FindingCode::kNumberOverridden, "numbers: " + number});
  if (report.dequantized > 0)
    findings.push_back({FindingCode::kValuesRounded,
                        str_format("dequantized: {} {} now, on the way back, too; a round trip "
                                   "compares these values",
                                   counted(report.dequantized, "weight is", "weights are"),
                                   std::string(name_of(kMapCastNames, values)))});
  if (keys.sides.prefix.is_of_text)
    findings.push_back({FindingCode::kKeysChanged,
                        str_format("only the language model is mapped, whose keys have {}",
                                   quote(keys.sides.prefix.stored))});
  if (keys.counts.mtp_layers == 0 && numbers.is_true("mtp_num_layers"))
    findings.push_back(
        {FindingCode::kStateMissing, "there are no layers for multi-token prediction, although " +
                                         numbers.describe("mtp_num_layers")});
  if (keys.counts.state_elements > 0)
    findings.push_back(
        {FindingCode::kFormChanged, str_format("the state of the optimizer goes along: {}",
                                               counted(keys.counts.state_elements, "element"))});
  if (keys.sides.to == KeyNames::kHf && keys.counts.padded_rows && !numbers.find("vocab_size"))
    findings.push_back(
        {FindingCode::kVocabularyPadded,
         str_format("the size of the vocabulary is not known: all {} rows are there, padding "
                    "included; give "
                    "it with --set vocab_size=NUMBER, or write {} into config.json",
                    *keys.counts.padded_rows, *keys.counts.padded_rows)});
}

/// Warns if Megatron would not have padded the vocabulary to the rows that are there, so that some
/// of those that are dropped may be of tokens.
void describe_padding(const KeyMap& map, const MappedKeys& keys, const MapNumbers& numbers,
                      Findings& findings) {
  const auto words = numbers.find("vocab_size");
  if (keys.sides.to != KeyNames::kHf || !keys.counts.padded_rows || !words ||
      *words >= *keys.counts.padded_rows)
    return;
  const auto argument = [&](const char* name) -> std::optional<std::int64_t> {
    for (const Value* const values : {&numbers.config().args, &numbers.config().run_config}) {
      const Value* const value = values->find(name);
      if (value != nullptr && value->is_int() && value->as_int() > 0) return value->as_int();
    }
    return std::nullopt;
  };
  const auto divisor = argument("make_vocab_size_divisible_by");
  if (!divisor) return;
  const std::int64_t ranks = argument("tensor_model_parallel_size").value_or(1);
  if (*divisor > *keys.counts.padded_rows || ranks > *keys.counts.padded_rows) return;
  const std::int64_t multiple = *divisor * ranks;
  const std::int64_t padded = (*words + multiple - 1) / multiple * multiple;
  if (padded >= *keys.counts.padded_rows) return;
  findings.push_back(
      {.code = FindingCode::kVocabularyPadded,
       .message = str_format(
           "the vocabulary has {} rows, of which {} are dropped as padding, because {}; but {} "
           "pads {} tokens to {} rows, a multiple of {} (make_vocab_size_divisible_by) × {} "
           "(tensor_model_parallel_size): if the model has more tokens, give their number with "
           "--set "
           "vocab_size=NUMBER",
           *keys.counts.padded_rows, *keys.counts.padded_rows - *words,
           numbers.describe("vocab_size"), map.left_name(), *words, padded, *divisor, ranks),
       .severity = Severity::kWarning});
}

void describe_dropped(const MapReport& report, Findings& findings) {
  for (std::size_t i = 0; i < std::min(report.dropped.size(), kShownDropped); ++i) {
    const AlikeKeys& dropped = report.dropped[i];
    findings.push_back({FindingCode::kKeysDropped,
                        str_format("dropped: {}, as {}", kind_and_count(dropped), dropped.why),
                        dropped.keys});
  }
  if (report.dropped.size() > kShownDropped) {
    Finding more{FindingCode::kKeysDropped,
                 str_format("dropped: {}", counted(report.dropped.size() - kShownDropped,
                                                   "more kind of keys", "more kinds of keys"))};
    for (std::size_t i = kShownDropped; i < report.dropped.size(); ++i)
      more.keys.insert(more.keys.end(), report.dropped[i].keys.begin(),
                       report.dropped[i].keys.end());
    findings.push_back(std::move(more));
  }
  if (report.keys.sides.from == KeyNames::kMegatron && report.keys.sides.to == KeyNames::kHf)
    findings.push_back({FindingCode::kCommonStateLeftOut,
                        "dropped: the common state, which Hugging Face files do not have"});
}

/// Says in one sentence what happened to tensors of the same kind.
void describe_conversions(const MappedKeys& keys, const Metadata& metadata, Findings& findings) {
  std::map<std::pair<FindingCode, std::string>, std::uint64_t> counts;
  for (const auto& [position, conversion] : keys.conversions) {
    const DType from = metadata.tensors[position].properties.dtype;
    std::string what =
        from == conversion.dtype
            ? str_format("{} tensors", to_string(from))
            : str_format("{} tensors became {}", to_string(from), to_string(conversion.dtype));
    if (conversion.add != 0) what += str_format(", plus {}", conversion.add);
    const bool rounded =
        conversion.add != 0 ? conversion.rounded : !comes_back(from, conversion.dtype);
    if (rounded && conversion.add != 0)
      what += ", rounded; they do not come back as they were";
    else if (rounded)
      what += ", rounded; they stay so on the way back, and a round trip compares these values";
    ++counts[{rounded ? FindingCode::kValuesRounded : FindingCode::kValuesCast, what}];
  }
  for (const auto& [what, count] : counts)
    findings.push_back({what.first, str_format("converted: {} {}", grouped(count), what.second)});
}

/// Names the tensors that the setting dtype has not changed.
void describe_dtype(const MappedKeys& keys, std::optional<DType> asked, Findings& findings) {
  for (const AlikeKeys& kept : keys.left.other_types)
    findings.push_back({FindingCode::kValuesNotCast,
                        str_format("not cast: {}, {}", kind_and_count(kept), kept.why), kept.keys});
  if (asked && keys.conversions.empty())
    findings.push_back({FindingCode::kValuesNotCast,
                        str_format("no tensor was cast: {} is {} already",
                                   keys.left.other_types.empty() ? "everything" : "the rest",
                                   std::string(name_of(kMapCastNames, *asked)))});
}

/// Adds remarks on the rows that were used. Keys matter where Megatron's are made, and the order of
/// heads where the names of a side become those of the other. Remarks of one kind are one finding.
void describe_rows(const KeyMap& map, const MappedKeys& keys, Findings& findings) {
  std::map<FindingCode, Finding> by_code;
  const std::set<std::size_t> used(keys.rows.begin(), keys.rows.end());
  for (const std::size_t row : used) {
    for (Finding& remark : row_remarks(map, map.tensors[row])) {
      if (remark.code == FindingCode::kKeysUnknown ? keys.sides.to != KeyNames::kMegatron
                                                   : keys.sides.from == keys.sides.to)
        continue;
      const auto [first, inserted] = by_code.try_emplace(remark.code, remark);
      if (!inserted) first->second.keys.push_back(remark.keys.front());
    }
  }
  for (auto& [code, finding] : by_code) {
    if (finding.keys.size() > 1)
      finding.message += str_format("; so it is with {} (dckpt config check lists all)",
                                    counted(finding.keys.size() - 1, "other key"));
    findings.push_back(std::move(finding));
  }
}

}  // namespace

Findings map_findings(const KeyMap& map, const MapReport& report, const MapNumbers& numbers,
                      const Metadata& source, const MapDTypes& dtypes) {
  Findings findings;
  describe_keys(map, report, numbers, dtypes.values, findings);
  describe_padding(map, report.keys, numbers, findings);
  describe_dropped(report, findings);
  describe_conversions(report.keys, source, findings);
  describe_dtype(report.keys, dtypes.asked, findings);
  describe_rows(map, report.keys, findings);
  return findings;
}

}  // namespace dckpt
