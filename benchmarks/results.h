#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace dckpt::bench {

/// The repeats of one metric of one workload.
struct Result {
  std::string workload;
  std::string metric;
  std::string unit;  ///< "s", "B" or "x"
  std::vector<double> values;
  std::uint64_t max_rss = 0;
  double load = 0;  ///< the highest load average seen: a line with a high one is noise
  std::string note;
};

/// Gathers values in whatever order the repeats come; prints them grouped.
class Results {
 public:
  void add(const std::string& workload, const std::string& metric, const std::string& unit,
           double value, const std::string& note = "");
  /// {"peer", "version", "workload", "metric", "value", "unit", "max_rss_bytes", "repeats",
  /// "median", "min", "values", "load1"[, "note"]} a line.
  void write_json_lines(std::ostream& out) const;
  /// Median and fastest repeat of each metric, for people.
  void write_table(std::ostream& out) const;

 private:
  std::vector<Result> results_;
};

}  // namespace dckpt::bench
