#include "dist_checkpointing/open/key_filter.h"

#include <algorithm>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

std::string_view key_of_object(std::string_view unique_key) {
  return unique_key.substr(0, unique_key.rfind("/shard_"));
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view key) {
  return std::ranges::any_of(patterns,
                             [&](const std::string& pattern) { return glob_match(pattern, key); });
}

struct Keys {
  std::vector<std::string> tensors;
  std::vector<std::string> objects;

  std::vector<std::string> all() const {
    std::vector<std::string> keys = tensors;
    keys.insert(keys.end(), objects.begin(), objects.end());
    return keys;
  }
};

Keys keys_of(std::initializer_list<const Metadata*> checkpoints) {
  Keys keys;
  for (const Metadata* metadata : checkpoints) {
    for (const TensorStorageMetadata& tensor : metadata->tensors)
      keys.tensors.push_back(tensor.key);
    for (const BytesStorageMetadata& object : metadata->objects) keys.objects.push_back(object.key);
  }
  return keys;
}

void check_selection(const KeyFilter& filter, const Keys& keys) {
  const bool any =
      std::ranges::any_of(keys.tensors, filter) ||
      std::ranges::any_of(keys.objects, [&](const std::string& key) { return filter.object(key); });
  if (any) return;
  throw_error(ErrorCode::kInvalidArgument,
              "the patterns leave no key: what {} matches is left out by {}",
              quoted_list(filter.include.empty() ? std::vector<std::string>{"*"} : filter.include),
              quoted_list(filter.exclude));
}

}  // namespace

bool KeyFilter::operator()(std::string_view key) const {
  return (include.empty() || matches_any(include, key)) && !matches_any(exclude, key);
}

bool KeyFilter::object(std::string_view unique_key) const {
  const std::string_view key = key_of_object(unique_key);
  const bool included =
      include.empty() || matches_any(include, unique_key) || matches_any(include, key);
  return included && !matches_any(exclude, unique_key) && !matches_any(exclude, key);
}

void KeyFilter::check(std::initializer_list<const Metadata*> checkpoints) const {
  if (include.empty() && exclude.empty()) return;
  const Keys keys = keys_of(checkpoints);
  for (const std::vector<std::string>* patterns : {&include, &exclude}) {
    for (const std::string& pattern : *patterns) {
      const KeyFilter alone{.include = {pattern}};
      const bool matches = std::ranges::any_of(keys.tensors, alone) ||
                           std::ranges::any_of(keys.objects, [&](const std::string& key) {
                             return alone.object(key);
                           });
      if (!matches)
        throw_error(ErrorCode::kInvalidArgument, "no key matches the pattern {}{}", quote(pattern),
                    suggest_keys(pattern, keys.all()));
    }
  }
  check_selection(*this, keys);
}

std::string suggest_keys(std::string_view wanted, std::span<const std::string> keys) {
  constexpr std::size_t kShown = 3;
  constexpr std::size_t kLikeness = 3;  // smallest common prefix of similar keys
  if (keys.empty()) return "; there are no keys";
  const std::string wider = str_format("*{}*", wanted);
  const auto is_wider = [&](const std::string& key) { return glob_match(wider, key); };
  if (const auto example = std::ranges::find_if(keys, is_wider);
      example != keys.end() && !wanted.empty()) {
    const auto count = static_cast<std::uint64_t>(std::ranges::count_if(keys, is_wider));
    return str_format(" (did you mean {}? It matches {}{})", quote(wider),
                      counted(count, "key, ", "keys, for example "), quote(*example));
  }
  if (const auto close = nearest(wanted, keys))
    return str_format(" (did you mean {}?)", quote(*close));
  std::size_t longest = 0;  // length of the longest common prefix of `wanted` and a key
  const auto common = [&](const std::string& key) {
    const auto letters =
        static_cast<std::size_t>(std::ranges::mismatch(key, wanted).in1 - key.begin());
    return letters < kLikeness ? 0 : letters;
  };
  for (const std::string& key : keys) longest = std::max(longest, common(key));
  std::vector<std::string> near;
  std::ranges::copy_if(keys, std::back_inserter(near),
                       [&](const std::string& key) { return common(key) == longest; });
  return (longest == 0 ? "; there are " : "; nearest are ") + quoted_list(near, kShown);
}

}  // namespace dckpt
