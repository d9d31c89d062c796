#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// What every rank sends first when ranks load together: the identity of its checkpoint, the bytes it can hold in a round, and its wish.
struct Request {
  std::uint64_t identity = 0;
  std::uint64_t budget = 0;
  ByteView wish;
};

/// A hash of what the ranks' numbers refer to: the ranks of a job may see different checkpoints under one path.
std::uint64_t identity_of(const Metadata& metadata);

/// Staging is shared between what a rank sends and what it receives.
std::uint64_t round_budget(std::uint64_t staging);

Bytes encode_request(const Request& request);

/// Of all ranks; the wishes are views of the messages. Throws CheckpointError: (corrupt) for a message that is none; (mismatch) if a rank sees another checkpoint than rank 0.
std::vector<Request> decode_requests(std::span<const Bytes> messages);

std::uint64_t smallest_budget(std::span<const Request> requests);

}  // namespace dckpt
