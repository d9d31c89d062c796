#include "dist_checkpointing/training_root/retention.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tests/support/random.h"

namespace dckpt::retention_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Iterations = std::vector<std::uint64_t>;

/// A root in which everything but `incomplete` is complete.
struct Root {
  Iterations iterations;
  std::set<std::uint64_t> incomplete{};

  Iterations to_delete(std::uint64_t saved, const Retention& retention,
                       const Iterations& in_use = {}) const {
    return iterations_to_delete(iterations, saved, retention, in_use, [&](std::uint64_t iteration) {
      return !incomplete.contains(iteration);
    });
  }
};

TEST(Retention, KeepsAllUnlessToldOtherwise) {
  EXPECT_THAT((Root{{1, 2, 3, 4}}.to_delete(4, {})), IsEmpty());
  EXPECT_THAT((Root{{1, 2, 3, 4}}.to_delete(4, {.keep_last = 0, .keep_every = 2})), IsEmpty());
}

TEST(Retention, KeepsTheNewestAndMultiples) {
  EXPECT_THAT((Root{{100, 200, 300, 400, 500}}.to_delete(500, {.keep_last = 2})),
              ElementsAre(100, 200, 300));
  EXPECT_THAT((Root{{100, 200, 300, 400, 500}}.to_delete(500, {.keep_last = 1, .keep_every = 200})),
              ElementsAre(100, 300));
  EXPECT_THAT((Root{{0, 100, 200}}.to_delete(200, {.keep_last = 1, .keep_every = 1000})),
              ElementsAre(100))
      << "0 is a multiple of everything";
  EXPECT_THAT((Root{{100, 200}}.to_delete(200, {.keep_last = 3})), IsEmpty());
}

TEST(Retention, KeepsWhatIsNamed) {
  const Root root{{100, 150, 200, 1500, 2000}};
  EXPECT_THAT(root.to_delete(2000, {.keep_last = 1, .keep = {"100", "15*"}}), ElementsAre(200));
  EXPECT_THAT(root.to_delete(2000, {.keep_last = 1, .keep = {"iter_000?[15]00"}}),
              ElementsAre(150, 200));
  EXPECT_THAT(root.to_delete(2000, {.keep_last = 2, .keep = {"10"}}), ElementsAre(100, 150, 200));
}

TEST(Retention, KeepsWhatIsInUse) {
  EXPECT_THAT((Root{{100, 200, 300}}.to_delete(300, {.keep_last = 1}, {100, 900})),
              ElementsAre(200));
}

TEST(Retention, OnlySoundOnesCount) {
  EXPECT_THAT((Root{{100, 200, 300, 400, 500}, {400}}.to_delete(500, {.keep_last = 2})),
              ElementsAre(100, 200))
      << "300 is the second sound one";
  EXPECT_THAT((Root{{100, 200, 300}, {100, 200}}.to_delete(300, {.keep_last = 2})), IsEmpty())
      << "nothing goes before two are sound";
  EXPECT_THAT((Root{{100, 200, 300}, {300}}.to_delete(300, {.keep_last = 1}, {300})),
              ElementsAre(100))
      << "the newest is not sound itself";
  EXPECT_THAT((Root{{100, 200, 300}, {100}}.to_delete(300, {.keep_last = 2})), ElementsAre(100))
      << "debris older than what is kept";
}

TEST(Retention, AHistoryThatWasLeftNeitherGoesNorCounts) {
  EXPECT_THAT((Root{{100, 200, 300, 800, 900}}.to_delete(300, {.keep_last = 2})), ElementsAre(100))
      << "300 was saved after going back from 900";
}

TEST(Retention, AsksAboutNoMoreThanItMust) {
  Iterations asked;
  const Iterations iterations{100, 200, 300, 400};
  iterations_to_delete(iterations, 400, {.keep_last = 2}, {},
                       [&](std::uint64_t iteration) { return asked.push_back(iteration), true; });
  EXPECT_THAT(asked, ElementsAre(400, 300));
}

TEST(Retention, KeepsItsPromisesInAnyRoot) {
  testing::Random random;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(random.trace(round));
    Root root;
    for (std::uint64_t iteration = 0; iteration < 20; ++iteration) {
      if (random.chance(50)) root.iterations.push_back(iteration);
      if (random.chance(25)) root.incomplete.insert(iteration);
    }
    if (root.iterations.empty()) continue;
    const std::uint64_t saved = root.iterations[static_cast<std::size_t>(
        random.between(0, std::ssize(root.iterations) - 1))];
    root.incomplete.erase(saved);
    const Retention retention{static_cast<std::uint64_t>(random.between(0, 4)),
                              static_cast<std::uint64_t>(random.between(0, 4)),
                              {}};
    const auto in_use = static_cast<std::uint64_t>(random.between(0, 19));
    std::size_t kept = 0;
    std::size_t complete = 0;
    const Iterations gone = root.to_delete(saved, retention, {in_use});
    for (const std::uint64_t iteration : root.iterations) {
      if (iteration > saved || root.incomplete.contains(iteration)) continue;
      ++complete;
      kept += std::ranges::find(gone, iteration) == gone.end() ? 1 : 0;
    }
    EXPECT_GE(kept, std::min<std::size_t>(
                        complete, retention.keep_last == 0 ? complete : retention.keep_last));
    for (const std::uint64_t iteration : gone) {
      EXPECT_LT(iteration, saved);
      EXPECT_NE(iteration, in_use);
      EXPECT_TRUE(retention.keep_every == 0 || iteration % retention.keep_every != 0);
    }
  }
}

}  // namespace
}  // namespace dckpt::retention_test
