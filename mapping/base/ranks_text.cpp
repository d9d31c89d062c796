#include "mapping/base/ranks_text.h"

#include <algorithm>

#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::size_t kMostNamed = 16;

template <typename Rank>
std::string text_of(std::span<const Rank> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return ranks.size() <= kMostNamed ? text
                                    : text + " and " + grouped(ranks.size() - kMostNamed) + " more";
}

}  // namespace

std::string ranks_text(std::span<const int> ranks) {
  return text_of(ranks);
}

std::string ranks_text(std::span<const std::size_t> ranks) {
  return text_of(ranks);
}

}  // namespace dckpt
