#include "migration/maps/assignment/completeness.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "configs/maps/key_pattern.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr std::string_view kScaleSuffix = "weight_scale_inv";

/// Keys of low-rank adapters in checkpoints of ms-swift, NeMo and Megatron-Bridge, which keep them
/// beside the weights.
constexpr std::array<const char*, 3> kOfAdapters{"*lora_*", "*.adapter.*", "*.adapters.*"};

}  // namespace

void KeyGroups::add(const std::string& key) {
  groups_[skeleton_of(key)].push_back(key);
}

bool KeyGroups::any(const std::function<bool(const std::string& key)>& matches) const {
  return std::ranges::any_of(
      groups_, [&](const auto& group) { return std::ranges::any_of(group.second, matches); });
}

void KeyGroups::report(const std::string& what, ProblemList& problems) const {
  for (const auto& [kind, keys] : groups_) {
    problems.add(keys.size() == 1
                     ? str_format("{}: {}", what, quote(keys.front()))
                     : str_format("{}: {} ({} keys)", what, quote(kind), grouped(keys.size())));
  }
}

std::vector<AlikeKeys> KeyGroups::groups(const std::string& why) const {
  std::vector<AlikeKeys> result;
  for (const auto& [kind, keys] : groups_)
    result.push_back({keys.size() == 1 ? keys.front() : kind, keys, why});
  return result;
}

void Completeness::raise_if_any(const KeyMap& map, const Metadata& source, const std::string& keys,
                                const std::vector<std::string>& left_out) const {
  ProblemList all;
  unknown.report("not in the map", all);
  if (unknown.any([](const std::string& key) {
        return std::ranges::any_of(kOfAdapters,
                                   [&](const char* glob) { return glob_match(glob, key); });
      }))
    all.add(str_format(
        "some of these are low-rank adapters (LoRA, PEFT) under {}'s keys, which belong "
        "to the weights beside them: have the library that trained them merge them{}, "
        "or leave them out (--exclude) and convert the weights without what was trained",
        map.left_name(),
        map.is_megatrons() ? " (Megatron-Bridge's merge_lora, ms-swift's --merge_lora true)" : ""));
  others.report("not of the language model", all);
  if (!others.empty())
    all.add("the map is for the language model; --set parts=text drops what is beside it");
  missing.report("missing", all);
  if (!missing.empty() && !left_out.empty())
    all.add(
        str_format("the patterns leave {} of the source out before the map sees it, {}; to "
                   "leave out what the map makes of several keys, name what it makes",
                   counted(left_out.size(), "key"), quoted_list(left_out, 1)));
  if (std::ranges::any_of(source.tensors, [](const TensorStorageMetadata& tensor) {
        return tensor.key.ends_with(kScaleSuffix);
      }))
    all.add(
        "the weights have scales (weight_scale_inv), and the map does not say how they are "
        "applied: give it 'dequantize', as the shipped maps have it");
  for (const std::string& line : problems) all.add(line);
  for (const std::string& line : unknown_numbers) all.add(line);
  all.raise_if_any(ErrorCode::kMismatch,
                   str_format("the map {} does not fit this checkpoint, which has {}:",
                              quote(map.family), keys));
}

void require_balance(const KeyMap& map, const MappedKeys& mapped) {
  const std::uint64_t in = mapped.counts.elements_in - mapped.counts.padding_in;
  const std::uint64_t out = mapped.counts.elements_out - mapped.counts.padding_out;
  if (in != out)
    throw_error(ErrorCode::kMismatch,
                "the map {} makes {} elements of {}, without padding: rows overlap",
                quote(map.family), grouped(out), grouped(in));
}

}  // namespace dckpt
