#include "configs/yaml/problems.h"

#include <algorithm>
#include <tuple>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::size_t kShownProblems = 20;
constexpr std::size_t kShownPath = 1000;

}  // namespace

std::string to_string(const ConfigProblem& problem, const std::string& file) {
  std::string text = printable(problem.file.empty() ? file : problem.file, kShownPath) + ":";
  if (problem.place.line > 0)
    text += str_format("{}:{}:", problem.place.line, problem.place.column);
  return str_format("{} {}", text, problem.message);
}

void sort_by_place(ConfigProblems& problems) {
  const auto key = [](const ConfigProblem& problem) {
    return std::tie(problem.file, problem.place.line, problem.place.column);
  };
  std::ranges::stable_sort(
      problems, [&](const ConfigProblem& a, const ConfigProblem& b) { return key(a) < key(b); });
}

void raise_if_any(ConfigProblems problems, const std::string& file) {
  if (problems.empty()) return;
  sort_by_place(problems);
  const bool unsupported = std::ranges::all_of(problems, [](const ConfigProblem& problem) {
    return problem.code == ErrorCode::kUnsupported;
  });
  std::string message;
  if (problems.size() == 1) {
    message = to_string(problems.front(), file);
  } else {
    message = str_format("{} problems in {}:", grouped(problems.size()), quote(file, kShownPath));
    for (std::size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i)
      message += "\n  " + to_string(problems[i], file);
    if (problems.size() > kShownProblems)
      message += str_format("\n  … and {} more", grouped(problems.size() - kShownProblems));
  }
  throw_error(unsupported ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
              {.file = problems.front().file.empty() ? file : problems.front().file}, message);
}

}  // namespace dckpt
