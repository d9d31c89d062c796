#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "mapping/base/error.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/communicator.h"
#include "strategies/comm/heartbeat.h"

// The requirements on every Communicator. One file of a test program includes this header and
// instantiates the suite:
//   INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance,
//       ::testing::Values(CommunicatorWorld{"threads", run_ranks}), name_of_world);
namespace dckpt {

/// An implementation of Communicator, with a function that starts its ranks.
struct CommunicatorWorld {
  std::string name;
  /// Runs the body on every rank and waits for all. Rethrows one rank's exception if any rank
  /// throws.
  std::function<void(int size, const std::function<void(Communicator&)>& body,
                     std::chrono::milliseconds timeout)>
      run;
  /// Time that an operation may take beyond its timeout before the suite calls it hanging.
  std::chrono::milliseconds grace = std::chrono::seconds(20);
};

inline void PrintTo(const CommunicatorWorld& world, std::ostream* out) {
  *out << world.name;
}
inline std::string name_of_world(const ::testing::TestParamInfo<CommunicatorWorld>& info) {
  return info.param.name;
}

class CommunicatorConformance : public ::testing::TestWithParam<CommunicatorWorld> {
 protected:
  static void on_ranks(int size, const std::function<void(Communicator&)>& body) {
    GetParam().run(size, body, std::chrono::seconds(60));
  }

  /// Returns a buffer that differs for each (from, to), also in length, which is zero for 0 → 0.
  static Bytes letter(int from, int to) {
    std::string text;
    for (int i = 0; i < 3 * from + to; ++i)
      text += std::to_string(from) + ">" + std::to_string(to) + ";";
    return to_bytes(text);
  }

  static std::vector<Bytes> letters_to(int to, int size) {
    std::vector<Bytes> letters;
    for (int from = 0; from < size; ++from) letters.push_back(letter(from, to));
    return letters;
  }

  static std::vector<Bytes> letters_from(int from, int size) {
    std::vector<Bytes> letters;
    for (int to = 0; to < size; ++to) letters.push_back(letter(from, to));
    return letters;
  }
};

TEST_P(CommunicatorConformance, LongWorkIsNotBoundByTheTimeout) {
  GetParam().run(
      3,
      [](Communicator& comm) {
        Heartbeat heartbeat(comm);
        heartbeat.agree("working", [&] {
          if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        });
        comm.barrier();
      },
      std::chrono::seconds(1));
}

TEST_P(CommunicatorConformance, EveryRankKnowsItselfAndTheSize) {
  std::vector<int> seen(5, 0);
  on_ranks(5, [&](Communicator& comm) {
    EXPECT_EQ(comm.size(), 5);
    seen.at(static_cast<std::size_t>(comm.rank())) = 1;
    comm.barrier();
  });
  EXPECT_EQ(seen, std::vector<int>(5, 1));
}

TEST_P(CommunicatorConformance, GatherGivesRootAllBuffersInRankOrder) {
  on_ranks(4, [](Communicator& comm) {
    for (int root = 0; root < 4; ++root) {
      EXPECT_EQ(comm.gather(letter(comm.rank(), root), root),
                comm.rank() == root ? letters_to(root, 4) : std::vector<Bytes>{});
    }
  });
}

TEST_P(CommunicatorConformance, AllGatherGivesEveryoneAllBuffers) {
  on_ranks(4, [](Communicator& comm) {
    EXPECT_EQ(comm.all_gather(letter(comm.rank(), 1)), letters_to(1, 4));
  });
}

TEST_P(CommunicatorConformance, ScatterGivesEachRankItsOwnBuffer) {
  on_ranks(4, [](Communicator& comm) {
    for (int root = 0; root < 4; ++root) {
      const auto parts = comm.rank() == root ? letters_from(root, 4) : std::vector<Bytes>{};
      EXPECT_EQ(comm.scatter(parts, root), letter(root, comm.rank()));
    }
  });
}

TEST_P(CommunicatorConformance, BroadcastIgnoresWhatOthersPass) {
  on_ranks(3, [](Communicator& comm) {
    for (int root = 0; root < 3; ++root)
      EXPECT_EQ(comm.broadcast(letter(comm.rank(), 2), root), letter(root, 2));
  });
}

TEST_P(CommunicatorConformance, AllToAllDeliversEveryLetterOnce) {
  on_ranks(4, [](Communicator& comm) {
    EXPECT_EQ(comm.all_to_all(letters_from(comm.rank(), 4)), letters_to(comm.rank(), 4));
  });
}

TEST_P(CommunicatorConformance, AllReduceWorksElementByElement) {
  on_ranks(4, [](Communicator& comm) {
    const std::vector<std::int64_t> mine = {comm.rank(), -comm.rank(),
                                            std::int64_t{1} << (40 + comm.rank())};
    EXPECT_EQ(comm.all_reduce(mine, ReduceOp::kSum),
              (std::vector<std::int64_t>{6, -6, std::int64_t{15} << 40}));
    EXPECT_EQ(comm.all_reduce(mine, ReduceOp::kMin),
              (std::vector<std::int64_t>{0, -3, std::int64_t{1} << 40}));
    EXPECT_EQ(comm.all_reduce(mine, ReduceOp::kMax),
              (std::vector<std::int64_t>{3, 0, std::int64_t{8} << 40}));
    EXPECT_TRUE(comm.all_reduce({}, ReduceOp::kSum).empty());
  });
}

TEST_P(CommunicatorConformance, EmptyBuffersTravelAsEmptyBuffers) {
  on_ranks(3, [](Communicator& comm) {
    const std::vector<Bytes> nothing(3);
    EXPECT_EQ(comm.gather({}, 0).size(), comm.rank() == 0 ? 3u : 0u);
    EXPECT_EQ(comm.all_gather({}), nothing);
    EXPECT_EQ(comm.broadcast({}, 1), Bytes());
    EXPECT_EQ(comm.scatter(comm.rank() == 2 ? nothing : std::vector<Bytes>{}, 2), Bytes());
    EXPECT_EQ(comm.all_to_all(nothing), nothing);
  });
}

TEST_P(CommunicatorConformance, LargeBuffersArriveWhole) {
  on_ranks(2, [](Communicator& comm) {
    Bytes large(std::size_t{9} << 20);
    for (std::size_t i = 0; i < large.size(); ++i)
      large[i] = static_cast<std::byte>(i * 7 + i / 4096);
    EXPECT_TRUE(comm.broadcast(comm.rank() == 0 ? ByteView(large) : ByteView(), 0) == large);
  });
}

TEST_P(CommunicatorConformance, LargeBuffersOfDifferentSizesGoEveryWayAgainAndAgain) {
  on_ranks(3, [](Communicator& comm) {
    const auto letter = [](int from, int to, int round) {
      return Bytes(static_cast<std::size_t>((from * 3 + to + round) % 5) << 18,
                   static_cast<std::byte>(from * 16 + to));
    };
    std::vector<Bytes> buffers(3);
    for (int round = 0; round < 4; ++round) {
      for (int to = 0; to < 3; ++to)
        buffers[static_cast<std::size_t>(to)] = letter(comm.rank(), to, round);
      buffers = comm.all_to_all(std::move(buffers));
      for (int from = 0; from < 3; ++from)
        EXPECT_TRUE(buffers[static_cast<std::size_t>(from)] == letter(from, comm.rank(), round));
    }
  });
}

TEST_P(CommunicatorConformance, SplitGroupsByColorAndKeepsRankOrder) {
  on_ranks(5, [](Communicator& comm) {
    const auto group = comm.split(comm.rank() % 2 == 0 ? -7 : 3);
    EXPECT_EQ(group->size(), comm.rank() % 2 == 0 ? 3 : 2);
    EXPECT_EQ(group->rank(), comm.rank() / 2);
    std::vector<Bytes> expected;
    for (int rank = comm.rank() % 2; rank < 5; rank += 2) expected.push_back(letter(rank, 1));
    EXPECT_EQ(group->all_gather(letter(comm.rank(), 1)), expected);
    const auto alone = group->split(group->rank());
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(alone->broadcast(letter(2, 2), 0), letter(2, 2));
    comm.barrier();  // the parent communicator still works
  });
}

TEST_P(CommunicatorConformance, ManyOperationsInARowStayInStep) {
  on_ranks(4, [](Communicator& comm) {
    for (int turn = 0; turn < 200; ++turn) {
      const std::vector<std::int64_t> mine = {turn * comm.rank()};
      ASSERT_EQ(comm.all_reduce(mine, ReduceOp::kSum).front(), 6 * turn);
      ASSERT_EQ(comm.broadcast(letter(turn % 4, comm.rank()), turn % 4),
                letter(turn % 4, turn % 4));
    }
  });
}

TEST_P(CommunicatorConformance, ARankThatNeverComesIsAnErrorWithinTheTimeout) {
  const auto started = std::chrono::steady_clock::now();
  const std::chrono::milliseconds timeout(300);
  const auto run = [&] {
    GetParam().run(
        3,
        [](Communicator& comm) {
          if (comm.rank() != 1) comm.all_gather({});
        },
        timeout);
  };
  try {
    run();
    FAIL() << "no error";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("1"), std::string::npos) << error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - started, timeout + GetParam().grace);
}

TEST_P(CommunicatorConformance, ScatterWithTheWrongNumberOfPartsFails) {
  EXPECT_THROW(
      GetParam().run(
          2,
          [](Communicator& comm) { comm.scatter(std::vector<Bytes>(comm.rank() == 0 ? 3 : 0), 0); },
          std::chrono::milliseconds(300)),
      CheckpointError);
}

TEST_P(CommunicatorConformance, ARootOutsideTheGroupIsRefused) {
  on_ranks(2, [](Communicator& comm) {
    EXPECT_THROW(comm.broadcast({}, 2), CheckpointError);
    EXPECT_THROW(comm.gather({}, -1), CheckpointError);
    comm.barrier();
  });
}

TEST_P(CommunicatorConformance, AgreeSaysWhichRankAnErrorIsAboutIfItIsNotTheOneThatFoundIt) {
  on_ranks(3, [](Communicator& comm) {
    try {
      agree(comm, "reading the plans", [&] {
        if (comm.rank() == 0)
          throw CheckpointError(ErrorCode::kCorrupt, "the plan ends too early", {.rank = 2});
      });
      ADD_FAILURE() << "no error on rank " << comm.rank();
    } catch (const CheckpointError& error) {
      EXPECT_EQ(
          error.message(),
          "reading the plans failed on rank 0 of 3; rank 0, about rank 2: the plan ends too early");
      EXPECT_EQ(error.context().rank, 2);
    }
  });
}

TEST_P(CommunicatorConformance, WhatRank0DecidesForAllIsAnErrorOfNoRank) {
  on_ranks(3, [](Communicator& comm) {
    int decided = 0;
    decide(comm, [&] { ++decided; });
    EXPECT_EQ(decided, comm.rank() == 0 ? 1 : 0);
    try {
      decide(comm, [] {
        throw CheckpointError(ErrorCode::kMismatch, "the shards overlap", {.key = "w"});
      });
      ADD_FAILURE() << "no error on rank " << comm.rank();
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.message(), "the shards overlap");
      EXPECT_EQ(error.context().key, "w");
      EXPECT_EQ(error.context().rank, std::nullopt);
    }
  });
}

TEST_P(CommunicatorConformance, EveryCodeIsTheSameOnAllRanks) {
  on_ranks(3, [](Communicator& comm) {
    const auto agreed = [&](int code) {
      try {
        agree(comm, "working", [&] {
          if (comm.rank() == 1) throw CheckpointError(static_cast<ErrorCode>(code), "no");
        });
      } catch (const CheckpointError& error) {
        return error.code();
      }
      return ErrorCode::kCorrupt;
    };
    for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code)
      EXPECT_EQ(agreed(code), static_cast<ErrorCode>(code));
    EXPECT_EQ(agreed(99), ErrorCode::kInternal) << "a code of another build";
  });
}

TEST_P(CommunicatorConformance, AnErrorReportThatIsNoneIsCorrupt) {
  on_ranks(2, [](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.broadcast(as_bytes("no report"), 0);
      return;
    }
    try {
      decide(comm, [] {});
      ADD_FAILURE() << "no error";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
    }
  });
}

TEST_P(CommunicatorConformance, AgreeThrowsTheSameErrorEverywhere) {
  std::vector<std::string> messages(4);
  on_ranks(4, [&](Communicator& comm) {
    agree(comm, "counting", [] {});
    try {
      agree(comm, "writing the shards", [&] {
        if (comm.rank() == 1)
          throw CheckpointError(ErrorCode::kCorrupt, "bad block",
                                {.key = "w", .file = "__1_0.distcp", .offset = 0});
        if (comm.rank() == 3) throw std::runtime_error("lost");
      });
      ADD_FAILURE() << "no error on rank " << comm.rank();
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      EXPECT_EQ(error.context().key, "w");
      EXPECT_EQ(error.context().file, "__1_0.distcp");
      EXPECT_EQ(error.context().offset, 0u);
      EXPECT_EQ(error.context().rank, 1);
      EXPECT_EQ(error.cause() != nullptr, comm.rank() == 3) << "it stays where it was thrown";
      messages[static_cast<std::size_t>(comm.rank())] = error.message();
    }
    comm.barrier();  // no rank left, so the ranks are in step
  });
  EXPECT_EQ(messages, std::vector<std::string>(4,
                                               "writing the shards failed on ranks 1, 3 of 4; rank "
                                               "1: bad block; rank 3: unexpected error: lost"));
}

}  // namespace dckpt
