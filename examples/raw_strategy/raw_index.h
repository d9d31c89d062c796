#pragma once

#include <dckpt/strategy.h>

namespace raw {

/// The file that says what the others hold:
///
///   "dckpt raw 1"
///   number of files, their names
///   number of tensors, each: key, dtype, shape, number of chunks, each: offsets, sizes, place
///   number of objects, each: key, place
///   the common state as torch.save writes it; empty if there is none
///
/// in the encoding of mapping/base/wire.h; a shape is its length and its extents, a place is file,
/// offset and length.
inline constexpr const char* kIndexFile = "raw_index";
inline constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 30;

struct Index {
  dckpt::Metadata metadata;
  dckpt::Bytes common;
};

dckpt::Bytes encode(const dckpt::Metadata& metadata, const dckpt::CommonState* common);

/// Throws CheckpointError (corrupt) for anything that encode() does not produce, whatever the bytes
/// are. `name` stands for the file in messages.
Index decode(dckpt::ByteView bytes, const std::string& name);

}  // namespace raw
