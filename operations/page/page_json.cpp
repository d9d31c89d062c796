#include <algorithm>
#include <cmath>

#include "dist_checkpointing/save/phase_spans.h"
#include "mapping/base/text.h"
#include "operations/inspect/layer_differences.h"
#include "operations/page/contents_json.h"
#include "operations/page/page.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr std::size_t kMostProblems = 200;
constexpr std::size_t kMostRows = 1000;

/// Returns a list of `render` applied to each member of a range.
template <typename Range, typename Render>
Value json_list(const Range& range, const Render& render) {
  ValueList list;
  for (const auto& member : range) list.push_back(render(member));
  return Value::list(std::move(list));
}

template <typename Range>
Value json_list(const Range& range) {
  return json_list(range, [](const auto& member) { return Value(member); });
}

/// Does the same as visible() for a sentence, in which names are quoted already.
std::string visible_sentence(std::string_view sentence) {
  std::string text;
  for (std::size_t start = 0;;) {
    const std::size_t end = sentence.find_first_of("\\\n", start);
    text += printable(sentence.substr(start, end - start), kLongestShown);
    if (end == std::string_view::npos) return text;
    text += sentence[end];
    start = end + 1;
  }
}

Value rows_of(const std::vector<NameAndText>& rows) {
  return json_list(rows, [](const NameAndText& row) {
    return json_list(ValueList{visible(row.first), visible_sentence(row.second)});
  });
}

Value verdict_of(const PageData& page) {
  const VerifyReport& report = page.verified;
  ValueList problems;
  for (const CheckpointError& problem : report.problems) {
    if (problems.size() == kMostProblems) break;
    problems.push_back(
        json_list(ValueList{to_string(problem.code()), visible_sentence(problem.what())}));
  }
  ValueList notes;
  Findings findings = report.findings;
  if (page.stats) append(findings, page.stats->findings);
  for (const Finding& finding : findings)
    notes.push_back(json_list(ValueList{std::string(name_of(kSeverityNames, finding.severity)),
                                        visible_sentence(finding.message)}));
  return Value::dict({{"opened", !page.info.format.empty()},
                      {"problems", Value::list(std::move(problems))},
                      {"problem_count", report.problems.size()},
                      {"notes", Value::list(std::move(notes))}});
}

Value finite(double value) {
  return std::isfinite(value) ? Value(value) : Value();
}

Value numbers_of(const ElementStats& stats) {
  const auto of_finite = [&](double value) { return stats.finite() > 0 ? finite(value) : Value(); };
  return json_list(ValueList{stats.count, of_finite(stats.mean), of_finite(stats.deviation()),
                             of_finite(stats.abs_max()), of_finite(stats.furthest()),
                             of_finite(stats.l2()), stats.zero, stats.denormal, stats.nan,
                             stats.infinite});
}

/// Returns "stats": the furthest outliers first, the layers, and all weights.
Value stats_of(const StatsReport& report, const SortedTensors& tensors) {
  ValueList rows, layers;
  for (const TensorStats& tensor : outliers_first(report.tensors)) {
    if (rows.size() == kMostRows) break;
    if (tensor.elements)
      rows.push_back(
          json_list(ValueList{tensors.place_of(tensor.key), numbers_of(*tensor.elements)}));
  }
  for (const LayerStats& layer : report.layers)
    layers.push_back(
        json_list(ValueList{visible(layer.stack), layer.layer, numbers_of(layer.elements)}));
  return Value::dict({{"tensors", Value::list(std::move(rows))},
                      {"count", report.tensors.size()},
                      {"layers", Value::list(std::move(layers))},
                      {"weights", numbers_of(report.weights)}});
}

Value comparison_of(const Comparison& comparison) {
  const DiffReport& report = comparison.report;
  ValueList rows;
  for (const Difference& difference : report.differences) {
    if (rows.size() == kMostRows) break;
    const auto& elements = difference.elements;
    rows.push_back(json_list(
        ValueList{to_string(difference.kind), visible(difference.key), visible(difference.path),
                  differing_share(difference), visible(elements ? elements->first_a : difference.a),
                  visible(elements ? elements->first_b : difference.b),
                  elements && elements->max_abs ? finite(*elements->max_abs) : Value()}));
  }
  Value layers = Value::list();
  for (const auto& [stack, shares] : layer_differences(comparison.keys, report))
    layers.mutable_items().push_back(json_list(ValueList{visible(stack), json_list(shares)}));
  return Value::dict({{"with", visible(comparison.with)},
                      {"rows", Value::list(std::move(rows))},
                      {"count", report.differences.size()},
                      {"tensors", report.tensors_compared},
                      {"objects", report.objects_compared},
                      {"common", report.common_compared},
                      {"layers", std::move(layers)}});
}

Value save_of(const SaveReport& report) {
  const auto span = [&](const PhaseSpan& phase) {
    const auto member =
        std::ranges::find(kSavePhases, phase.phase, &decltype(kSavePhases)::value_type::first);
    const PhaseReport& taken = report.*(member->second);
    return Value::dict({{"name", std::string(name_of(kPhaseNames, phase.phase))},
                        {"start", phase.start},
                        {"fastest", phase.fastest},
                        {"slowest", phase.slowest},
                        {"median", taken.median},
                        {"rank", taken.slowest_rank},
                        {"bytes", taken.bytes}});
  };
  return Value::dict({{"seconds", report.seconds},
                      {"bytes", report.bytes},
                      {"files", report.files},
                      {"cached", report.plan_cached},
                      {"why", visible(report.why_planned)},
                      {"engine", visible(report.engine)},
                      {"spans", json_list(phase_spans(report), span)}});
}

/// Returns "buckets": [bucket, parameter, begin, count] with the places of both tensors.
Value buckets_of(const PageData& page, const SortedTensors& tensors) {
  return json_list(page.bucket_ranges, [&](const BucketRange& range) {
    return json_list(ValueList{tensors.place_of(range.bucket), tensors.place_of(range.parameter),
                               range.begin, range.count});
  });
}

/// Replaces the three characters that mean something in HTML. They occur only inside strings.
std::string without_markup(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&')
      text += c == '<' ? "\\u003c" : c == '>' ? "\\u003e" : "\\u0026";
    else
      text += c;
  }
  return text;
}

}  // namespace

std::string page_json(const PageData& page) {
  const SortedTensors tensors(page.metadata);
  ValueList groups;
  for (const auto& [group, name] : kContentGroupNames) groups.emplace_back(name);
  Value json = Value::dict({{"title", visible(page.title)},
                            {"format", visible(page.info.format)},
                            {"version", page.info.version ? Value(*page.info.version) : Value()},
                            {"producer", visible(page.info.producer)},
                            {"verdict", verdict_of(page)},
                            {"missing", rows_of(page.missing)},
                            {"facts", rows_of(page.facts)},
                            {"arguments", rows_of(page.arguments)},
                            {"groups", Value::list(std::move(groups))},
                            {"tensors", tensors_of(tensors)},
                            {"objects", objects_of(page.metadata)},
                            {"files", files_of(page)},
                            {"buckets", buckets_of(page, tensors)}});
  if (page.stats) json["stats"] = stats_of(*page.stats, tensors);
  if (page.comparison) json["comparison"] = comparison_of(*page.comparison);
  if (page.save) json["save"] = save_of(*page.save);
  return without_markup(to_json(json));
}

}  // namespace dckpt
