#pragma once

#include <string>
#include <vector>

#include "configs/maps/row_remarks.h"
#include "configs/yaml/problems.h"
#include "mapping/base/finding.h"
#include "operations/inspect/formats.h"
#include "operations/json/json_record.h"

// The reports of `config check` and `formats`.
namespace dckpt {

/// A problem in a file, or in one that it extends.
struct PlacedProblem {
  std::string file{};
  const ConfigProblem* problem = nullptr;

  const TextPlace& place() const { return problem->place; }
};

constexpr auto json_record(const PlacedProblem*) {
  using P = PlacedProblem;
  return JsonRecord(
      "", "", Field("file", &P::file, "File with the problem: this one, or one that it extends."),
      Field("line", nested(&P::place, &TextPlace::line), "Line, from 1; 0 if it has no place."),
      Field("column", nested(&P::place, &TextPlace::column),
            "Column, from 1; 0 if it has no place."),
      Field("code", nested(&P::problem, &ConfigProblem::code), "Kind of problem."),
      Field("message", nested(&P::problem, &ConfigProblem::message), "What is wrong, for people."));
}

/// A remark on a row of a map, in a file or in one that it extends.
struct PlacedRemark {
  std::string file{};
  const MapRemark* remark = nullptr;

  const TextPlace& place() const { return remark->place.place; }
  const Finding& finding() const { return remark->finding; }
};

constexpr auto json_record(const PlacedRemark*) {
  using P = PlacedRemark;
  return JsonRecord(
      "", "", Field("file", &P::file, "File with the row: this one, or one that it extends."),
      Field("line", nested(&P::place, &TextPlace::line), "Line, from 1."),
      Field("column", nested(&P::place, &TextPlace::column), "Column, from 1."),
      Field("code", in_words(kFindingCodeNames, nested(&P::finding, &Finding::code)),
            "Kind of warning, as of `convert`."),
      Field("message", nested(&P::finding, &Finding::message), "The warning for people."));
}

/// The report of `config check`.
struct CheckedConfig {
  std::string file{};
  std::vector<PlacedProblem> problems{};
  std::vector<PlacedRemark> warnings{};
};

constexpr auto json_record(const CheckedConfig*) {
  using C = CheckedConfig;
  return JsonRecord(
      "", "Problems of a policy or map (`dckpt config check`).",
      Field("file", &C::file, "The file, or the name of what comes with dckpt."),
      Field(
          "ok", [](const C& of) { return of.problems.empty(); }, "Whether nothing is wrong."),
      Field("problems", &C::problems, "In the order of the file."),
      Field("warnings", &C::warnings,
            "Rows of a map that may not mean what they should, in their order."));
}

constexpr auto json_record(const FormatEntry*) {
  using F = FormatEntry;
  return JsonRecord(
      "format", "A format.", Field("name", &F::name, "Name of the format."),
      Field("versions", &F::versions, "Versions, ascending; empty if the format has none."),
      Field("reads", &F::reads, "Whether dckpt reads it."),
      Field("writes", &F::writes, "Whether dckpt writes it."),
      Field("about", &F::about, "What it is, in one line."));
}

/// The report of `formats`.
struct ListedFormats {
  const std::vector<FormatEntry>* formats = nullptr;
};

constexpr auto json_record(const ListedFormats*) {
  return JsonRecord(
      "", "",
      Field(
          "formats", [](const ListedFormats& of) -> const auto& { return *of.formats; },
          "In the order in which they are detected."));
}

}  // namespace dckpt
