#include "strategies/parallel/exchange_plan.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "mapping/planning/load/wanted_parts.h"
#include "strategies/comm/agree.h"
#include "strategies/parallel/load_plan_cache_content.h"
#include "strategies/parallel/parallel_read.h"
#include "strategies/parallel/request.h"

namespace dckpt {
namespace {

using Part = LoadDistribution::Part;
using Slab = LoadDistribution::Slab;
using Use = LoadDistribution::Use;

class ExchangePlanning {
 public:
  ExchangePlanning(LocatedReader& located, Exchange asked, std::uint64_t staging,
                   Communicator& comm, LoadPlanCache* cache)
      : located_(located),
        metadata_(located.metadata()),
        asked_(asked),
        staging_(staging),
        comm_(comm),
        cache_(cache),
        rank_(static_cast<std::uint32_t>(comm.rank())) {}

  std::shared_ptr<const ExchangePlan> run(std::span<const ReadItem> items,
                                          std::span<const Tensor> destinations) {
    Bytes message;
    agree(comm_, "listing the wanted parts", [&] {
      check_destinations(located_, items, destinations, /*cast=*/false, /*on_devices=*/true);
      message = ask(items);
    });
    const std::vector<Bytes> messages = comm_.all_gather(message);
    std::vector<Request> requests;
    agree(comm_, "comparing the wanted parts", [&] { requests = decode_requests(messages); });
    const auto is_known = [&](const Request& request) {
      return request.known != 0 && request.known == requests.front().known;
    };
    if (std::all_of(requests.begin(), requests.end(), is_known)) {
      cache_->hit();
      return cache_->plan();
    }
    std::vector<Bytes> rest;
    if (std::any_of(requests.begin(), requests.end(),
                    [](const Request& request) { return request.known != 0; })) {
      rest = comm_.all_gather(known_ != 0 ? ByteView(now_.wanted) : ByteView());
      for (std::size_t rank = 0; rank < requests.size(); ++rank) {
        if (requests[rank].known != 0) requests[rank].wanted = rest[rank];
      }
    }
    plan(requests);
    return plan_;
  }

 private:
  /// Returns the encoded parts that this rank wants, or the number of the plan remembered for them.
  Bytes ask(std::span<const ReadItem> items) {
    now_ = {.wanted = WantedParts(items).encode(),
            .exchange = asked_,
            .budget = round_budget(staging_, comm_.size()),
            .rank = comm_.rank(),
            .ranks = comm_.size()};
    if (cache_ != nullptr) {
      now_.layout = layout_of(metadata_);
      known_ = cache_->known(now_);
      if (known_ != 0 && !fits(cache_->plan()->distribution)) known_ = 0;
      cache_->miss(known_ != 0 ? "" : cache_->why_unknown(now_));
    }
    return encode_request({.identity = identity_of(metadata_),
                           .budget = now_.budget,
                           .known = known_,
                           .wanted = known_ != 0 ? ByteView() : ByteView(now_.wanted)});
  }

  /// Returns whether a plan fits a checkpoint: hashes of layouts may collide, by accident or by
  /// design.
  bool fits(const LoadDistribution& distribution) const {
    const auto is_sound = [&](const auto& piece) {
      if (piece.tensor >= metadata_.tensors.size()) return false;
      const TensorStorageMetadata& tensor = metadata_.tensors[piece.tensor];
      return piece.chunk < tensor.chunks.size() && dckpt::fits(piece.box, tensor.global_shape()) &&
             piece.bytes == static_cast<std::uint64_t>(numel(piece.box.sizes)) *
                                item_size(tensor.properties.dtype);
    };
    return std::ranges::all_of(distribution.shared, is_sound) &&
           std::ranges::all_of(distribution.own, is_sound) &&
           std::ranges::all_of(distribution.slabs, is_sound);
  }

  void plan(std::span<const Request> requests) {
    std::vector<WantedParts> wanted;
    std::uint64_t number = 0;
    Bytes found;
    const std::uint64_t budget = smallest_budget(requests);
    agree(comm_, "sharing out the reading", [&] {
      std::vector<ByteView> all_wanted;
      for (const Request& request : requests) {
        wanted.push_back(with_context({.rank = static_cast<int>(wanted.size())}, [&] {
          return WantedParts::decode(request.wanted, metadata_);
        }));
        all_wanted.push_back(request.wanted);
      }
      if (cache_ != nullptr) number = hash_of_wanted(now_.layout, all_wanted);
      share_out(wanted, budget, {});
      found = LocatedReader::look_for(located_, plan_->distribution.split_chunks, rank_);
    });
    std::vector<Bytes> answers;
    if (!plan_->distribution.split_chunks.empty()) answers = comm_.all_gather(found);
    agree(comm_, "preparing the exchange", [&] {
      if (const auto read_whole = located_.learn(plan_->distribution.split_chunks, answers);
          !read_whole.empty())
        share_out(wanted, budget, read_whole);
      if (plan_->exchanges) make_schedule(budget);
    });
    if (cache_ != nullptr) cache_->remember(std::move(now_), number, plan_);
  }

  void share_out(std::span<const WantedParts> wanted, std::uint64_t budget,
                 std::span<const ChunkNumber> read_whole) {
    PartLimits limits;
    limits.largest = std::max<std::uint64_t>(std::min(limits.largest, budget), 1);
    limits.largest_slab =
        std::max<std::uint64_t>(std::min(limits.largest_slab, limits.largest / 2), 1);
    limits.smallest = std::min(limits.smallest, limits.largest);
    plan_->distribution = distribute_load(metadata_, wanted, rank_, limits, read_whole);
    plan_->exchanges = asked_ != Exchange::kAuto ||
                       plan_->distribution.saved_bytes >= kWorthExchanging ||
                       !plan_->distribution.slabs.empty();
  }

  /// Returns the ranks that want a part, except one.
  std::vector<std::uint32_t> others(const Part& part, std::uint32_t one) const {
    std::vector<std::uint32_t> ranks;
    for (const Use& use : plan_->distribution.uses_of(part)) {
      if (use.rank != one && (ranks.empty() || ranks.back() != use.rank)) ranks.push_back(use.rank);
    }
    return ranks;
  }

  void make_schedule(std::uint64_t budget) {
    ScheduleBuilder builder(static_cast<std::uint32_t>(comm_.size()), rank_, budget);
    const LoadDistribution& distribution = plan_->distribution;
    for (std::uint32_t i = 0; i < distribution.shared.size(); ++i) {
      const Part& part = distribution.shared[i];
      if (part.slab == LoadDistribution::kNoSlab) {
        builder.add(part.holder, {i, others(part, part.holder), part.bytes});
      } else if (distribution.slabs[part.slab].first_part == i) {
        add_slab(part.slab, builder);
      }
    }
    plan_->schedule = builder.finish();
  }

  void add_slab(std::uint32_t index, ScheduleBuilder& builder) {
    const LoadDistribution& distribution = plan_->distribution;
    const Slab& slab = distribution.slabs[index];
    std::vector<ScheduledMessage> messages;
    for (std::uint32_t i = slab.first_part; i < slab.first_part + slab.part_count; ++i) {
      const Part& part = distribution.shared[i];
      if (part.holder != slab.reader) messages.push_back({i, {part.holder}, part.bytes});
    }
    const std::uint32_t round = builder.add_held(slab.reader, messages, slab.bytes);
    if (slab.reader == rank_) plan_->slab_rounds.emplace_back(index, round);
    for (std::uint32_t i = slab.first_part; i < slab.first_part + slab.part_count; ++i) {
      const Part& part = distribution.shared[i];
      builder.add(part.holder, {i, others(part, part.holder), part.bytes},
                  part.holder == slab.reader ? round : round + 1);
    }
  }

  LocatedReader& located_;
  const Metadata& metadata_;
  Exchange asked_;
  std::uint64_t staging_;
  Communicator& comm_;
  LoadPlanCache* cache_;
  std::uint32_t rank_;
  LoadPlanCache::Key now_;
  std::uint64_t known_ = 0;
  std::shared_ptr<ExchangePlan> plan_ = std::make_shared<ExchangePlan>();
};

}  // namespace

std::shared_ptr<const ExchangePlan> plan_parallel_read(LocatedReader& located,
                                                       std::span<const ReadItem> items,
                                                       std::span<const Tensor> destinations,
                                                       Communicator& comm,
                                                       const ParallelReadOptions& options) {
  return ExchangePlanning(located, options.exchange, options.read.staging, comm, options.cache)
      .run(items, destinations);
}

}  // namespace dckpt
