#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/ranks/rank_phases.h"
#include "mapping/base/finding.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

constexpr std::size_t kShownTensors = 10;
constexpr std::size_t kShownPaths = 10;

constexpr std::array<std::pair<Phase, PhaseReport LoadReport::*>, 3> kLoadPhases{
    {{Phase::kOpen, &LoadReport::open},
     {Phase::kExchange, &LoadReport::exchange},
     {Phase::kRead, &LoadReport::read}}};

/// Encodes a rank's report: use of the plan cache or why not, bytes by engine, replaced and
/// truncated tensors, and phases.
Bytes told_by(LoadCall& load) {
  Bytes bytes;
  WireWriter writer(bytes);
  const LoadPlanCache no_plans;
  const LoadPlanCache& plans = load.plan_cache != nullptr ? *load.plan_cache : no_plans;
  writer.number(plans.cache_hit() ? 1 : 0);
  writer.text(plans.why_planned());
  writer.number(load.report.bytes_direct);
  writer.number(load.report.bytes_mapped);
  writer.number(load.report.replaced.size());
  for (const ReplacedTensor& tensor : load.report.replaced)
    for (const std::string* const text : {&tensor.name, &tensor.stored}) writer.text(*text);
  writer.number(load.report.truncated.size());
  for (const std::string& key : load.report.truncated) writer.text(key);
  for (const auto& [phase, member] : kLoadPhases)
    write_to(writer, load.phases.end(phase, phase == Phase::kRead ? load.report.bytes_read : 0));
  return bytes;
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

/// Encodes the job-wide report: rank 0's elapsed time, use of the plan cache, each phase merged
/// over all ranks, the engine and the findings.
Bytes joined(LoadCall& load, const std::vector<Bytes>& ranks, double seconds) {
  std::array<std::vector<PhaseClock::Taken>, kLoadPhases.size()> taken;
  std::vector<std::string> reasons;
  bool cached = true;
  std::uint64_t direct = 0;
  std::uint64_t mapped = 0;
  std::map<std::string, std::string> replaced;
  std::set<std::string> truncated;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    WireReader reader(ranks[rank], "the report of rank " + std::to_string(rank));
    cached = reader.number(1) == 1 && cached;
    reasons.push_back(reader.text());
    direct += reader.number();
    mapped += reader.number();
    for (std::size_t count = reader.count(); count > 0; --count) {
      std::string name = reader.text();
      replaced.emplace(std::move(name), reader.text());
    }
    for (std::size_t count = reader.count(); count > 0; --count) truncated.insert(reader.text());
    for (auto& phase : taken) phase.push_back(read_taken(reader));
    reader.finish();
  }
  Findings& findings = load.report.findings;
  tell_replaced(replaced, findings);
  tell_truncated(truncated, findings);
  tell_kept(load.report.kept, findings);
  refuse(findings, load.options.error_on,
         "findings of these kinds are to be errors (load.error_on), so the state that was loaded "
         "is not returned; tensors in it are filled:");
  Bytes bytes;
  WireWriter writer(bytes);
  write_to(writer, PhaseClock::Taken{.seconds = seconds});
  writer.number(cached ? 1 : 0);
  writer.text(cached ? "" : first_reason(reasons));
  std::uint64_t read = 0;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const PhaseReport phase = over_ranks(taken[i]);
    if (kLoadPhases[i].first == Phase::kRead) read = phase.bytes;
    write_to(writer, phase);
  }
  writer.text(engine_text(read, direct, mapped));
  write_to(writer, findings);
  return bytes;
}

}  // namespace

void finish_load(LoadCall& load, const std::function<void()>& work) {
  const auto failure = failure_of([&] {
    load.watch.check();
    work();
  });
  const Bytes all = agree(load.comm, "putting the state together", failure, told_by(load),
                          [&](const std::vector<Bytes>& ranks) {
                            const std::chrono::duration<double> time =
                                std::chrono::steady_clock::now() - load.begin;
                            return joined(load, ranks, time.count());
                          });
  WireReader reader(all, "the report of a load from rank 0");
  load.report.seconds = read_taken(reader).seconds;
  load.report.plan_cached = reader.number(1) == 1;
  load.report.why_planned = reader.text();
  for (const auto& [phase, member] : kLoadPhases) load.report.*member = read_phase_report(reader);
  load.report.engine = reader.text();
  load.report.findings = read_findings(reader);
  reader.finish();
}

}  // namespace dckpt
