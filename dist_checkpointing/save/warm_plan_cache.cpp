#include "dist_checkpointing/save/warm_plan_cache.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/readable_file.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"
#include "mapping/planning/save/plan_file.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/phase_label.h"
#include "strategies/contract/common_state.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

/// The plans that rank 0 finds in a checkpoint, or why there are none.
struct KeptPlans {
  std::shared_ptr<const SavePlanCache::Global> decided{};
  std::string why_none = "the checkpoint keeps no plans";
};

/// Returns the metadata that the plans were made for, which include the common state as an object.
Metadata planned_metadata(const CheckpointReader& reader) {
  Metadata metadata = reader.metadata();
  if (const auto position = reader.info().common_object)
    metadata.objects.insert(metadata.objects.begin() + static_cast<std::ptrdiff_t>(*position),
                            {.key = kCommonStateKey});
  return metadata;
}

KeptPlans find_kept_plans(const CheckpointReader& reader, std::size_t ranks) {
  KeptPlans kept;
  const Storage& storage = reader.storage();
  try {
    if (!storage.stat(kPlanFile)) return kept;
    kept.decided = decode_plan_file(read_file(*storage.open(kPlanFile), kMaxFileBytes),
                                    planned_metadata(reader));
    if (const std::size_t stored = kept.decided->fingerprints.size(); stored != ranks) {
      kept.why_none = str_format("the checkpoint keeps the plans of {}, and this job has {}",
                                 counted(stored, "rank"), ranks);
      kept.decided.reset();
    }
  } catch (const CheckpointError& error) {
    kept.why_none = str_format("the plans in {} cannot be used: {}", kPlanFile, error.message());
    log_warning(str_format("{}: {}; the next save plans anew",
                           quote(storage.display_path(kPlanFile)), error.message()));
  }
  return kept;
}

/// Kinds of a message to a rank: kNone and the reason, or kFingerprint and that of its plan.
enum Kind : std::uint8_t { kNone, kFingerprint };

Bytes message_to(std::size_t rank, const KeptPlans& kept) {
  Bytes message;
  WireWriter writer(message);
  if (kept.decided) {
    writer.number(kFingerprint);
    writer.number(kept.decided->fingerprints[rank].low);
    writer.number(kept.decided->fingerprints[rank].high);
  } else {
    writer.number(kNone);
    writer.text(kept.why_none);
  }
  return message;
}

}  // namespace

bool warm_plan_cache(SavePlanCache& cache, const Location& location, Communicator& comm,
                     const OpenOptions& options) try {
  const PhaseLabel label("reading the plans that the checkpoint keeps");
  KeptPlans kept;
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<Bytes> messages;
  agree(comm, "reading the plans that the checkpoint keeps", [&] {
    if (comm.rank() != 0) return;
    kept = find_kept_plans(*open_checkpoint(location, options), ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) messages.push_back(message_to(rank, kept));
  });
  const Bytes message = comm.scatter(messages, 0);
  bool found = false;
  agree(comm, "accepting the plans that the checkpoint keeps", [&] {
    WireReader reader(message, "what rank 0 says of the plans that the checkpoint keeps");
    const std::uint64_t kind = reader.number(kFingerprint);
    found = kind != kNone;
    if (kind == kNone) {
      cache.clear(reader.text());
    } else {
      Fingerprint own;
      own.low = reader.number();
      own.high = reader.number();
      cache.seed(own, std::move(kept.decided));
    }
  });
  return found;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
