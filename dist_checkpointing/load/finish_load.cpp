#include "dist_checkpointing/load/finish_load.h"

#include <array>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/phase_report.h"
#include "mapping/base/wire.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

constexpr std::array<std::pair<Phase, PhaseReport LoadReport::*>, 3> kLoadPhases{
    {{Phase::kOpen, &LoadReport::open},
     {Phase::kExchange, &LoadReport::exchange},
     {Phase::kRead, &LoadReport::read}}};

/// Of a rank: whether it used the plan of last time, why not, and its phases.
Bytes told_by(const LoadContext& load) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(load.plan_cache.cache_hit() ? 1 : 0);
  writer.text(load.plan_cache.why_planned());
  for (const auto& [phase, member] : kLoadPhases)
    write_to(writer, load.phases.end(phase, phase == Phase::kRead ? load.report.bytes_read : 0));
  return bytes;
}

/// Of the job: the same from all ranks, after rank 0's time.
Bytes joined(const std::vector<Bytes>& ranks, double seconds) {
  std::array<std::vector<PhaseClock::Taken>, kLoadPhases.size()> taken;
  std::vector<std::string> reasons;
  bool cached = true;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    WireReader reader(ranks[rank], "the report of rank " + std::to_string(rank));
    cached = reader.number(1) == 1 && cached;
    reasons.push_back(reader.text());
    for (auto& phase : taken) phase.push_back(read_taken(reader));
    reader.finish();
  }
  Bytes bytes;
  WireWriter writer(bytes);
  write_to(writer, PhaseClock::Taken{.seconds = seconds});
  writer.number(cached ? 1 : 0);
  writer.text(cached ? "" : first_reason(reasons));
  for (const auto& phase : taken) write_to(writer, over_ranks(phase));
  return bytes;
}

}  // namespace

void finish_load(const LoadContext& load, const std::function<void()>& work) {
  const auto failure = failure_of(work);
  const Bytes all = agree(load.comm, "putting the state together", failure, told_by(load),
                          [&](const std::vector<Bytes>& ranks) {
                            const std::chrono::duration<double> time =
                                std::chrono::steady_clock::now() - load.begin;
                            return joined(ranks, time.count());
                          });
  WireReader reader(all, "the report of a load from rank 0");
  load.report.seconds = read_taken(reader).seconds;
  load.report.plan_cached = reader.number(1) == 1;
  load.report.why_planned = reader.text();
  for (const auto& [phase, member] : kLoadPhases) load.report.*member = read_phase_report(reader);
  reader.finish();
}

}  // namespace dckpt
