#include "operations/inspect/verify.h"

#include <algorithm>

#include "dist_checkpointing/verify/problems.h"
#include "mapping/base/counted.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "operations/inspect/stats.h"

namespace dckpt {
namespace {

/// Adds a problem for each tensor with elements that are not finite.
void find_special(const CheckpointReader& reader, const VerifyOptions& options,
                  VerifyReport& report, Communicator& comm) {
  if (!report.ok()) {
    report.findings.push_back({FindingCode::kNoEffect,
                               "no elements were searched for NaN, as the checkpoint has other "
                               "problems"});
    return;
  }
  attempt(report.problems, {}, [&] {
    const StatsReport found =
        stats(reader, {.threads = options.threads, .progress = options.progress}, comm);
    const auto special = std::ranges::find(found.findings, FindingCode::kNotFinite, &Finding::code);
    if (special == found.findings.end()) return;
    for (const TensorStats& tensor : found.tensors) {
      if (std::ranges::find(special->keys, tensor.key) == special->keys.end()) continue;
      report.problems.emplace_back(
          ErrorCode::kCorrupt,
          str_format("of {}, {} NaN and {} infinite", counted(tensor.elements->count, "element"),
                     counted(tensor.elements->nan, "is", "are"),
                     grouped(tensor.elements->infinite)),
          ErrorContext{.key = tensor.key});
    }
  });
}

}  // namespace

VerifyReport verify(const CheckpointReader& reader, const VerifyOptions& options) {
  return verify(reader, options, *single_rank());
}

VerifyReport verify(const CheckpointReader& reader, const VerifyOptions& options,
                    Communicator& comm) try {
  VerifyReport report = check_stored(
      reader, {.deep = options.deep, .threads = options.threads, .progress = options.progress},
      comm);
  if (options.nan) find_special(reader, options, report, comm);
  return report;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
