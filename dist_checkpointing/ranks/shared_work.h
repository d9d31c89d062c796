#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/progress.h"
#include "mapping/base/wire_fields.h"
#include "strategies/comm/communicator.h"
#include "strategies/comm/heartbeat.h"

namespace dckpt {

/// Work on a checkpoint that all ranks of a job have opened. It consists of steps that every rank
/// takes alike, and of units that they divide by bytes. All ranks get all results, the same as
/// those of a single rank. However long the work takes, only a rank that gives no sign of life
/// within the timeout of the communicator ends it.
class SharedWork {
 public:
  /// `what` names the work in messages ("computing digests").
  SharedWork(Communicator& comm, std::string what, int threads, Progress progress = {});

  /// Takes a step on every rank. If it fails on rank 0, all throw rank 0's error as it is; if only
  /// on others, an error that names them. Collective.
  void on_all_ranks(const std::function<void()>& step);

  /// Throws on all ranks if a text differs between them; `what` is a plural noun for it ("files").
  /// Collective.
  void require_same(const std::string& what, const std::function<std::string()>& text);

  /// Returns compute(i) for every unit i, of sizes[i] bytes; it is called on one rank, from up to
  /// `threads` threads, and passes add() the bytes done. If it throws on any rank, all throw an
  /// error that names the rank. A Result travels as mapping/base/wire_fields.h says.
  /// Collective.
  template <typename Result, typename Compute>
  std::vector<Result> share(std::span<const std::uint64_t> sizes, Compute&& compute) {
    std::vector<Result> results(sizes.size());
    const std::vector<std::vector<std::size_t>> shares = divide(sizes);
    run(shares, sizes, [&](std::size_t unit) { results[unit] = compute(unit); });
    if (comm_.size() == 1) return results;
    Bytes mine;
    WireWriter writer(mine);
    for (const std::size_t unit : shares[static_cast<std::size_t>(comm_.rank())])
      write_value(writer, results[unit]);
    const std::vector<Bytes> all = comm_.all_gather(mine);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      WireReader reader(all[rank], what_ + ": the results of rank " + std::to_string(rank));
      for (const std::size_t unit : shares[rank]) read_value(reader, results[unit]);
      reader.finish();
    }
    return results;
  }

  /// Sets the bytes of all units, for the progress, if share() is called more than once.
  void expect(std::uint64_t bytes);
  /// Counts bytes that are done, for the progress of all ranks. For the working threads.
  void add(std::uint64_t bytes);

 private:
  /// Returns the units of each rank, ascending: the same on all ranks.
  std::vector<std::vector<std::size_t>> divide(std::span<const std::uint64_t> sizes) const;
  void run(std::span<const std::vector<std::size_t>> shares, std::span<const std::uint64_t> sizes,
           const std::function<void(std::size_t)>& work);

  Communicator& comm_;
  const std::string what_;
  const int threads_;
  const Progress progress_;
  std::uint64_t expected_ = 0;
  std::optional<ProgressCounter> counter_{};  // of a single rank
  std::optional<Heartbeat> heartbeat_{};      // of several ranks
};

}  // namespace dckpt
