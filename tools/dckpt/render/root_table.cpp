#include "tools/dckpt/render/root_table.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"
#include "tools/dckpt/render/time_line.h"

namespace dckpt::tool {
namespace {

using State = IterationSummary::State;

std::int64_t now() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count();
}

/// The state in a few words, and in more where there is room.
struct StateText {
  std::string brief, full;
};

StateText state_text(const IterationSummary& summary) {
  const std::string why = safe_message(summary.why.substr(0, summary.why.find('\n')));
  switch (summary.state) {
    case State::kNotExamined: return {"not examined", "not examined"};
    case State::kComplete: return {"complete", "complete"};
    case State::kNoMetadata: return {"no metadata", "unfinished save, no metadata"};
    case State::kFileMissing: return {"file missing", why};
    case State::kFileTruncated: return {"file truncated", why};
    case State::kDamaged: return {"damaged", "damaged: " + why};
    case State::kUnreadable: return {"unreadable", "unreadable: " + why};
    case State::kBeingSaved: break;
  }
  return {"being saved", "is being saved"};
}

bool is_bad(const IterationSummary& summary) {
  return summary.state != State::kComplete && summary.state != State::kNotExamined &&
         summary.state != State::kBeingSaved;
}

std::string row_text(const IterationSummary& summary, std::size_t room) {
  const std::string resumed = summary.resumed ? ", a run resumes here" : "";
  const std::string tracked = summary.tracked && !summary.resumed ? ", in tracker" : "";
  const std::string removed = summary.removed_by_policy ? ", to be removed" : "";
  const StateText state = state_text(summary);
  const std::size_t marks = resumed.size() + tracked.size() + removed.size();
  const std::string& text = state.full.size() + marks <= room ? state.full : state.brief;
  return (is_bad(summary) ? styled(Style::kRed, text) : text) +
         (resumed.empty() ? "" : styled(Style::kGreen, resumed)) + tracked +
         (removed.empty() ? "" : styled(Style::kYellow, removed));
}

std::string row_text(const UnfinishedWork& work) {
  using Unfinished = UnfinishedWork::State;
  const bool deletes = work.purpose == "deleting";
  if (work.state == Unfinished::kRunning)
    return styled(Style::kYellow, deletes ? "is being deleted" : "is being saved");
  if (work.purpose == "interrupted") return "interrupted conversion";
  if (work.state == Unfinished::kElsewhere && is_of_pool(work.name))
    return "unfinished, of a pool of workers";
  if (work.state == Unfinished::kElsewhere)
    return deletes ? "is deleted by another host" : "unfinished, of another host";
  return styled(Style::kRed, deletes                      ? "leftover of a killed deletion"
                             : work.purpose == "replaced" ? "set aside by a killed save"
                                                          : "leftover of a killed save");
}

std::string name_of_row(const IterationSummary& summary) {
  return summary.iteration ? std::to_string(*summary.iteration) : summary.directory;
}

/// Returns which checkpoints share a row with their neighbors.
std::vector<bool> folded(std::span<const IterationSummary> iterations) {
  std::vector<bool> folds(iterations.size());
  std::size_t bad = 0;
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    const IterationSummary& summary = iterations[i];
    const bool is_new = iterations.size() - 1 - i < SurveyOptions().newest;
    const bool is_shown =
        is_new || summary.resumed || summary.tracked || (is_bad(summary) && ++bad <= kShownLines);
    folds[i] = !is_shown;
  }
  return folds;
}

/// Adds the row that stands for consecutive checkpoints.
void add_fold(Table& table, std::span<const IterationSummary> iterations, std::int64_t at) {
  const IterationSummary& first = iterations.front();
  std::string text = str_format("… {} more, {} to {}", grouped(iterations.size()),
                                name_of_row(first), name_of_row(iterations.back()));
  const auto add = [&](auto selected, const char* what) {
    const auto count = static_cast<std::size_t>(std::ranges::count_if(iterations, selected));
    if (count > 0) text += str_format(", {} {}", grouped(count), what);
  };
  add(is_bad, "not complete");
  add([](const IterationSummary& summary) { return summary.removed_by_policy; }, "to be removed");
  table.add(
      {"...", local_time(first.saved), age(first.saved, at), "", text + " (--all shows them)"});
}

void print_table(const RootSurvey& survey, bool all) {
  using Align = Table::Align;
  Table table({{"ITERATION", Align::kRight},
               {"SAVED"},
               {"", Align::kRight},
               {"SIZE", Align::kRight},
               {"STATE"}});
  const std::int64_t at = now();
  constexpr std::size_t kOtherColumns = 52;
  const std::size_t columns = terminal_columns();
  const std::size_t room = columns - std::min(columns, kOtherColumns);
  std::size_t next_work = 0, shown_work = 0;
  const auto add_work = [&](std::optional<std::uint64_t> below) {
    for (; next_work < survey.unfinished.size(); ++next_work) {
      const UnfinishedWork& work = survey.unfinished[next_work];
      if (below && work.iteration >= *below) return;
      if (!all && ++shown_work > kShownLines) continue;
      table.add({std::to_string(work.iteration), local_time(work.modified), age(work.modified, at),
                 "", row_text(work)});
    }
  };
  const std::vector<bool> folds =
      all ? std::vector<bool>(survey.iterations.size()) : folded(survey.iterations);
  for (std::size_t i = 0; i < survey.iterations.size(); ++i) {
    const IterationSummary& summary = survey.iterations[i];
    std::size_t end = i;
    while (end < survey.iterations.size() && folds[end]) ++end;
    if (end > i + 1) {
      add_work(survey.iterations[end - 1].iteration);
      add_fold(table, std::span(survey.iterations).subspan(i, end - i), at);
      i = end - 1;
      continue;
    }
    add_work(summary.iteration ? *summary.iteration : 0);
    table.add({name_of_row(summary), local_time(summary.saved), age(summary.saved, at),
               summary.state == State::kNotExamined ? "" : human_bytes(summary.bytes),
               row_text(summary, room)});
  }
  add_work(std::nullopt);
  if (!all && shown_work > kShownLines)
    table.add(
        {"...", "", "", "",
         str_format("… {} more unfinished (--all shows them)", grouped(shown_work - kShownLines))});
  table.print();
}

void print_time_line(const RootSurvey& survey) {
  std::vector<TimeMark> marks;
  for (const IterationSummary& summary : survey.iterations)
    if (summary.iteration && summary.saved != 0) marks.push_back({summary.saved, !is_bad(summary)});
  if (marks.empty()) return;
  const auto [first, last] = std::ranges::minmax(marks, {}, &TimeMark::time);
  const std::string begin = local_time(first.time), end = local_time(last.time);
  if (begin == end) return;
  const bool utf8 = locale_is_utf8();
  const bool any_bad = std::ranges::any_of(marks, [](const TimeMark& mark) { return !mark.good; });
  const std::string legend = !any_bad ? "" : utf8 ? "  ○ not complete" : "  x not complete";
  const std::size_t around = 2 + begin.size() + 1 + 1 + end.size() + (any_bad ? 16 : 0);
  const std::size_t columns = terminal_columns();
  const std::string line = time_line(marks, columns > around ? columns - around : 0, utf8);
  if (line.empty()) return;
  print(str_format("  {} {} {}{}\n", styled(Style::kDim, begin), line, styled(Style::kDim, end),
                   styled(Style::kDim, legend)));
}

void print_removal(const RootSurvey& survey) {
  const auto removed = static_cast<std::size_t>(
      std::ranges::count_if(survey.iterations, &IterationSummary::removed_by_policy));
  if (removed > 0) {
    print(str_format("  the policy removes {} of them when a run that resumes here saves next\n",
                     grouped(removed)));
  }
}

}  // namespace

void print_root(const RootSurvey& survey, const std::string& root, bool all) {
  std::size_t iterations = survey.iterations.size();
  const bool has_release = iterations > 0 && !survey.iterations.front().iteration;
  if (has_release) --iterations;
  const std::string count = iterations == 0 ? "no iterations" : counted(iterations, "iteration");
  print(str_format("{}  {}{}\n", styled(Style::kBold, shown(root)), count,
                   has_release ? " and a release" : ""));
  if (!survey.iterations.empty() || !survey.unfinished.empty()) print_table(survey, all);
  const auto is_tracked = [](const IterationSummary& summary) { return summary.tracked; };
  if (survey.tracked && std::ranges::none_of(survey.iterations, is_tracked)) {
    print(str_format("  {} names {}, which does not exist\n", survey.tracker, *survey.tracked));
  }
  print_removal(survey);
  print_time_line(survey);
  print("\n");
}

}  // namespace dckpt::tool
