// A transfer is planned in five steps:
//
//   1 add      keys and boxes become numbers, and each item a small record: box, rank, item
//   2 gather   the records of each box come together, by rank. The sources of a box with a main
//              replica are its holders; other replicas are no sources, so that holders of different
//              boxes have no element in common
//   3 match    each wanted box is intersected with the boxes of the holders (ChunkIndex); where the
//              parts do not fill it, elements are missing
//   4 cut      parts that several ranks hold are cut so that the balance works out
//   5 assign   parts with few holders first. Ranks that hold the same boxes form a group with a
//              heap of its members by the bytes that they send; an entry that is out of date, since
//              a rank is in several groups, is corrected when it comes to the top

#include "transfer/transfer_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/ranks_text.h"
#include "mapping/geometry/cut.h"
#include "mapping/planning/chunk_index.h"
#include "transfer/transfer_items.h"

namespace dckpt {
namespace {

using Move = TransferPlan::Move;
using Part = TransferPlan::Part;
using Record = TransferRecord;

constexpr std::uint64_t kSmallestCut = std::uint64_t{256} << 10;
constexpr std::uint64_t kPiecesPerRank = 16;

/// Ranks that hold the same boxes, with those that send the fewest bytes first.
class Group {
 public:
  explicit Group(std::vector<std::uint32_t> ranks) : ranks_(std::move(ranks)) {
    for (std::uint32_t i = 0; i < ranks_.size(); ++i) heap_.emplace_back(0, i);
  }

  /// Returns the position of the rank that sends the next bytes, and counts them.
  std::uint32_t send(std::uint64_t bytes, std::vector<std::uint64_t>& sent) {
    for (;;) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater());
      auto& [known, position] = heap_.back();
      std::uint64_t& now = sent[ranks_[position]];
      const bool is_true = known == now;
      if (is_true) now += bytes;
      known = now;
      const std::uint32_t chosen = position;
      std::push_heap(heap_.begin(), heap_.end(), std::greater());
      if (is_true) return chosen;
    }
  }

 private:
  std::vector<std::uint32_t> ranks_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> heap_;  ///< bytes sent, position
};

std::string ranks_of(std::span<const Record> records) {
  std::vector<std::size_t> ranks;
  for (const Record& record : records) ranks.push_back(record.rank);
  return ranks_text(ranks);
}

}  // namespace

class TransferPlanner::Work {
 public:
  explicit Work(std::uint32_t ranks) {
    plan_.ranks = ranks;
    plan_.sent_bytes.resize(ranks);
    plan_.received_bytes.resize(ranks);
  }

  void add(bool wanted, std::uint32_t rank, const TransferLayout& layout) {
    std::uint32_t& next = wanted ? next_wanting_ : next_holding_;
    if (rank < next || rank >= plan_.ranks)
      throw_error(ErrorCode::kInvalidArgument,
                  "rank {} of a transfer between {} does not come once, in "
                  "ascending order",
                  rank, counted(plan_.ranks, "rank"));
    next = rank + 1;
    items_.add(wanted ? items_.wanted : items_.held, rank, layout);
  }

  TransferPlan finish() {
    raise_problems();  // below, they would only cause others
    items_.held.gather(items_.boxes.size());
    items_.wanted.gather(items_.boxes.size());
    plan_.tensors = std::move(items_.tensors);
    const std::vector<std::uint32_t> order = items_.ordered_boxes();
    for (auto first = order.begin(), last = first; first != order.end(); first = last) {
      const std::uint32_t tensor = items_.boxes.tensor(*first);
      last = std::find_if(first, order.end(),
                          [&](std::uint32_t box) { return items_.boxes.tensor(box) != tensor; });
      match(tensor, {first, last});
    }
    raise_problems();
    cut_parts();
    assign();
    return std::move(plan_);
  }

 private:
  void raise_problems() const {
    problems_.raise_if_any(ErrorCode::kMismatch,
                           "the tensors that ranks hold and those that they want do not fit:");
  }

  /// The sources of a box that have a main replica among them.
  struct Holders {
    std::span<const Record> records;  ///< of different ranks, ascending
    std::uint32_t group;
  };
  /// The common part of a held and a wanted box.
  struct Match {
    std::uint32_t tensor;
    std::uint32_t holders;
    std::span<const Record> targets;
    Box box;
    std::uint64_t bytes;
  };

  /// Matches what is held and wanted of a tensor, given all of its boxes.
  void match(std::uint32_t tensor, std::span<const std::uint32_t> numbers) {
    BoxList held(plan_.tensors[tensor].shape.size());
    const auto first = static_cast<std::uint32_t>(holders_.size());
    for (const std::uint32_t number : numbers) {
      Box box = items_.boxes.box(number);
      if (add_holders(tensor, box, items_.held.of(number))) held.push_back(box);
    }
    ChunkIndex index(held);
    check_overlaps(tensor, held, index, first);
    for (const std::uint32_t number : numbers) {
      const std::span<const Record> wanting = items_.wanted.of(number);
      const Box box = items_.boxes.box(number);
      std::int64_t missing = wanting.empty() ? 0 : numel(box.sizes);
      if (missing == 0) continue;
      index.find(box, found_);
      for (const std::uint32_t i : found_) {
        Box common = *intersect(box, held[i]);
        const std::int64_t elements = numel(common.sizes);
        missing -= elements;
        matches_.push_back(
            {tensor, first + i, wanting, std::move(common),
             static_cast<std::uint64_t>(elements) * item_size(plan_.tensors[tensor].dtype)});
      }
      if (missing > 0) report_missing(tensor, box, missing, wanting, numbers);
    }
  }

  /// Returns whether a box of the sources has elements and a main replica.
  bool add_holders(std::uint32_t tensor, const Box& box, std::span<Record> holding) {
    const auto mains = std::ranges::count_if(holding, &Record::main);
    if (numel(box.sizes) == 0 || mains == 0) return false;
    if (mains > 1) {
      std::vector<Record> main(holding.begin(), holding.end());
      std::erase_if(main, [](const Record& record) { return !record.main; });
      problems_.add(str_format(
          "{}: {} hold {} as main replica {} times; all copies but one need "
          "another replica id",
          quote(plan_.tensors[tensor].key), ranks_of(main), to_string(box), main.size()));
    }
    const auto same_rank = [](const Record& a, const Record& b) { return a.rank == b.rank; };
    holding = {holding.begin(), std::unique(holding.begin(), holding.end(), same_rank)};
    std::vector<std::uint32_t> ranks;
    for (const Record& record : holding) ranks.push_back(record.rank);
    const auto [group, is_new] =
        group_numbers_.try_emplace(std::move(ranks), static_cast<std::uint32_t>(groups_.size()));
    if (is_new) groups_.emplace_back(group->first);
    holders_.push_back({holding, group->second});
    return true;
  }

  void check_overlaps(std::uint32_t tensor, const BoxList& boxes, ChunkIndex& index,
                      std::uint32_t first) {
    for (std::uint32_t i = 0; boxes.size() > 1 && i < boxes.size(); ++i) {
      index.find(boxes[i], found_);
      if (found_.size() < 2 || found_.front() < i) continue;
      const auto holders = [&](std::uint32_t at) {
        return ranks_of(holders_[first + at].records) + " " + to_string(boxes[at]);
      };
      problems_.add(str_format("{}: {} and {} have elements in common, but are not replicas",
                               quote(plan_.tensors[tensor].key), holders(i), holders(found_[1])));
    }
  }

  void report_missing(std::uint32_t tensor, const Box& box, std::int64_t missing,
                      std::span<const Record> wanting, std::span<const std::uint32_t> numbers) {
    const std::string& key = plan_.tensors[tensor].key;
    const std::string who = ranks_of(wanting) + (wanting.size() == 1 ? " wants " : " want ");
    const auto is_held = [&](std::uint32_t number) { return !items_.held.of(number).empty(); };
    const auto is_main = [&](std::uint32_t number) {
      return std::ranges::any_of(items_.held.of(number), &Record::main);
    };
    if (std::ranges::any_of(numbers, is_held)) {
      problems_.add(str_format(
          "{}: {}{}, of which no rank holds {} as main replica{}", quote(key), who, to_string(box),
          counted(missing, "element"),
          std::ranges::any_of(numbers, is_main)
              ? ""
              : "; there are only other replicas, one of which needs a replica id of zeros"));
      return;
    }
    std::vector<std::string> held;  // keys
    for (std::uint32_t i = 0; problems_.empty() && i < items_.boxes.size(); ++i) {
      if (is_held(i)) held.push_back(plan_.tensors[items_.boxes.tensor(i)].key);
    }
    const std::optional<std::string> meant = nearest(key, held);
    problems_.add(str_format("{}: {}it, but no rank holds it{}", quote(key), who,
                             meant ? "; did you mean " + quote(*meant) + "?" : ""));
  }

  void cut_parts() {
    std::uint64_t total = 0;
    for (const Match& match : matches_) total += match.bytes * match.targets.size();
    const std::uint64_t limit =
        std::max(kSmallestCut, total / (std::uint64_t{plan_.ranks} * kPiecesPerRank + 1));
    std::vector<Box> pieces;
    for (std::uint32_t i = 0; i < matches_.size(); ++i) {
      Match& match = matches_[i];
      const std::uint64_t item = item_size(plan_.tensors[match.tensor].dtype);
      pieces.clear();
      const bool gains = holders_[match.holders].records.size() > 1;
      cut_box(std::move(match.box), item, gains ? limit : match.bytes, pieces);
      for (Box& piece : pieces) {
        const std::uint64_t bytes = static_cast<std::uint64_t>(numel(piece.sizes)) * item;
        plan_.parts.push_back({match.tensor, std::move(piece), bytes, moves_,
                               static_cast<std::uint32_t>(match.targets.size())});
        match_of_.push_back(i);
        moves_ += match.targets.size();
      }
    }
  }

  void assign() {
    plan_.moves.resize(moves_);
    std::vector<std::uint32_t> order(plan_.parts.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto holders = [&](std::uint32_t part) -> const Holders& {
      return holders_[matches_[match_of_[part]].holders];
    };
    std::ranges::stable_sort(order, {}, [&](std::uint32_t part) {
      return std::pair(holders(part).records.size(), ~plan_.parts[part].bytes);
    });
    for (const std::uint32_t i : order) {
      const Part& part = plan_.parts[i];
      const std::span<const Record> records = holders(i).records;
      Group& group = groups_[holders(i).group];
      Move* move = plan_.moves.data() + part.first_move;
      for (const Record& target : matches_[match_of_[i]].targets) {
        const auto own = std::ranges::lower_bound(records, target.rank, {}, &Record::rank);
        const bool is_local = own != records.end() && own->rank == target.rank;
        const Record& source = is_local ? *own : records[group.send(part.bytes, plan_.sent_bytes)];
        if (!is_local) plan_.received_bytes[target.rank] += part.bytes;
        *move++ = {source.rank, source.item, target.rank, target.item};
      }
    }
  }

  TransferPlan plan_;
  ProblemList problems_{};
  TransferItems items_{problems_};
  std::vector<Holders> holders_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> group_numbers_;
  std::vector<Group> groups_;
  std::vector<Match> matches_;
  std::vector<std::uint32_t> match_of_;  ///< by part
  std::uint64_t moves_ = 0;
  std::vector<std::uint32_t> found_;
  std::uint32_t next_holding_ = 0;  ///< the least rank that may be added
  std::uint32_t next_wanting_ = 0;
};

TransferPlanner::TransferPlanner(std::uint32_t ranks) : work_(std::make_unique<Work>(ranks)) {}
TransferPlanner::~TransferPlanner() = default;

void TransferPlanner::add_source(std::uint32_t rank, const TransferLayout& layout) {
  work_->add(false, rank, layout);
}

void TransferPlanner::add_target(std::uint32_t rank, const TransferLayout& layout) {
  work_->add(true, rank, layout);
}

TransferPlan TransferPlanner::finish() && {
  return work_->finish();
}

TransferPlan make_transfer_plan(std::span<const TransferLayout> from,
                                std::span<const TransferLayout> to) {
  TransferPlanner planner(static_cast<std::uint32_t>(std::max(from.size(), to.size())));
  for (std::uint32_t rank = 0; rank < from.size(); ++rank) planner.add_source(rank, from[rank]);
  for (std::uint32_t rank = 0; rank < to.size(); ++rank) planner.add_target(rank, to[rank]);
  return std::move(planner).finish();
}

}  // namespace dckpt
