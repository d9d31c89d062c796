#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/ranks/shared_work.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "operations/inspect/verify.h"
#include "operations/json/reports.h"
#include "operations/json/verify_json.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/fleet_run.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/pictures/coverage_picture.h"
#include "tools/dckpt/render/progress_line.h"
#include "tools/dckpt/render/resume_report.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kShownProblems = 100;
constexpr const char* kReadElements = "elements searched for NaN and infinity";

struct VerifyArguments {
  CheckpointArgument checkpoint;
  FleetArguments fleet;
  VerifyOptions verify;
  std::optional<int> threads{};
  bool all = false;
  bool has_iteration = false;  // --iteration, also "latest"
  bool json = false;
};

/// A checkpoint and its problems. If it cannot be opened, that is its only problem.
struct Verified {
  std::string path;
  VerifyReport report;
  bool read_elements = false;                 ///< they were searched for NaN
  std::map<std::string, Picture> pictures{};  ///< pictures of tensors with holes or overlaps, by
                                              ///< key
};

/// Draws those of the first problems that have a picture.
std::map<std::string, Picture> pictures_of(const CheckpointReader& reader,
                                           const VerifyReport& report) {
  constexpr std::size_t kMostPictures = 4;
  std::map<std::string, Picture> pictures;
  std::set<std::string> looked_at;
  for (const CheckpointError& problem : report.problems) {
    const ErrorContext& context = problem.context();
    if (!context.key || context.file || !looked_at.insert(*context.key).second) continue;
    if (pictures.size() == kMostPictures || looked_at.size() > kShownProblems) break;
    Picture picture = coverage_picture(reader.metadata(), *context.key, picture_style());
    if (!picture.empty()) pictures.emplace(*context.key, std::move(picture));
  }
  return pictures;
}

/// Groups the problems by file, so that one damage is one entry. A problem without a file stands
/// alone. Files are named with and without the checkpoint's path.
std::vector<std::vector<const CheckpointError*>> by_file(
    const std::vector<CheckpointError>& problems, const std::string& checkpoint) {
  const auto name_in = [prefix = checkpoint + "/"](const std::string& file) {
    return file.starts_with(prefix) ? file.substr(prefix.size()) : file;
  };
  std::vector<std::vector<const CheckpointError*>> groups;
  std::unordered_map<std::string, std::size_t> group_of;
  for (const CheckpointError& problem : problems) {
    const std::optional<std::string>& file = problem.context().file;
    const auto [group, added] =
        file ? group_of.emplace(name_in(*file), groups.size()) : std::pair(group_of.end(), true);
    if (added) groups.emplace_back();
    groups[file ? group->second : groups.size() - 1].push_back(&problem);
  }
  return groups;
}

void print_problems(const Verified& verified) {
  std::map<std::string, Picture> pictures = verified.pictures;
  const auto groups = by_file(verified.report.problems, verified.path);
  for (std::size_t i = 0; i < std::min(groups.size(), kShownProblems); ++i) {
    const CheckpointError& first = *groups[i].front();
    print(str_format("{}  {}", styled(Style::kRed, to_string(first.code())),
                     safe_message(first.what())));
    if (groups[i].size() > 1)
      print(str_format(", and {} in this file", counted(groups[i].size() - 1, "more problem")));
    print("\n");
    if (const auto drawn = pictures.find(first.context().key.value_or(""));
        drawn != pictures.end()) {
      print(drawn->second);
      pictures.erase(drawn);
    }
  }
  if (groups.size() > kShownProblems)
    print(str_format("… and {} more files (--json lists all)\n",
                     grouped(groups.size() - kShownProblems)));
}

void print_verified(const Verified& verified) {
  const VerifyReport& report = verified.report;
  print_problems(verified);
  if (report.format.empty()) return;  // the checkpoint could not be opened
  if (!report.ok()) print("\n");

  print(str_format("checked   {} in {}, {}, {}, {}\n", counted(report.tensors, "tensor"),
                   counted(report.chunks, "chunk"), counted(report.objects, "object"),
                   counted(report.files, "data file"), human_bytes(report.bytes)));
  if (report.deep) {
    const std::size_t without = report.chunks_without_checksum + report.objects_without_checksum;
    const std::size_t all = report.chunks + report.objects;
    print(str_format("content   checksums of {} of {} chunks and objects compared",
                     grouped(all - std::min(all, without)), grouped(all)));
    print(without == 0 ? "\n"
                       : str_format("; {}\n", styled(Style::kYellow,
                                                     "not computed for " + grouped(without))));
  } else {
    print(str_format("content   {}; --deep also compares checksums\n",
                     verified.read_elements ? kReadElements : "not read"));
  }
  if (report.manifest_files > 0) {
    print(str_format("manifest  integrity.json lists {}{}", counted(report.manifest_files, "file"),
                     report.deep ? ", SHA-256 compared\n" : "\n"));
  }
  for (const Finding& finding : report.findings) print(str_format("note: {}\n", finding.message));
  if (report.ok() && report.tensors + report.objects == 0)
    print("note: the checkpoint holds no tensors and no objects\n");
  if (report.ok()) print(str_format("{}  {}\n", styled(Style::kGreen, "OK"), shown(verified.path)));
}

Verified verified(const VerifyArguments& options, const CheckpointArgument& checkpoint,
                  Communicator& ranks) {
  const auto reader = checkpoint.open(ranks);
  VerifyOptions verify_options = options.verify;
  ProgressLine progress("verify ");
  verify_options.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
  };
  Verified verified{checkpoint.resolved(), verify(*reader, verify_options, ranks)};
  verified.read_elements =
      options.verify.nan && std::ranges::find(verified.report.findings, FindingCode::kNoEffect,
                                              &Finding::code) == verified.report.findings.end();
  if (!options.json) verified.pictures = pictures_of(*reader, verified.report);
  return verified;
}

int failed(const Verified& verified, bool is_listed) {
  const std::vector<CheckpointError>& problems = verified.report.problems;
  print_problem_count(problems.size(), verified.path, problems.front().what(), is_listed);
  return kDiffers;
}

/// Returns every checkpoint of a training root, the oldest first, the same on all ranks.
std::vector<CheckpointArgument> checkpoints_of(const CheckpointArgument& root,
                                               Communicator& ranks) {
  std::vector<IterationName> names;
  SharedWork listing(ranks, "listing the iterations", 1);
  listing.on_all_ranks([&] {
    if ((Location(root.path) / kReleaseDirectory).is_directory())
      names.push_back(IterationName::release());
    for (const std::uint64_t iteration : list_iterations(root.path)) names.emplace_back(iteration);
  });
  listing.require_same("iterations", [&] {
    std::string lines;
    for (const IterationName& name : names) lines += name.directory() + "\n";
    return lines;
  });
  std::vector<CheckpointArgument> checkpoints(names.size(), root);
  for (std::size_t i = 0; i < names.size(); ++i) checkpoints[i].iteration = names[i];
  return checkpoints;
}

/// Verifies a checkpoint. If it cannot be opened, returns that as its problem, so that others are
/// still verified.
Verified verified_or_problem(const VerifyArguments& options, const CheckpointArgument& checkpoint,
                             Communicator& ranks) {
  try {
    return verified(options, checkpoint, ranks);
  } catch (const CheckpointError& error) {
    if (ranks.size() > 1 && error.code() == ErrorCode::kUnavailable) throw;  // a rank is gone
    Verified unopened{checkpoint.resolved(), {}};
    unopened.report.deep = options.verify.deep;
    unopened.report.problems.push_back(error);
    return unopened;
  }
}

/// Prints the reports of many checkpoints. Consecutive sound checkpoints share a line unless there
/// is something to remark; damaged ones are reported in full. A line is printed as soon as no
/// checkpoint can join it.
class FoldedReport {
 public:
  void add(const Verified& verified) {
    const VerifyReport& report = verified.report;
    ++count_;
    read_elements_ = read_elements_ || verified.read_elements;
    total_.bytes += report.bytes;
    total_.chunks += report.chunks + report.objects;
    total_.chunks_without_checksum +=
        report.chunks_without_checksum + report.objects_without_checksum;
    const bool is_empty = report.tensors + report.objects == 0;
    if (report.ok() && report.findings.empty() && !is_empty) {
      if (sound_++ == 0) first_ = verified.path;
      last_ = verified.path;
      return;
    }
    end_row();
    if (report.ok()) return print_findings(verified, is_empty);
    print(styled(Style::kBold, shown(verified.path)) + "\n");
    print_verified(verified);
    damaged_.push_back(name_of(verified.path));
  }

  /// Prints "10 checkpoints, 1.2 GiB: 9 OK, 1 with problems: 'iter_0000100'".
  void finish(bool deep) {
    end_row();
    std::string text = str_format("{}, {}: {} OK", counted(count_, "checkpoint"),
                                  human_bytes(total_.bytes), grouped(count_ - damaged_.size()));
    if (!damaged_.empty()) {
      text += str_format(", {} with problems: {}", grouped(damaged_.size()),
                         quoted_list(damaged_, kNamedDamaged));
    }
    print("\n" + styled(damaged_.empty() ? Style::kGreen : Style::kRed, text) + "\n");
    if (!deep)
      return print(str_format("{}; --deep also compares checksums\n",
                              read_elements_ ? kReadElements : "content not read"));
    const std::size_t without = total_.chunks_without_checksum;
    print(str_format("checksums of {} of {} chunks and objects compared\n",
                     grouped(total_.chunks - std::min(total_.chunks, without)),
                     grouped(total_.chunks)));
  }

 private:
  static constexpr std::size_t kNamedDamaged = 10;

  static void print_findings(const Verified& verified, bool is_empty) {
    print(str_format("{}  {}\n", styled(Style::kGreen, "OK"), shown(verified.path)));
    for (const Finding& finding : verified.report.findings)
      print(str_format("    note: {}\n", finding.message));
    if (is_empty) print("    note: the checkpoint holds no tensors and no objects\n");
  }

  void end_row() {
    if (sound_ == 0) return;
    std::string row = styled(Style::kGreen, "OK") + "  " + shown(first_);
    if (sound_ > 1) row += str_format(" … {} ({})", shown(name_of(last_)), grouped(sound_));
    print(row + "\n");
    flush_output();
    sound_ = 0;
  }

  static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

  std::size_t count_ = 0;
  bool read_elements_ = false;
  VerifyReport total_;  // only the fields that finish() prints; chunks include objects
  std::vector<std::string> damaged_;
  std::size_t sound_ = 0;  // number of checkpoints in the pending row
  std::string first_, last_;
};

int run_all(const VerifyArguments& options, Communicator& ranks) {
  const std::string& root = options.checkpoint.path;
  if (options.has_iteration || !is_training_root(root)) {
    throw_error(ErrorCode::kInvalidArgument, {.file = root},
                "--all is for a training root, without --iteration");
  }
  const StrategySpec strategy = options.checkpoint.open_options().strategy;
  std::vector<Verified> checkpoints;
  FoldedReport report;
  for (const CheckpointArgument& checkpoint : checkpoints_of(options.checkpoint, ranks)) {
    checkpoints.push_back(verified_or_problem(options, checkpoint, ranks));
    if (!options.json) report.add(checkpoints.back());
  }
  const LatestChoice resume = resume_choice(root, strategy);
  const auto damaged = std::ranges::find_if(
      checkpoints, [](const Verified& checkpoint) { return !checkpoint.report.ok(); });
  if (options.json) {
    RootVerification all{.resume = resume, .deep = options.verify.deep};
    for (const Verified& checkpoint : checkpoints)
      all.checkpoints.push_back({checkpoint.path, checkpoint.report});
    print_json(to_json(all));
  } else {
    report.finish(options.verify.deep);
    print(str_format("a run that starts here takes  {}\n", resume_text(resume)));
    for (const std::string& why : resume.passed_over)
      print(str_format("skipped  {}\n", safe_message(why)));
  }
  return damaged == checkpoints.end() ? kOk : failed(*damaged, !options.json);
}

int run_verify(const VerifyArguments& options, Communicator& ranks) {
  if (!options.fleet.list.empty()) {
    require_one_rank(ranks, "verify --fleet");
    return run_fleet(options.fleet, options.json);
  }
  if (options.checkpoint.path.empty())
    throw_error(ErrorCode::kInvalidArgument, "verify needs PATH, or --fleet LIST");
  if (!options.fleet.state.empty() || options.fleet.verify.max_rate > 0)
    throw_error(ErrorCode::kInvalidArgument, "--state and --max-rate belong to --fleet");
  if (options.all) return run_all(options, ranks);
  const Verified checkpoint = verified(options, options.checkpoint, ranks);
  if (options.json)
    print_json(to_json(checkpoint.report));
  else
    print_verified(checkpoint);
  return checkpoint.report.ok() ? kOk : failed(checkpoint, !options.json);
}

}  // namespace

Command add_verify(ProgramSpec& program) {
  const auto options = std::make_shared<VerifyArguments>();
  Parser command(program, "verify", "Check that a checkpoint is complete and sound");
  command.footer(
      "Without --deep no tensor is read: it checks files, byte ranges, the coverage of every "
      "tensor, the head of every chunk, and decodes all objects and the common state. Exit code 1 "
      "if there is a problem; what cannot be opened at all ends with 3 to 6 (see dckpt --help).\n"
      "With --fleet, the exit code is the largest of all checkpoints.\n\n"
      "Examples:\n"
      "  dckpt verify run/checkpoints\n"
      "  dckpt verify run/checkpoints --all --deep      every iteration; sound ones share a line\n"
      "  dckpt verify iter_0001000 --deep --threads 8\n"
      "  dckpt verify --fleet roots.txt --state roots.state --max-rate 100MiB --deep\n"
      "  dckpt verify iter_0001000 --json | jq '.problems'");
  options->checkpoint.planner.clear();  // looks at what is stored
  add_checkpoint(command, options->checkpoint, false);
  add_backend(command, options->checkpoint);
  command.add_flag("--nan", options->verify.nan,
                   "Read every element, and report tensors with NaN or infinite ones");
  command.add_flag("--all", options->all,
                   "Every checkpoint of a training root, and which one a run would take");
  const std::vector<Option> of_one = command.options();
  command.add_flag("--deep", options->verify.deep,
                   "Read everything; compare CRC-32 checksums and integrity.json");
  add_fleet(command, options->fleet, of_one);
  add_threads(command, options->threads);
  add_json(command, options->json);
  return {&command.spec(), [options, command](Communicator& ranks) {
            options->has_iteration = command.given("--iteration");
            options->verify.threads = options->threads.value_or(VerifyOptions().threads);
            options->fleet.verify.deep = options->verify.deep;
            options->fleet.verify.threads = options->threads.value_or(all_cores());
            return run_verify(*options, ranks);
          }};
}

}  // namespace dckpt::tool
