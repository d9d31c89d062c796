#pragma once

#include <dckpt/strategy.h>

namespace raw {

/// The index file, which locates the data in the other files:
///
///   "dckpt raw 1"
///   number of files, their names
///   number of tensors, each: key, dtype, shape, number of chunks, each: offsets, sizes, place
///   number of objects, each: key, place
///   the common state as torch.save writes it; empty if there is none
///
/// It uses the encoding of mapping/base/wire.h. A shape is its length and its extents, a place is
/// file, offset and length.
inline constexpr const char* kIndexFile = "raw_index";
inline constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 30;

struct Index {
  dckpt::Metadata metadata;
  dckpt::Bytes common;
};

dckpt::Bytes encode(const dckpt::Metadata& metadata, const dckpt::CommonState* common);

/// Throws CheckpointError (corrupt) for any bytes that encode() does not produce. `name` identifies
/// the file in messages.
Index decode(dckpt::ByteView bytes, const std::string& name);

}  // namespace raw
