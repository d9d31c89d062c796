#include "migration/rank_folders/gradient_buffer.h"

#include "mapping/base/counted.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::size_t kMostDigits = 6;

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= kMostDigits &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Takes "12." off the front.
std::optional<std::int64_t> take_number(std::string_view& path) {
  const std::size_t dot = path.find('.');
  if (dot == std::string_view::npos || !is_number(path.substr(0, dot))) return std::nullopt;
  const std::int64_t number = std::stoll(std::string(path.substr(0, dot)));
  path.remove_prefix(dot + 1);
  return number;
}

void require_full(std::int64_t rest, std::int64_t most_padding) {
  if (rest <= most_padding) return;
  throw_error(ErrorCode::kUnsupported,
              "the gradient buffer has {} not those of a parameter in the "
              "model's state, so where the others lie is not known; leave the optimizer out by "
              "removing distrib_optim.pt from a copy",
              counted(rest, "element that is", "elements that are"));
}

}  // namespace

std::optional<BufferKey> parse_buffer_key(std::string_view path) {
  BufferKey key;
  const auto first = take_number(path);
  if (!first) return std::nullopt;
  key.buffer = *first;
  if (const auto second = take_number(path)) {
    key.chain = key.buffer;
    key.buffer = *second;
  }
  std::size_t end = std::string_view::npos;
  if (path.starts_with('(')) {
    const std::size_t close = path.find(").");
    if (close != std::string_view::npos) end = close + 1;
  } else if (path.starts_with("torch.")) {
    end = path.find('.', path.find('.') + 1);
  }
  if (end == std::string_view::npos) return std::nullopt;
  key.dtypes = path.substr(0, end);
  path.remove_prefix(end + 1);
  const std::size_t dot = path.find('.');
  key.name = path.substr(0, dot);
  if (dot == std::string_view::npos) return key;
  if (!is_number(path.substr(dot + 1))) return std::nullopt;
  key.bucket = std::stoll(std::string(path.substr(dot + 1)));
  return key;
}

std::vector<BufferPosition> place_in_buffer(std::span<const std::int64_t> sizes,
                                            std::span<const std::int64_t> buckets,
                                            std::int64_t most_padding) {
  std::vector<BufferPosition> places(sizes.size());
  std::size_t bucket = 0;
  std::int64_t used = 0;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    std::int64_t begin = (used + kAlignment - 1) / kAlignment * kAlignment;
    if (bucket == buckets.size() || sizes[i] > buckets[bucket] - begin) {
      if (bucket < buckets.size()) require_full(buckets[bucket] - used, most_padding);
      begin = 0;
      if (++bucket >= buckets.size() || sizes[i] > buckets[bucket])
        throw_error(
            ErrorCode::kUnsupported,
            "the gradient buffer is too short for the parameters of its rank, so their places are "
            "not known; leave the optimizer out by removing distrib_optim.pt from a copy");
    }
    places[i] = {bucket, begin};
    used = begin + sizes[i];
  }
  for (; bucket < buckets.size(); ++bucket, used = 0)
    require_full(buckets[bucket] - used, most_padding);
  return places;
}

}  // namespace dckpt
