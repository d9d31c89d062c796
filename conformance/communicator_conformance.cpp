#include "conformance/communicator_conformance.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <string>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

using Letters = std::vector<Bytes>;

/// Returns a buffer unique to (from, to); its length differs too, and is zero for 0 → 0.
Bytes letter(int from, int to) {
  std::string text;
  for (int i = 0; i < 3 * from + to; ++i) text += str_format("{}>{};", from, to);
  return to_bytes(text);
}

/// Returns megabytes for most pairs, nothing for some.
Bytes parcel(int from, int to, int round) {
  return Bytes(static_cast<std::size_t>((from * 3 + to + round) % 5) << 18,
               static_cast<std::byte>(from * 16 + to));
}

template <typename Make>
Letters of_all(int size, const Make& make) {
  Letters letters;
  for (int rank = 0; rank < size; ++rank) letters.push_back(make(rank));
  return letters;
}

/// Ends the checks of this rank, since the other ranks may be at different steps.
struct OutOfStep {};

class CommunicatorChecks {
 public:
  explicit CommunicatorChecks(Communicator& comm)
      : comm_(comm), rank_(comm.rank()), size_(comm.size()) {}

  ConformanceReport run() {
    if (size_ < 2 || rank_ < 0 || rank_ >= size_) {
      report_.problems.push_back(
          str_format("rank {} of {}: at least two ranks are needed, counted from 0", rank_, size_));
      return report_;
    }
    try {
      check("barrier", [&] {
        comm_.barrier();
        return true;
      });
      gathers();
      scatters();
      exchanges();
      reductions();
      splits();
      stays_in_step();
      refuses_roots();
    } catch (const OutOfStep&) {
    }
    return report_;
  }

 private:
  /// Records a problem if an operation returns a wrong result; if it fails, also ends the checks.
  template <typename Operation>
  void check(const std::string& what, const Operation& operation) {
    ++report_.checks;
    try {
      if (!operation()) problem(what + " gave a wrong result");
    } catch (const std::exception& error) {
      problem(str_format("{} failed: {}", what, error.what()));
      throw OutOfStep();
    }
  }

  void problem(const std::string& text) {
    report_.problems.push_back(str_format("rank {}: {}", rank_, text));
  }

  void gathers() {
    for (int root = 0; root < size_; ++root) {
      const auto expected = [&] {
        return of_all(size_, [&](int from) { return letter(from, root); });
      };
      check("gather", [&] {
        return comm_.gather(letter(rank_, root), root) == (rank_ == root ? expected() : Letters{});
      });
    }
    check("all_gather", [&] {
      return comm_.all_gather(letter(rank_, 1)) ==
             of_all(size_, [](int from) { return letter(from, 1); });
    });
    check("gather of empty buffers", [&] {
      return comm_.gather({}, 0) == Letters(rank_ == 0 ? static_cast<std::size_t>(size_) : 0);
    });
    check("all_gather of empty buffers",
          [&] { return comm_.all_gather({}) == Letters(static_cast<std::size_t>(size_)); });
  }

  void scatters() {
    for (int root = 0; root < size_; ++root) {
      check("scatter", [&] {
        const Letters parts =
            rank_ == root ? of_all(size_, [&](int to) { return letter(root, to); }) : Letters{};
        return comm_.scatter(parts, root) == letter(root, rank_);
      });
      check("broadcast",
            [&] { return comm_.broadcast(letter(rank_, 2), root) == letter(root, 2); });
    }
    check("broadcast of an empty buffer", [&] { return comm_.broadcast({}, 1).empty(); });
    check("broadcast of 9 MiB", [&] {
      Bytes large(std::size_t{9} << 20);
      for (std::size_t i = 0; i < large.size(); ++i)
        large[i] = static_cast<std::byte>(i * 7 + i / 4096);
      return comm_.broadcast(rank_ == 0 ? ByteView(large) : ByteView(), 0) == large;
    });
  }

  void exchanges() {
    check("all_to_all", [&] {
      return comm_.all_to_all(of_all(size_, [&](int to) { return letter(rank_, to); })) ==
             of_all(size_, [&](int from) { return letter(from, rank_); });
    });
    for (int round = 0; round < 3; ++round) {
      check("all_to_all of large buffers", [&] {
        return comm_.all_to_all(of_all(size_, [&](int to) { return parcel(rank_, to, round); })) ==
               of_all(size_, [&](int from) { return parcel(from, rank_, round); });
      });
    }
  }

  void reductions() {
    const std::vector<std::int64_t> mine = {rank_, -rank_, (std::int64_t{1} << 40) + rank_};
    const std::int64_t last = size_ - 1;
    const std::int64_t sum = last * size_ / 2;
    const auto gives = [&](ReduceOp op, const std::vector<std::int64_t>& expected) {
      return comm_.all_reduce(mine, op) == expected;
    };
    check("all_reduce (sum)", [&] {
      return gives(ReduceOp::kSum, {sum, -sum, (std::int64_t{1} << 40) * size_ + sum});
    });
    check("all_reduce (min)", [&] {
      return gives(ReduceOp::kMin, {0, -last, std::int64_t{1} << 40});
    });
    check("all_reduce (max)", [&] {
      return gives(ReduceOp::kMax, {last, 0, (std::int64_t{1} << 40) + last});
    });
    check("all_reduce of nothing", [&] { return comm_.all_reduce({}, ReduceOp::kSum).empty(); });
  }

  void splits() {
    check("split", [&] {
      const auto group = comm_.split(rank_ % 2 == 0 ? -7 : 3);
      Letters expected;
      for (int rank = rank_ % 2; rank < size_; rank += 2) expected.push_back(letter(rank, 1));
      const bool groups =
          group->rank() == rank_ / 2 && group->all_gather(letter(rank_, 1)) == expected;
      const auto alone = group->split(group->rank());
      const bool is_alone = alone->size() == 1 && alone->broadcast(letter(2, 2), 0) == letter(2, 2);
      comm_.barrier();
      return groups && is_alone;
    });
  }

  void stays_in_step() {
    check("one of 200 operations in a row", [&] {
      bool right = true;
      for (int turn = 0; turn < 200; ++turn) {
        const std::vector<std::int64_t> mine = {turn};
        right &= comm_.all_reduce(mine, ReduceOp::kSum) ==
                 std::vector<std::int64_t>{std::int64_t{turn} * size_};
        right &= comm_.broadcast(letter(turn % size_, rank_), turn % size_) ==
                 letter(turn % size_, turn % size_);
      }
      return right;
    });
  }

  void refuses_roots() {
    const auto refuses = [](const auto& operation) {
      try {
        operation();
      } catch (const CheckpointError&) {
        return true;
      }
      return false;
    };
    check("broadcast from a root outside the group",
          [&] { return refuses([&] { comm_.broadcast({}, size_); }); });
    check("gather to a root outside the group",
          [&] { return refuses([&] { comm_.gather({}, -1); }); });
    check("barrier after what was refused", [&] {
      comm_.barrier();
      return true;
    });
  }

  Communicator& comm_;
  const int rank_;
  const int size_;
  ConformanceReport report_;
};

}  // namespace

ConformanceReport check_communicator(Communicator& comm) {
  return CommunicatorChecks(comm).run();
}

}  // namespace dckpt
