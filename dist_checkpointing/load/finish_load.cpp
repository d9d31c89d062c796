#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/ranks/rank_phases.h"
#include "mapping/base/finding.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/wire_fields.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

constexpr std::size_t kShownTensors = 10;
constexpr std::size_t kShownPaths = 10;

/// A rank's report: use of the plan cache or why not, bytes by engine, and phases.
struct RankLoadReport {
  bool plan_cached = false;
  std::string why_planned{};
  std::uint64_t bytes_direct = 0;
  std::uint64_t bytes_mapped = 0;
  std::vector<ReplacedTensor> replaced{};
  std::vector<std::string> truncated{};
  PhaseClock::Taken open{};
  PhaseClock::Taken exchange{};
  PhaseClock::Taken read{};
};
constexpr auto fields(const RankLoadReport*) {
  using R = RankLoadReport;
  return std::tuple(Field(&R::plan_cached), Field(&R::why_planned), Field(&R::bytes_direct),
                    Field(&R::bytes_mapped), Field(&R::replaced), Field(&R::truncated),
                    Field(&R::open), Field(&R::exchange), Field(&R::read));
}

/// The report of the job: rank 0's elapsed time, and each phase merged over all ranks.
struct JobLoadReport {
  PhaseClock::Taken whole{};
  bool plan_cached = true;
  std::string why_planned{};
  PhaseReport open{};
  PhaseReport exchange{};
  PhaseReport read{};
  std::string engine{};
  Findings findings{};
};
constexpr auto fields(const JobLoadReport*) {
  using J = JobLoadReport;
  return std::tuple(Field(&J::whole), Field(&J::plan_cached), Field(&J::why_planned),
                    Field(&J::open), Field(&J::exchange), Field(&J::read), Field(&J::engine),
                    Field(&J::findings));
}

RankLoadReport report_of(LoadCall& load) {
  const LoadPlanCache no_plans;
  const LoadPlanCache& plans = load.plan_cache != nullptr ? *load.plan_cache : no_plans;
  const LoadReport& report = load.report;
  return {.plan_cached = plans.cache_hit(),
          .why_planned = plans.why_planned(),
          .bytes_direct = report.bytes_direct,
          .bytes_mapped = report.bytes_mapped,
          .replaced = report.replaced,
          .truncated = report.truncated,
          .open = load.phases.end(Phase::kOpen),
          .exchange = load.phases.end(Phase::kExchange),
          .read = load.phases.end(Phase::kRead, report.bytes_read)};
}

/// `read` counts all bytes, including direct and mapped ones.
std::string engine_text(std::uint64_t read, std::uint64_t direct, std::uint64_t mapped) {
  using Way = std::pair<std::uint64_t, const char*>;
  std::array<Way, 3> ways{{{read - std::min(read, direct + mapped), "buffered"},
                           {direct, "direct"},
                           {mapped, "mapped"}}};
  std::ranges::stable_sort(ways, std::greater(), &Way::first);
  std::string text;
  for (const auto& [bytes, name] : ways) {
    if (bytes > 0 && bytes >= read / 100) text += (text.empty() ? "" : " and ") + std::string(name);
  }
  return text;
}

std::string list_of(const std::vector<std::string>& tensors) {
  std::string list;
  std::size_t shown = 0;
  for (const std::string& tensor : tensors) {
    if (shown++ == kShownTensors) break;
    list += (list.empty() ? "" : ", ") + tensor;
  }
  if (tensors.size() > kShownTensors)
    list += str_format(" and {} more", grouped(tensors.size() - kShownTensors));
  return list;
}

void tell_truncated(const std::set<std::string>& truncated, Findings& findings) {
  if (truncated.empty()) return;
  std::vector<std::string> quoted;
  for (const std::string& key : truncated) quoted.push_back(quote(key));
  warn(findings,
       {FindingCode::kValuesTruncated,
        str_format(
            "less is asked for than is stored of {}; the rest is dropped (load.allow_truncation)",
            list_of(quoted)),
        {truncated.begin(), truncated.end()}});
}

void tell_replaced(const std::map<std::string, std::string>& replaced, Findings& findings) {
  if (replaced.empty()) return;
  std::vector<std::string> names;
  std::vector<std::string> texts;
  for (const auto& [name, stored] : replaced) {
    names.push_back(name);
    texts.push_back(str_format("{} ({})", quote(name), stored));
  }
  warn(findings, {FindingCode::kValuesReplaced,
                  str_format("the state has tensors for which something else is stored: {}; the "
                             "loaded state dict holds what is stored, and the memory of these "
                             "tensors was not filled",
                             list_of(texts)),
                  std::move(names)});
}

/// Warns of values that are kept because they are not stored. `kept` is rank 0's list.
void tell_kept(const std::vector<std::string>& kept, Findings& findings) {
  if (kept.empty()) return;
  warn(findings,
       {FindingCode::kValuesKept,
        str_format("the checkpoint's common state does not have {}; the state keeps its values",
                   quoted_list(kept, kShownPaths)),
        kept});
}

JobLoadReport joined(LoadCall& load, const std::vector<Bytes>& messages, double seconds) {
  std::vector<RankLoadReport> ranks;
  for (std::size_t rank = 0; rank < messages.size(); ++rank)
    ranks.push_back(
        read_message<RankLoadReport>(messages[rank], "the report of rank " + std::to_string(rank)));
  JobLoadReport job{.whole = {.seconds = seconds},
                    .open = over_ranks<RankLoadReport>(ranks, &RankLoadReport::open),
                    .exchange = over_ranks<RankLoadReport>(ranks, &RankLoadReport::exchange),
                    .read = over_ranks<RankLoadReport>(ranks, &RankLoadReport::read)};
  std::vector<std::string> reasons;
  std::uint64_t direct = 0;
  std::uint64_t mapped = 0;
  std::map<std::string, std::string> replaced;
  std::set<std::string> truncated;
  for (const RankLoadReport& rank : ranks) {
    job.plan_cached = job.plan_cached && rank.plan_cached;
    reasons.push_back(rank.why_planned);
    direct += rank.bytes_direct;
    mapped += rank.bytes_mapped;
    for (const ReplacedTensor& tensor : rank.replaced) replaced.emplace(tensor.name, tensor.stored);
    truncated.insert(rank.truncated.begin(), rank.truncated.end());
  }
  Findings& findings = load.report.findings;
  tell_replaced(replaced, findings);
  tell_truncated(truncated, findings);
  tell_kept(load.report.kept, findings);
  refuse(findings, load.options.error_on,
         "findings of these kinds are to be errors (load.error_on), so the state that was loaded "
         "is not returned; tensors in it are filled:");
  if (!job.plan_cached) job.why_planned = first_reason(reasons);
  job.engine = engine_text(job.read.bytes, direct, mapped);
  job.findings = findings;
  return job;
}

}  // namespace

void finish_load(LoadCall& load, const std::function<void()>& work) {
  const auto failure = failure_of([&] {
    load.watch.check();
    work();
  });
  const Bytes all = agree(load.comm, "putting the state together", failure,
                          message_of(report_of(load)), [&](const std::vector<Bytes>& ranks) {
                            const std::chrono::duration<double> time =
                                std::chrono::steady_clock::now() - load.begin;
                            return message_of(joined(load, ranks, time.count()));
                          });
  auto job = read_message<JobLoadReport>(all, "the report of a load from rank 0");
  load.report.seconds = job.whole.seconds;
  load.report.plan_cached = job.plan_cached;
  load.report.why_planned = std::move(job.why_planned);
  load.report.open = job.open;
  load.report.exchange = job.exchange;
  load.report.read = job.read;
  load.report.engine = std::move(job.engine);
  load.report.findings = std::move(job.findings);
}

}  // namespace dckpt
