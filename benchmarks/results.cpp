#include "benchmarks/results.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "benchmarks/process_stats.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::bench {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Returns bytes as a whole number.
nlohmann::ordered_json number(double value, const std::string& unit) {
  if (unit == "B") return static_cast<std::int64_t>(std::llround(value));
  return value;
}

std::string shown(double value, const std::string& unit) {
  if (unit == "B") return human_bytes(static_cast<std::uint64_t>(value));
  if (unit == "s" && value < 1e-3) return str_format("{:.1f} µs", value * 1e6);
  if (unit == "s" && value < 0.1) return str_format("{:.2f} ms", value * 1e3);
  return str_format("{:.3f} {}", value, unit);
}

/// Returns what is missing to a column of `width` characters.
std::string blanks(std::size_t width, const std::string& text) {
  const auto characters = static_cast<std::size_t>(std::ranges::count_if(
      text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
  return std::string(width - std::min(width, characters), ' ');
}

}  // namespace

void Results::add(const std::string& workload, const std::string& metric, const std::string& unit,
                  double value, const std::string& note) {
  auto found = std::find_if(results_.begin(), results_.end(), [&](const Result& result) {
    return result.workload == workload && result.metric == metric;
  });
  if (found == results_.end())
    found = results_.insert(results_.end(), Result{workload, metric, unit, {}, 0, 0, ""});
  found->values.push_back(value);
  found->max_rss = std::max(found->max_rss, peak_resident_bytes());
  found->load = std::max(found->load, load_average());
  found->note = note;
}

void Results::write_json_lines(std::ostream& out) const {
  for (const Result& result : results_) {
    nlohmann::ordered_json values = nlohmann::ordered_json::array();
    for (const double value : result.values) values.push_back(number(value, result.unit));
    const auto middle = number(median(result.values), result.unit);
    nlohmann::ordered_json line = {
        {"peer", "dckpt"},
        {"version", DCKPT_VERSION},
        {"workload", result.workload},
        {"metric", result.metric},
        {"value", middle},
        {"unit", result.unit},
        {"max_rss_bytes", result.max_rss},
        {"repeats", result.values.size()},
        {"median", middle},
        {"min", number(*std::min_element(result.values.begin(), result.values.end()), result.unit)},
        {"values", values},
        {"load1", std::round(result.load * 10) / 10}};
    if (!result.note.empty()) line["note"] = result.note;
    out << line.dump() << '\n';
  }
}

void Results::write_table(std::ostream& out) const {
  std::size_t workload = 10, metric = 8;
  for (const Result& result : results_) {
    workload = std::max(workload, result.workload.size() + 2);
    metric = std::max(metric, result.metric.size() + 2);
  }
  const auto line = [&](const std::string& name, const std::string& what, const std::string& middle,
                        const std::string& fastest, const std::string& note) {
    out << name << blanks(workload, name) << what << blanks(metric, what) << blanks(12, middle)
        << middle << blanks(12, fastest) << fastest << (note.empty() ? "" : "  ") << note << '\n';
  };
  line("workload", "metric", "median", "min", "");
  std::string last_note;
  for (const Result& result : results_) {
    const double fastest = *std::min_element(result.values.begin(), result.values.end());
    line(result.workload, result.metric, shown(median(result.values), result.unit),
         shown(fastest, result.unit), result.note == last_note ? "" : result.note);
    last_note = result.note;
  }
}

}  // namespace dckpt::bench
