#include "mapping/planning/save/balance.h"

#include <algorithm>

#include "mapping/base/format.h"
#include "mapping/base/ranks_text.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

class WriterChooser {
 public:
  WriterChooser(const CollectedItems& collected, std::span<const DedupedKey> deduped,
                const GlobalPlanOptions& options)
      : collected_(collected), deduped_(deduped), options_(options), load_(collected.ranks()) {
    result_.chosen.assign(collected.items.size(), 0);
  }

  ChosenItems run() {
    choose_all();
    if (options_.choose_writers) ask();
    return std::move(result_);
  }

 private:
  void choose_all() {
    if (options_.kind == PlannerKind::kHyperParallel) {
      for_each_part([&](const Part& part) {
        if (holders(part) == 1) choose(part);
      });
      for_each_part([&](const Part& part) {
        if (holders(part) > 1) choose(part);
      });
      return;
    }
    if (!options_.use_replicas || options_.any_holder()) {
      for_each_part([&](const Part& part) { choose(part); });
      return;
    }
    struct SharedPart : Part {
      std::size_t holders = 0;
      std::uint64_t bytes = 0;
    };
    std::vector<SharedPart> parts;
    for_each_part([&](const Part& part) {
      parts.push_back({part, holders(part), collected_.keys[part.item.key].bytes(part.item.box)});
    });
    std::stable_sort(parts.begin(), parts.end(), [](const SharedPart& a, const SharedPart& b) {
      return a.holders != b.holders ? a.holders < b.holders : a.bytes > b.bytes;
    });
    for (const SharedPart& part : parts) choose(part);
  }

  /// The first of the items with equal boxes.
  struct Part {
    CollectedItems::Item item;
    std::size_t rank = 0;
  };

  template <typename Visit>
  void for_each_part(Visit&& visit) const {
    for (std::size_t rank = 0; rank < collected_.ranks(); ++rank) {
      for (std::size_t i = collected_.rank_begin[rank]; i < collected_.rank_end(rank); ++i) {
        if (is_first(collected_.items[i])) visit(Part{collected_.items[i], rank});
      }
    }
  }

  std::size_t holders(const Part& part) const {
    return deduped_[part.item.key].equal.equals_of(part.item.box).size();
  }

  bool is_first(const CollectedItems::Item& item) const {
    return item.box != CollectedItems::kNoBox && deduped_[item.key].equal.is_first(item.box);
  }

  std::size_t rank_of(const PlannedKey& planned, std::uint32_t box) const {
    return collected_.rank_of(planned.items[box]);
  }

  void choose(const Part& part) {
    const CollectedItems::Item& item = part.item;
    const PlannedKey& planned = collected_.keys[item.key];
    const DedupedKey& deduped = deduped_[item.key];
    if (!deduped.left_out.empty() && deduped.left_out[item.box]) return;
    const auto holders = deduped.equal.equals_of(item.box);
    if (holders.size() == 1) {
      if (!planned.is_replica(item.box) || options_.any_holder())
        write(planned, item.box, part.rank);
      return;
    }
    // Replicas of a tensor are equal; for an object, Megatron saves the main replica.
    const bool any_replica = options_.any_holder() ||
                             (options_.use_replicas && planned.kind != WriteItem::Kind::kObject);
    std::vector<std::uint32_t> writers;  // items whose ranks may write the part
    std::size_t mains = 0;
    for (const std::uint32_t holder : holders) {
      const bool main = !planned.is_replica(holder);
      mains += main ? 1 : 0;
      if (main || any_replica) writers.push_back(holder);
    }
    if (mains == 0 && !options_.any_holder()) return;
    const bool forbidden =
        options_.any_holder() ? options_.dedup == Dedup::kOff && !options_.redundant() : mains > 1;
    // An uneven sharding may give a rank several parts without elements at the same place.
    const bool empty = numel(planned.boxes.sizes(item.box)) == 0;
    if (!empty && (forbidden || held_twice(planned, writers))) report_duplicate(planned, writers);
    if (options_.redundant()) return write_all(planned, writers);
    if (options_.split_replicas && !planned.reshaped && planned.bytes(item.box) >= kSplitBytes)
      return split(planned, std::move(writers));
    std::uint32_t chosen = writers.front();
    for (const std::uint32_t writer : writers) {
      if (options_.dedup == Dedup::kBalanced &&
          load_[rank_of(planned, writer)] < load_[rank_of(planned, chosen)])
        chosen = writer;
      if (options_.dedup == Dedup::kOff && !planned.is_replica(writer)) chosen = writer;
    }
    write(planned, chosen, rank_of(planned, chosen));
    if (options_.choose_writers)
      open_.push_back({&planned, std::move(writers), planned.items[chosen]});
  }

  /// Lets the caller choose among the ranks that may write.
  void ask() {
    std::vector<int> ranks;
    std::vector<WriterChoice> choices;
    for (const OpenChoice& open : open_) {
      for (const std::uint32_t writer : open.writers)
        ranks.push_back(static_cast<int>(rank_of(*open.planned, writer)));
    }
    std::size_t begin = 0;
    for (const OpenChoice& open : open_) {
      choices.push_back({open.planned->key, open.planned->bytes(open.writers.front()),
                         std::span(ranks).subspan(begin, open.writers.size()),
                         static_cast<int>(collected_.rank_of(open.chosen))});
      begin += open.writers.size();
    }
    options_.choose_writers(choices);
    for (std::size_t i = 0; i < open_.size(); ++i) {
      const WriterChoice& choice = choices[i];
      const auto found = std::ranges::find(choice.ranks, choice.writer);
      if (found == choice.ranks.end()) {
        result_.problems.push_back(
            str_format("{}: rank {} was chosen to write a part that it does not have",
                       quote(open_[i].planned->key), choice.writer));
        continue;
      }
      const auto position = static_cast<std::size_t>(found - choice.ranks.begin());
      result_.chosen[open_[i].chosen] = 0;
      result_.chosen[open_[i].planned->items[open_[i].writers[position]]] = 1;
    }
  }

  void write(const PlannedKey& planned, std::uint32_t box, std::size_t rank) {
    result_.chosen[planned.items[box]] = 1;
    load_[rank] += std::max<std::uint64_t>(planned.bytes(box), 1);
  }

  void write_all(const PlannedKey& planned, std::span<const std::uint32_t> writers) {
    for (const std::uint32_t writer : writers) {
      write(planned, writer, rank_of(planned, writer));
      if (writer != writers.front())
        result_.copy_of.emplace(planned.items[writer], planned.items[writers.front()]);
    }
  }

  /// Gives equal pieces along the first axis that can be cut to the writers with the fewest bytes.
  void split(const PlannedKey& planned, std::vector<std::uint32_t> writers) {
    const ShapeView sizes = planned.boxes.sizes(writers.front());
    const std::uint64_t bytes = planned.bytes(writers.front());
    const std::int64_t extent = sizes[*cut_axis(sizes)];
    const auto load = [&](std::uint32_t writer) { return load_[rank_of(planned, writer)]; };
    std::stable_sort(writers.begin(), writers.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return load(a) < load(b); });
    const auto pieces =
        std::min<std::int64_t>({static_cast<std::int64_t>(writers.size()), extent,
                                static_cast<std::int64_t>(2 * bytes / kSplitBytes)});
    for (std::int64_t i = 0; i < pieces; ++i) {
      const std::uint32_t item = planned.items[writers[static_cast<std::size_t>(i)]];
      const ChosenItems::Piece piece{extent / pieces * i + std::min(i, extent % pieces),
                                     extent / pieces * (i + 1) + std::min(i + 1, extent % pieces)};
      result_.chosen[item] = 1;
      result_.pieces.emplace(item, piece);
      load_[collected_.rank_of(item)] += bytes / static_cast<std::uint64_t>(extent) *
                                         static_cast<std::uint64_t>(piece.end - piece.begin);
    }
  }

  /// Returns whether one rank has the part more than once as its main replica.
  bool held_twice(const PlannedKey& planned, std::span<const std::uint32_t> writers) const {
    for (std::size_t i = 1; i < writers.size(); ++i) {
      const bool main = !planned.is_replica(writers[i]) && !planned.is_replica(writers[i - 1]);
      if (main && rank_of(planned, writers[i]) == rank_of(planned, writers[i - 1])) return true;
    }
    return false;
  }

  void report_duplicate(const PlannedKey& planned, std::span<const std::uint32_t> writers) {
    std::vector<std::size_t> ranks;
    for (const std::uint32_t writer : writers) {
      if (options_.any_holder() || !planned.is_replica(writer))
        ranks.push_back(rank_of(planned, writer));
    }
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    result_.problems.push_back(
        str_format("{}: {} is a main replica more than once (on {}); give all but one of them "
                   "another replica id",
                   quote(planned.key),
                   planned.kind == WriteItem::Kind::kObject
                       ? "the object"
                       : "the part " + to_string(planned.boxes[writers.front()]),
                   ranks_text(ranks)));
  }

  const CollectedItems& collected_;
  std::span<const DedupedKey> deduped_;
  const GlobalPlanOptions& options_;
  std::vector<std::uint64_t> load_;  ///< bytes of each rank so far
  struct OpenChoice {
    const PlannedKey* planned;
    std::vector<std::uint32_t> writers;  ///< boxes
    std::uint32_t chosen;                ///< item
  };
  std::vector<OpenChoice> open_;  ///< the choices that choose_writers makes
  ChosenItems result_;
};

}  // namespace

ChosenItems choose_writers(const CollectedItems& collected, std::span<const DedupedKey> deduped,
                           const GlobalPlanOptions& options) {
  return WriterChooser(collected, deduped, options).run();
}

}  // namespace dckpt
