#include <cmath>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "operations/convert/workers/worker_survey.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

struct WorkersArguments {
  std::string directory;
  bool remove = false;
  bool json = false;
};

/// Returns "41 s", "12 min" or "3 h 05 min".
std::string rough_duration(double seconds) {
  constexpr std::uint64_t kMinute = 60, kHour = 3600;
  const auto whole = static_cast<std::uint64_t>(std::llround(std::min(seconds, 1e15)));
  if (whole < kMinute) return str_format("{} s", whole);
  if (whole < kHour) return str_format("{} min", whole / kMinute);
  return str_format("{} h {:02} min", grouped(whole / kHour), whole % kHour / kMinute);
}

std::string units_text(const SurveyedWorker& worker) {
  if (worker.units.empty()) return "-";
  std::string text = shown(worker.units.front());
  if (worker.units.size() > 1) text += str_format(" and {} more", worker.units.size() - 1);
  return str_format("{}, for {}", text, rough_duration(worker.seconds));
}

void print_survey(const WorkerSurvey& survey) {
  Table facts({{""}, {""}}, "");
  facts.add({"to", shown(survey.destination)});
  facts.add({"done", str_format("{} of {}, {} of {}", grouped(survey.units_done),
                                counted(survey.units, "unit"), human_bytes(survey.bytes_done),
                                human_bytes(survey.bytes))});
  facts.add(
      {"time",
       str_format("{} so far, {}/s in the last minute{}", rough_duration(survey.seconds),
                  human_bytes(static_cast<std::uint64_t>(survey.bytes_per_second)),
                  survey.seconds_left ? ", about " + rough_duration(*survey.seconds_left) + " left"
                                      : "")});
  facts.print();
  using Align = Table::Align;
  Table workers({{"HOST"},
                 {"PROCESS", Align::kRight},
                 {"STATE"},
                 {"FILES", Align::kRight},
                 {"SIZE", Align::kRight},
                 Table::names("WORKS ON")});
  for (const SurveyedWorker& worker : survey.workers)
    workers.add({shown(worker.host), std::to_string(worker.process),
                 std::string(name_of(kWorkerStateNames, worker.state)), grouped(worker.done),
                 human_bytes(worker.bytes), units_text(worker)});
  if (!workers.empty()) workers.print();
  print(survey.published ? styled(Style::kGreen, "published") + "\n" : "not published yet\n");
}

/// Returns what has become of the directory of a pool that was removed.
std::string removed_text(const std::string& directory) {
  const Location left(directory);
  if (!left.is_directory()) return str_format("removed {}\n", shown(directory));
  std::vector<std::string> names;
  for (const FileInfo& entry : left.directory()->list("")) names.push_back(entry.name);
  return str_format("removed the pool; {} stays, since it holds {}\n", shown(directory),
                    quoted_list(names));
}

int run_workers(const WorkersArguments& options) {
  return with_context({.file = options.directory}, [&] {
    if (options.remove) {
      remove_workers(options.directory);
      print(removed_text(options.directory));
      return kOk;
    }
    const WorkerSurvey survey = survey_workers(options.directory);
    if (options.json)
      print_json(to_json(survey));
    else
      print_survey(survey);
    return kOk;
  });
}

}  // namespace

Command add_workers(ProgramSpec& program) {
  const auto options = std::make_shared<WorkersArguments>();
  Parser command(program, "workers", "Who does what in a conversion that several processes share");
  command.footer(
      "DIR is the directory that convert --workers was given. A worker is silent if its process "
      "has ended on this host, or if it has given no sign of life for two minutes: others take "
      "over what it had begun. Until then, one that is stopped, or that died on another "
      "host, is shown as working.\n\n"
      "--remove gives up a conversion: it removes DIR and what was written and not published. It "
      "is refused while a worker is at work. After publication, it removes DIR alone. If DIR holds "
      "anything else, DIR itself stays.\n\n"
      "Examples:\n"
      "  dckpt workers pool\n"
      "  watch dckpt workers pool\n"
      "  dckpt workers pool --json | jq .seconds_left\n"
      "  dckpt workers pool --remove");
  command.add_option("DIR", options->directory, "Directory of the workers")
      .required()
      .type_name("")
      .takes(Takes::kFolder);
  command.add_flag("--remove", options->remove, "Remove the pool and its unpublished files")
      .excludes(command.add_flag("--json", options->json, "Print JSON for programs"));
  return {&command.spec(), [options] { return run_workers(*options); }};
}

}  // namespace dckpt::tool
