#include "operations/convert/carry_out.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/training_root/removal.h"
#include "mapping/base/error.h"
#include "operations/convert/conversion_findings.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/interrupted.h"
#include "operations/convert/workers/pooled_copy.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

/// Tells why there is nothing to resume.
std::string why_none_left(const Location& destination) {
  const std::vector<std::string> elsewhere = attempts_elsewhere(destination);
  if (elsewhere.empty()) return "no interrupted conversion has left anything";
  HiddenSibling kept = parse_hidden_sibling(elsewhere.front()).value_or(HiddenSibling{});
  kept.purpose = "interrupted";
  return str_format(
      "{} may still be written by another host or container; if that one has ended, as when this "
      "host was restarted, rename it to {} and resume again",
      quoted_list(elsewhere), quote(to_string(kept)));
}

/// Returns what an interrupted conversion has left for this one, and notes if there is nothing.
std::optional<Interrupted> left_by_another(const CopyJob& job, Findings& findings) {
  if (!job.resume) return std::nullopt;
  std::optional<Interrupted> left = find_interrupted(job.destination, job.facts, shared_facts(job));
  if (!left)
    findings.push_back(
        {FindingCode::kNoEffect, "nothing to resume: " + why_none_left(job.destination)});
  require_none(job.checks.error_on, findings);
  return left;
}

/// Writes the copy alone. Records that turn out not to be plain tensors are copied as they are, if
/// they may be.
void carry_out_alone(const CopyJob& job, const std::string& left, ConvertReport& report) try {
  write_copy(job, left, report);
} catch (const CheckpointError& error) {
  if (error.code() != ErrorCode::kUnsupported || job.resume || job.dry_run || !job.keeps_records ||
      !keep_records(job.copy, job.reader))
    throw;
  require_none(job.checks.error_on, job.copy.contents.findings);
  write_copy(job, left, report);
}

}  // namespace

Findings carry_out(const CopyJob& job, ConvertReport& report) {
  Findings findings;
  const std::optional<Interrupted> left = left_by_another(job, findings);
  if (left) report.kept_files = left->files;
  const std::optional<Location> pool = left && left->pool ? left->pool : job.workers.directory;
  if (pool && !job.dry_run) {
    share_copy(job, *pool, report);
    if (left && left->pool && parse_hidden_sibling(pool->name())) remove_pool(*pool, true);
  } else {
    if (!job.dry_run)
      require_space(job.destination,
                    report.disk_bytes - std::min(report.disk_bytes, left ? left->bytes : 0));
    carry_out_alone(job, left ? left->directory : "", report);
  }
  append(findings, std::exchange(job.copy.contents.findings, {}));
  return findings;
}

}  // namespace dckpt
