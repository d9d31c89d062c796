#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The state of Megatron's distributed optimizer has the order of gradient buffers: one for each
// chunk of a virtual pipeline, kind of parameter (dense, expert) and dtype, cut into buckets.

namespace dckpt {

/// The buffer of a tensor of distrib_optim.pt, from its path
/// "[CHAIN.]BUFFER.(DTYPES).NAME[.BUCKET]".
struct BufferKey {
  std::int64_t chain = -1;  ///< number in a chain of optimizers; -1: there is no chain
  std::int64_t buffer = 0;
  std::string dtypes;  ///< "(torch.bfloat16, torch.float32)": those of parameters and of gradients;
                       ///< before 2024 "torch.float32": that of gradients
  std::string name;    ///< "param", "exp_avg", …
  std::int64_t bucket = 0;
  friend auto operator<=>(const BufferKey&, const BufferKey&) = default;
};
std::optional<BufferKey> parse_buffer_key(std::string_view path);

struct BufferPosition {
  std::size_t bucket = 0;
  std::int64_t begin = 0;  ///< element in the bucket
  friend bool operator==(const BufferPosition&, const BufferPosition&) = default;
};

/// Returns the positions in a buffer of parameters of these sizes, given in the order of the model:
/// they are placed from the last to the first, each on a multiple of 64 elements; one that does not
/// fit into the rest of a bucket begins the next. Throws CheckpointError (unsupported) if more than
/// `most_padding` elements at the end of a bucket belong to no parameter, or too few are there: the
/// parameters are then not those of the buffer.
std::vector<BufferPosition> place_in_buffer(std::span<const std::int64_t> sizes,
                                            std::span<const std::int64_t> buckets,
                                            std::int64_t most_padding);

}  // namespace dckpt
