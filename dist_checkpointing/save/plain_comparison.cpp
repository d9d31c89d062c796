#include "dist_checkpointing/save/plain_comparison.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dist_checkpointing/ranks/same_on_all_ranks.h"
#include "dist_checkpointing/save/hash_items.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/wire_fields.h"
#include "mapping/geometry/cast.h"
#include "mapping/state/tree.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

constexpr const char* kComparingLeaves = "comparing the plain leaves of the ranks";
constexpr std::size_t kShownLeaves = 4;

bool is_in_one_piece(const Tensor& tensor) {
  return tensor.device().kind == Device::Kind::kCpu && tensor.is_contiguous();
}

/// A leaf in the form that ranks exchange.
struct LeafDigest {
  std::uint64_t key = 0;
  std::uint64_t value = 0;
};
constexpr auto fields(const LeafDigest*) {
  return std::tuple(Field(&LeafDigest::key), Field(&LeafDigest::value));
}

std::vector<LeafDigest> digests_of(const DescribedState& described, const SaveOptions& options) {
  std::vector<Tensor> tensors;
  std::vector<WriteItem> items;
  for (const PlainLeaf& leaf : described.plain) {
    if (!leaf.value.is_tensor()) continue;
    WriteItem& item = items.emplace_back();
    item.source = static_cast<std::uint32_t>(tensors.size());
    item.chunk = whole(leaf.value.as_tensor().shape());
    tensors.push_back(leaf.value.as_tensor());
  }
  const std::vector<std::uint64_t> elements =
      options.check_replicas == CheckReplicas::kOff
          ? std::vector<std::uint64_t>(items.size(), 0)  // only dtypes and shapes are compared
          : hash_items(tensors, items, options.check_replicas, options.io.threads);
  auto next = elements.begin();
  std::vector<LeafDigest> digests;
  digests.reserve(described.plain.size());
  for (const PlainLeaf& leaf : described.plain) {
    Fingerprinter value;
    if (leaf.value.is_tensor()) {
      value.update(as_bytes(to_string(leaf.value.as_tensor())));
      value.update(std::as_bytes(std::span(next++, 1)));
    } else {
      value.update(described.object_bytes[leaf.source]);
    }
    digests.push_back({fingerprint_of(as_bytes(leaf.key)).low, value.value().low});
  }
  return digests;
}

/// Returns fingerprints of some of the keys for which ranks have different values.
Bytes differing_keys(const std::vector<Bytes>& ranks) {
  std::unordered_map<std::uint64_t, std::uint64_t> first;
  std::vector<std::uint64_t> differing;
  for (const Bytes& told : ranks) {
    for (const auto& [key, value] :
         read_message<std::vector<LeafDigest>>(told, "a rank's plain leaves")) {
      if (first.try_emplace(key, value).first->second != value &&
          std::ranges::find(differing, key) == differing.end())
        differing.push_back(key);
    }
  }
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(differing.size());
  for (std::size_t i = 0; i < std::min(differing.size(), kShownLeaves); ++i)
    writer.number(differing[i]);
  return bytes;
}

/// Returns "10", "'adam'" or "float32 (2,) that begins with 20".
std::string text_of(const Value& value) {
  std::string text = short_text(value);
  if (!value.is_tensor()) return text;
  const Tensor& tensor = value.as_tensor();
  if (!is_in_one_piece(tensor) || tensor.numel() == 0 || !can_cast(tensor.dtype(), DType::kFloat64))
    return text;
  double element = 0;
  cast_elements(tensor.dtype(), tensor.data(), DType::kFloat64,
                reinterpret_cast<std::byte*>(&element), 1);
  return text + str_format(" that begins with {}", element);
}

/// Returns this rank's values of `keys`.
Bytes values_of(const DescribedState& described, const std::vector<LeafDigest>& digests,
                ByteView keys, std::uint64_t& count) {
  WireReader reader(keys, "the plain leaves that differ");
  count = reader.number();
  Bytes bytes;
  WireWriter writer(bytes);
  while (!reader.at_end()) {
    const std::uint64_t key = reader.number();
    for (std::size_t i = 0; i < digests.size(); ++i) {
      if (digests[i].key != key) continue;
      writer.text(described.plain[i].key);
      writer.text(text_of(described.plain[i].value));
    }
  }
  return bytes;
}

/// Returns "'step' (10 on rank 0, 20 on rank 1)", with two values of each leaf.
std::string list_of(const std::vector<Bytes>& ranks) {
  std::map<std::string, std::vector<std::pair<std::string, std::size_t>>> leaves;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    WireReader reader(ranks[rank], "the values of rank " + std::to_string(rank));
    while (!reader.at_end()) {
      auto& values = leaves[reader.text()];
      std::string text = reader.text();
      if (values.empty() || (values.size() == 1 && values[0].first != text))
        values.emplace_back(std::move(text), rank);
    }
  }
  std::string list;
  for (const auto& [key, values] : leaves) {
    std::string texts;
    for (const auto& [text, rank] : values)
      texts += str_format("{}{} on rank {}", texts.empty() ? "" : ", ", text, rank);
    list += str_format("{}{} ({})", list.empty() ? "" : ", ", quote(key), texts);
  }
  return list;
}

}  // namespace

void compare_plain_leaves(const DescribedState& described, const SaveOptions& options,
                          Communicator& comm, Findings& findings) {
  if (comm.size() == 1) return;
  std::vector<LeafDigest> digests;
  agree(comm, kComparingLeaves, [&] { digests = digests_of(described, options); });
  const auto all = std::as_bytes(std::span<const LeafDigest>(digests));
  if (is_same_on_all_ranks(fingerprint_of(all), comm)) return;

  const std::vector<Bytes> of_ranks = comm.gather(message_of(digests), 0);
  Bytes keys;
  decide(comm, [&] { keys = differing_keys(of_ranks); });
  keys = comm.broadcast(keys, 0);
  Bytes values;
  std::uint64_t count = 0;
  agree(comm, kComparingLeaves, [&] { values = values_of(described, digests, keys, count); });
  if (count == 0) return;
  const std::vector<Bytes> texts = comm.gather(values, 0);
  decide(comm, [&] {
    warn(findings,
         {FindingCode::kRanksDiffer,
          str_format(
              "plain leaves differ between ranks, and the value of one rank is stored for all: "
              "{}{}; describe what belongs to a rank with ShardedTensor or ShardedObject",
              list_of(texts),
              count > kShownLeaves ? str_format(" and {} more", count - kShownLeaves) : "")});
  });
}

}  // namespace dckpt
