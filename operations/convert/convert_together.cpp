#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/ranks/shared_work.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "operations/convert/convert.h"
#include "operations/convert/workers/pooled_copy.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

/// Work that cannot be shared, or is none.
bool is_for_one(const ConvertOptions& options) {
  return options.dry_run || options.target.resume || options.checks.round_trip;
}

/// Returns the directory of a pool beside the destination, which lasts as long as the job.
Location pool_beside(const Location& destination, Communicator& comm) {
  const std::string token = comm.rank() == 0 ? staging_token() : "";
  const Bytes common = comm.broadcast(as_bytes(token), 0);
  return Location(destination.storage(),
                  to_string(HiddenSibling{destination.name(), "workers",
                                          std::string(as_text(ByteView(common)))}));
}

/// Returns the report of a conversion that others have published; nothing if it cannot.
std::optional<ConvertReport> report_of_others(const Location& source, const Location& destination,
                                              const ConvertOptions& options) {
  try {
    return convert(source, destination, options);
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

}  // namespace

ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options, Communicator& comm) {
  if (comm.size() == 1) return convert(source, destination, options);
  SharedWork work(comm, "converting the checkpoint", 1);
  ConvertReport report;
  if (is_for_one(options)) {
    work.on_all_ranks([&] {
      if (comm.rank() == 0) report = convert(source, destination, options);
    });
    return report;
  }
  ConvertOptions shared = options;
  std::optional<Location> own;
  if (!options.workers.directory)
    shared.workers.directory = own.emplace(pool_beside(destination, comm));

  std::optional<CheckpointError> failure;
  work.on_all_ranks([&] {
    try {
      report = convert(source, destination, shared);
    } catch (const CheckpointError& error) {
      failure = error;
    }
  });
  const std::vector<Bytes> failed = comm.all_gather(to_bytes(failure ? failure->what() : ""));
  const bool published =
      std::ranges::any_of(failed, [](const Bytes& text) { return text.empty(); });
  work.on_all_ranks([&] {
    if (!published && comm.rank() == 0 && own) remove_pool(*own, false);
    if (!published) throw CheckpointError(*failure);
  });
  for (std::size_t rank = 0; comm.rank() == 0 && rank < failed.size(); ++rank) {
    if (!failed[rank].empty())
      log_warning(str_format("other ranks have done the work of rank {}, which failed: {}", rank,
                             std::string(as_text(ByteView(failed[rank])))));
  }
  const auto others =
      failure ? report_of_others(source, destination, shared) : std::optional(std::move(report));
  if (own) {
    work.on_all_ranks([&] {
      if (comm.rank() == 0) remove_pool(*own, true);
    });
  }
  if (!others) throw CheckpointError(*failure);
  report = *others;
  if (own) report.workers.reset();
  return report;
}

}  // namespace dckpt
