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
  double load = 0;  ///< highest load average seen; a high one marks a noisy result
  std::string note;
};

/// Collects values in any order of repeats and prints them grouped.
class Results {
 public:
  void add(const std::string& workload, const std::string& metric, const std::string& unit,
           double value, const std::string& note = "");
  /// Writes {"peer", "version", "workload", "metric", "value", "unit", "max_rss_bytes", "repeats",
  /// "median", "min", "values", "load1"[, "note"]} on each line.
  void write_json_lines(std::ostream& out) const;
  /// Writes the median and the fastest repeat of each metric as a table of text.
  void write_table(std::ostream& out) const;

 private:
  std::vector<Result> results_;
};

}  // namespace dckpt::bench
