#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mapping/base/api.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "transfer/transfer_plan.h"

namespace DCKPT_API dckpt {

struct TransferOptions {
  /// The most bytes for data in transit on a rank: half for what it sends, half for what it
  /// receives. The smallest of all ranks is used; a single element may exceed it.
  std::uint64_t staging = std::uint64_t{64} << 20;
};

/// The outcome of a transfer on this rank.
struct TransferReport {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_copied = 0;  ///< from this rank's own memory
  std::uint32_t rounds = 0;        ///< the same on all ranks
  bool plan_cached = false;        ///< the plan of the previous transfer was reused; the same, too
  /// Otherwise the difference on this rank; empty if it was on another one.
  std::string why_planned{};
  double planning_seconds = 0;
  double seconds = 0;
};

/// Returns one line: "1.20 s (planning 0.01 s, cached; 3 rounds; 2.0 GiB sent, …)".
std::string to_string(const TransferReport& report);

/// The plan that a rank remembers between transfers. Each rank keeps one and passes it to every
/// transfer. If no rank's tensors, nor their parts, nor `staging`, have changed since the last one,
/// the ranks exchange a few numbers and plan nothing; if any has, all plan again. Keeping it is
/// always correct. Used by one thread at a time. It takes the memory of a rank's part of the plan.
class TransferCache {
 public:
  struct Content;  // internal

  TransferCache() noexcept;
  ~TransferCache();
  TransferCache(TransferCache&& other) noexcept;
  TransferCache& operator=(TransferCache&& other) noexcept;

  // The following is called by transfers.
  const Content* content() const noexcept { return content_.get(); }
  const Content& remember(Content content);

 private:
  std::unique_ptr<const Content> content_;
};

/// Fills the ShardedTensors of `to` with the values of those of `from`, between running ranks and
/// without storage: from the layout of a trainer to another one, or to that of an inference engine.
/// Collective over `comm`: every rank passes the tensors that it holds and those that it wants,
/// either of which may be none (Value()).
///
/// A tensor is recognized by its key. Each rank receives every byte that it wants once, in rounds
/// of bounded memory. The ranks that hold the same box, as main replica or as another replica of
/// it, share the sending by bytes; one of them that wants a part of it copies that in its own
/// memory. Tensors may be anywhere in CPU memory or in that of a registered device
/// (docs/gpu_tensors.md), with any strides; over a Communicator of NCCL they travel from device to
/// device.
///
/// `data` of each ShardedTensor of `to` is filled in place if it has memory, and is a new CPU
/// tensor otherwise. Factories hold the merged tensor, as after load(). All other values of `to`
/// stay as they are, and all other values of `from` are ignored; only ShardedObjects in `to` are
/// refused (unsupported). `from` does not change and may have keys that nobody wants.
///
/// Before the first byte moves, layouts are checked as saves and loads check them. Throws the same
/// CheckpointError on all ranks: (mismatch) naming keys and ranks where dtypes or shapes differ,
/// main replicas have elements in common, or no main replica holds what a rank wants; (invalid
/// argument) for shards without data in `from`, and for memory of `to` that overlaps other memory
/// of `from` or `to` in any way than being the same part of the same tensor. After an error during
/// the transfer itself, the memory of `to` is partly filled.
TransferReport transfer(const StateDict& from, StateDict& to, Communicator& comm,
                        const TransferOptions& options = {});
TransferReport transfer(const StateDict& from, StateDict& to, Communicator& comm,
                        TransferCache& cache, const TransferOptions& options = {});

/// Returns the ShardedTensors of a rank as a layout for make_transfer_plan(); factories are
/// applied.
[[nodiscard]] TransferLayout transfer_layout(const StateDict& state);

/// Returns the plan of a transfer without carrying it out, on rank 0; on other ranks an empty one.
/// Collective. Throws as transfer() does; the shards need no data.
[[nodiscard]] TransferPlan plan_transfer(const StateDict& from, const StateDict& to,
                                         Communicator& comm);

}  // namespace dckpt
