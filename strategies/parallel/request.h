#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// The first message of every rank when ranks load together: the identity of its checkpoint, the
/// bytes it can hold in a round, and the parts that it wants.
struct Request {
  std::uint64_t identity = 0;
  std::uint64_t budget = 0;
  /// The number of the plan that the rank remembers for the same parts, instead of `wanted`; 0 if
  /// there is none.
  std::uint64_t known = 0;
  ByteView wanted{};
};

/// Returns a hash of the tensors and objects that the ranks' numbers refer to, since the ranks of a
/// job may see different checkpoints under one path.
std::uint64_t identity_of(const Metadata& metadata);

/// Returns a hash of what a plan depends on: dtypes, shapes and chunks, but not the chunks' places.
std::uint64_t layout_of(const Metadata& metadata);

/// Returns a hash of the parts that all ranks want, never 0.
std::uint64_t hash_of_wanted(std::uint64_t layout, std::span<const ByteView> all_wanted);

/// Returns the bytes that a rank may send in a round; it receives as many. It is half of the
/// staging at most, and less where that is large: a few MiB stay in the processor's cache between
/// packing and unpacking, and need little fresh memory, which is slower than the copies.
std::uint64_t round_budget(std::uint64_t staging, int ranks);

Bytes encode_request(const Request& request);

/// Returns the requests of all ranks, in which `wanted` are views of the messages. Throws
/// CheckpointError: (corrupt) for a malformed message; (mismatch) if a rank sees another checkpoint
/// than rank 0.
std::vector<Request> decode_requests(std::span<const Bytes> messages);

std::uint64_t smallest_budget(std::span<const Request> requests);

}  // namespace dckpt
