#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// What every rank sends first when ranks load together: the identity of its checkpoint, the bytes
/// it can hold in a round, and the parts that it wants.
struct Request {
  std::uint64_t identity = 0;
  std::uint64_t budget = 0;
  /// Instead of `wanted`: the number of the plan that the rank remembers for the same parts; 0 if
  /// there is none.
  std::uint64_t known = 0;
  ByteView wanted{};
};

/// A hash of what the ranks' numbers refer to: the ranks of a job may see different checkpoints
/// under one path.
std::uint64_t identity_of(const Metadata& metadata);

/// A hash of what a plan depends on: data types, shapes and chunks, but not where these lie.
std::uint64_t layout_of(const Metadata& metadata);

/// A hash of what all ranks want, never 0.
std::uint64_t hash_of_wanted(std::uint64_t layout, std::span<const ByteView> all_wanted);

/// What a rank may send in a round, in bytes; it receives as much. Half of the staging at most, and
/// less where that is large: a few MiB stay in the processor's cache between packing and unpacking,
/// and need little fresh memory, which is slower than the copies.
std::uint64_t round_budget(std::uint64_t staging, int ranks);

Bytes encode_request(const Request& request);

/// Of all ranks, in which `wanted` are views of the messages. Throws CheckpointError: (corrupt) for
/// a message that is none; (mismatch) if a rank sees another checkpoint than rank 0.
std::vector<Request> decode_requests(std::span<const Bytes> messages);

std::uint64_t smallest_budget(std::span<const Request> requests);

}  // namespace dckpt
