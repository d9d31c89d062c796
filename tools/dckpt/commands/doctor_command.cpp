#include <algorithm>
#include <limits>
#include <vector>

#include "configs/policy/policy.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "operations/json/reports.h"
#include "operations/upkeep/treatment.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/grammar/shell_words.h"
#include "tools/dckpt/render/head_rows.h"
#include "tools/dckpt/render/resume_report.h"
#include "tools/dckpt/render/root_table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

using Owner = UnfinishedWork::State;

struct DoctorArguments {
  CheckpointArgument root;
  Treatment treatment;
  bool dry_run = false;
  bool json = false;
  bool all = false;  ///< every line of the report

  bool has_action() const {
    return treatment.repair_tracker || treatment.clean || treatment.quarantine ||
           treatment.restore || treatment.restore_tracker || treatment.prune;
  }
};

std::string megatron_text(const MegatronChoice& choice) {
  return choice.directory ? str_format("{} ({})", shown(*choice.directory), choice.why)
                          : "nothing: " + choice.why;
}

std::string owner_text(const RootOwner& owner) {
  const char* const state = owner.state == Owner::kRunning ? "is running"
                            : owner.state == Owner::kEnded ? "has ended"
                                                           : "is of another host";
  return str_format("{}, which {}", shown(owner.name), state);
}

/// Calls `show` for the first and the last of `count` lines, and prints how many are in between.
void for_shown(std::size_t count, bool all, const std::function<void(std::size_t)>& show) {
  const std::size_t left_out = all || count <= 2 * kShownLines ? 0 : count - 2 * kShownLines;
  for (std::size_t i = 0; i < count; ++i) {
    if (left_out == 0 || i < kShownLines || i >= kShownLines + left_out) {
      show(i);
    } else {
      print(str_format("… {} more (--all shows them)\n", grouped(left_out)));
      i += left_out - 1;
    }
  }
}

void print_left(const RootDiagnosis& found, bool all) {
  Table table({{"SIZE", Table::Align::kRight}, {"LEFT BY"}, Table::names("NAME")});
  std::size_t lines = 0;
  const auto is_shown = [&] { return ++lines <= kShownLines || all; };
  for (const Leftover& leftover : found.leftovers) {
    if (!is_shown()) continue;
    const UnfinishedWork& work = leftover.work;
    const std::string who = work.state == Owner::kRunning ? "a running job"
                            : work.state == Owner::kEnded ? "a job that has ended"
                            : is_of_pool(work.name)       ? "workers, hosts unknown"
                            : leftover.is_old             ? "another host, long ago"
                                                          : "a job of another host";
    table.add({human_bytes(leftover.bytes), who, shown(work.name)});
  }
  for (const SetAside& aside : found.set_aside)
    if (is_shown()) table.add({human_bytes(aside.bytes), "dckpt doctor", shown(aside.name)});
  if (lines > kShownLines && !all)
    table.add({"", "", str_format("… {} more (--all shows them)", grouped(lines - kShownLines))});
  if (table.empty()) return;
  print("\n");
  table.print();
}

void print_diagnosis(const RootDiagnosis& found, const std::string& root, bool all) {
  RootSurvey survey = found.survey;
  survey.tracked.reset();  // a row below says what it names
  print_root(survey, root, all);
  HeadRows head;
  head.add("tracker", found.tracker_problem.empty() && found.survey.tracked
                          ? "names " + shown(*found.survey.tracked)
                          : safe_message(found.tracker_problem));
  head.add("a run takes", resume_text(found.survey.resume));
  for (const std::string& why : found.survey.resume.passed_over)
    head.add("skipped", safe_message(why));
  head.add("Megatron", megatron_text(found.megatron));
  if (!found.bridge_problem.empty()) head.add("Bridge", safe_message(found.bridge_problem));
  if (found.owner)
    head.add(found.owner->name.starts_with(kDoctor) ? "locked by" : "saved by",
             owner_text(*found.owner));
  if (!found.may_be_written.empty())
    head.add("in work",
             quoted_list(std::vector(found.may_be_written.begin(), found.may_be_written.end())) +
                 " may still be written: changed just now, or claimed by another host");
  if (!found.not_counted.empty())
    head.add("not counted", quoted_list(found.not_counted) +
                                ": no directory with the name of an iteration (iter_0001000)");
  head.add("wasted", human_bytes(found.wasted_bytes()));
  head.print();
  print_left(found, all);
}

std::string step_text(const TreatmentStep& step) {
  using Kind = TreatmentStep::Kind;
  switch (step.kind) {
    case Kind::kSetAside:
      return str_format("set aside  {} as {}", shown(step.name), shown(step.to));
    case Kind::kBringBack:
      return str_format("bring back {} as {}", shown(step.name), shown(step.to));
    case Kind::kWriteTracker: return str_format("write      {} into {}", step.to, step.name);
    case Kind::kRemove:
    case Kind::kDelete: break;
  }
  return "remove     " + shown(step.name);
}

/// Returns the command that undoes a step; empty if none does.
std::string undo_text(const TreatmentStep& step, const std::string& root) {
  if (!step.undo.empty())
    return str_format("dckpt doctor {} {} --apply", shell_path(root), step.undo);
  // There was no tracker before.
  const bool is_new = step.kind == TreatmentStep::Kind::kWriteTracker;
  return is_new ? "rm " + shell_path(root + "/" + step.name) : "";
}

void print_steps(const TreatmentReport& report, const std::string& root, bool all) {
  if (!report.steps.empty() || !report.remarks.empty()) print("\n");
  std::uint64_t freed = 0;
  for_shown(report.steps.size(), all, [&](std::size_t i) {
    const TreatmentStep& step = report.steps[i];
    print(step_text(step));
    if (step.bytes > 0) print(str_format(", {}", human_bytes(step.bytes)));
    print(step.why.empty() ? "\n" : str_format(" ({})\n", safe_message(step.why)));
    if (const std::string undo = undo_text(step, root); !undo.empty())
      print(str_format("           undo: {}\n", undo));
  });
  for (const TreatmentStep& step : report.steps) {
    if (step.kind == TreatmentStep::Kind::kRemove || step.kind == TreatmentStep::Kind::kDelete)
      freed += step.bytes;
  }
  if (freed > 0)
    print(str_format("frees {}; what is removed does not come back\n", human_bytes(freed)));
  for_shown(report.remarks.size(), all, [&](std::size_t i) {
    print(str_format("note: {}\n", safe_message(report.remarks[i])));
  });
}

/// Returns whether the suggested treatment would find an iteration for the tracker.
bool can_repair(const RootDiagnosis& found, bool cleans) {
  return std::ranges::any_of(found.survey.iterations,
                             [](const IterationSummary& summary) {
                               return summary.state == IterationSummary::State::kComplete;
                             }) ||
         (cleans && std::ranges::any_of(found.leftovers, &Leftover::comes_back));
}

/// Prints what may help.
void print_advice(const RootDiagnosis& found, const DoctorArguments& options) {
  std::string actions;
  const auto has_left = [&](Owner state) {
    return std::ranges::any_of(found.leftovers, [&](const Leftover& leftover) {
      return leftover.work.state == state && !leftover.in_doubt &&
             (state == Owner::kEnded || leftover.is_old);
    });
  };
  const bool of_others = has_left(Owner::kElsewhere);
  const bool cleans = of_others || has_left(Owner::kEnded);
  const bool has_problem = !found.tracker_problem.empty() || !found.bridge_problem.empty();
  const bool is_lost = has_problem && !can_repair(found, cleans);
  if (has_problem && !is_lost) actions += " --repair-tracker";
  for (const IterationSummary& summary : found.survey.iterations) {
    const Verdict verdict = verdict_of(summary.state);
    const bool is_bad = verdict == Verdict::kIncomplete || verdict == Verdict::kDamaged;
    if (!is_bad || found.is_written(summary.directory)) continue;
    actions += " --quarantine " +
               (summary.iteration ? std::to_string(*summary.iteration) : summary.directory);
    break;
  }
  if (cleans) actions += " --clean";
  if (of_others) actions += " --all-jobs-ended";
  if (!actions.empty() && found.deep) actions += " --deep";
  if (!actions.empty() && !options.root.policy.empty())
    actions += " --policy " + shell_path(options.root.policy);
  if (!actions.empty())
    print(
        str_format("\nwhat may help: dckpt doctor {}{}\n", shell_path(options.root.path), actions));
  if (of_others) print("(say --all-jobs-ended only if no job of another host uses the root)\n");
  if (is_lost) {
    print(
        str_format("\nno iteration here is complete, so there is none that the tracker could name; "
                   "to start over, choose another root{}\n",
                   found.set_aside.empty() ? "" : ", or bring one back with --restore"));
  }
}

void require_useful(const DoctorArguments& options) {
  const Treatment& treatment = options.treatment;
  if (options.has_action()) return;
  for (const auto& [given, name] :
       {std::pair(treatment.apply, "--apply"), std::pair(options.dry_run, "--dry-run"),
        std::pair(treatment.all_jobs_ended, "--all-jobs-ended")}) {
    if (!given) continue;
    throw_error(ErrorCode::kInvalidArgument,
                "{} needs something to do: --repair-tracker, --quarantine, --clean or --restore",
                name);
  }
}

int run(const DoctorArguments& options) {
  const std::string& root = options.root.path;
  Treatment treatment = options.treatment;
  treatment.diagnose.strategy = options.root.open_options().strategy;
  const auto show = [&](const TreatmentReport& report) {
    if (options.json) return;
    print_diagnosis(report.diagnosis, root, options.all);
    print_steps(report, root, options.all);
    flush_output();
  };
  const TreatmentReport report =
      with_context({.file = root}, [&] { return treat_root(root, treatment, show); });
  if (options.json) {
    print_json(to_json(report, root));
  } else {
    if (!report.applied) show(report);
    if (!options.has_action())
      print_advice(report.diagnosis, options);
    else if (report.steps.empty())
      print("\nnothing to do\n");
    else if (!report.applied)
      print("\n" + styled(Style::kYellow, "dry run: nothing was changed; --apply does it") + "\n");
    else
      print(str_format("\n{}; a run now takes {}\n", styled(Style::kGreen, "done"),
                       resume_text(report.resume)));
  }
  return options.has_action() || report.diagnosis.ok() ? kOk : kDiffers;
}

void add_all(Parser command, bool& all) {
  command.add_flag("--all", all, "Show every iteration, leftover and step");
}

std::function<std::string(const std::string&)> take_iteration(
    std::optional<IterationName>& iteration, bool* tracker = nullptr) {
  return [&iteration, tracker](const std::string& text) {
    if (tracker != nullptr && text == "tracker") {
      *tracker = true;
      return std::string();
    }
    iteration = parse_iteration_name(text);
    return iteration
               ? std::string()
               : str_format("found {}, expected an iteration (1000 or iter_0001000){}", quote(text),
                            tracker == nullptr ? " or release" : ", release or tracker");
  };
}

}  // namespace

Command add_doctor(ProgramSpec& program) {
  const auto options = std::make_shared<DoctorArguments>();
  Treatment& treatment = options->treatment;
  Parser command(program, "doctor", "Find and treat what is wrong with a training root");
  command.footer(
      "Reports each iteration, what a run would take, what dead jobs have left and the space that "
      "is wasted. What a live job may be using is never touched. Actions only show what they would "
      "do until --apply is given; all but --clean can be undone, by the command that is shown. "
      "Exit code 1 if an iteration or the tracker has a problem and no action is given.\n\n"
      "Examples:\n"
      "  dckpt doctor run/checkpoints --deep\n"
      "  dckpt doctor run/checkpoints --quarantine 2000 --repair-tracker --apply\n"
      "  dckpt doctor run/checkpoints --restore 2000 --apply     the way back\n"
      "  dckpt doctor run/checkpoints --json | jq '.iterations[] | select(.verdict != "
      "\"complete\")'");
  add_root(command, options->root.path);
  add_backend(command, options->root);
  command.add_flag("--deep", treatment.diagnose.deep,
                   "Verify every complete iteration with all bytes, not only its headers");
  Option repair = command.add_flag("--repair-tracker", treatment.repair_tracker,
                                   "Let the tracker name the newest complete iteration");
  Option quarantine = command
                          .add_option("--quarantine", take_iteration(treatment.quarantine),
                                      "Give this iteration a hidden name that no run looks at")
                          .type_name("ITER")
                          .takes(Takes::kIteration);
  Option clean =
      command.add_flag("--clean", treatment.clean, "Remove what jobs that have ended have left");
  command
      .add_option("--restore", take_iteration(treatment.restore, &treatment.restore_tracker),
                  "Bring back a quarantined iteration, or the old 'tracker'")
      .type_name("ITER")
      .excludes(repair)
      .excludes(quarantine)
      .excludes(clean);
  command.add_flag("--all-jobs-ended", treatment.all_jobs_ended,
                   "You know that no job of another host uses the root");
  add_apply(command, options->dry_run, treatment.apply);
  add_all(command, options->all);
  add_threads(command, treatment.diagnose.threads);
  add_json(command, options->json);
  return {&command.spec(), [options] {
            require_useful(*options);
            return run(*options);
          }};
}

Command add_prune(ProgramSpec& program) {
  const auto options = std::make_shared<DoctorArguments>();
  const auto given = std::make_shared<Retention>();
  Parser command(program, "prune", "Remove old iterations of a training root");
  command.footer(
      "Applies a retention as a run does that has just saved the iteration from which a run would "
      "resume. Only sound iterations count, which verify accepts. Newer ones stay, and so do those "
      "that a job may be using, links, what they lead to, and what a small file names (in the "
      "root, "
      "in its folders, or beside it). It only shows what it would free until --apply is given.\n\n"
      "Examples:\n"
      "  dckpt prune run/checkpoints --keep-last 3 --keep-every 1000 --keep 2500\n"
      "  dckpt prune run/checkpoints --policy run.yaml --apply");
  add_root(command, options->root.path);
  constexpr int kLargest = std::numeric_limits<int>::max();
  add_number(command, "--keep-last", "Number of the newest complete ones that stay", kLargest,
             [given](int count) { given->keep_last = static_cast<std::uint64_t>(count); });
  const Option last = command.options().back();
  add_number(command, "--keep-every", "Multiples of this iteration stay too", kLargest,
             [given](int count) { given->keep_every = static_cast<std::uint64_t>(count); });
  const Option every = command.options().back();
  Option keep = command
                    .add_option("--keep", given->keep,
                                "Iterations with this number or name (or a pattern) stay too; "
                                "repeatable")
                    .type_name("ITER");
  command
      .add_option("--policy", options->root.policy,
                  "Use 'retention' of this policy, and open with its load.backend")
      .type_name("FILE")
      .takes(Takes::kPolicy)
      .excludes(last)
      .excludes(every)
      .excludes(keep);
  command.add_flag("--deep", options->treatment.diagnose.deep,
                   "Count only iterations of which all bytes verify, not only the headers");
  add_apply(command, options->dry_run, options->treatment.apply);
  add_all(command, options->all);
  add_threads(command, options->treatment.diagnose.threads);
  add_json(command, options->json);
  return {&command.spec(), [options, given] {
            const std::string& policy = options->root.policy;
            options->treatment.prune = policy.empty() ? *given : Policy::find(policy).retention;
            return run(*options);
          }};
}

}  // namespace dckpt::tool
