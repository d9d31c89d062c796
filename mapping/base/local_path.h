#pragma once

#include <filesystem>
#include <string_view>

namespace dckpt {

/// Returns "s3" for "s3://bucket" (RFC 3986: a letter, then letters, digits, '+', '-' and '.'), and
/// nothing for a path without a scheme.
std::string_view scheme_of(std::string_view text);

/// Converts a path as users write it to one of the local file system: `file:///a/b` is /a/b. Throws
/// CheckpointError (unsupported) for every other scheme: s3://bucket/run would otherwise name a
/// local folder "s3:". Every function that takes a path from outside calls this before it changes
/// or combines the path.
std::filesystem::path local_path(const std::filesystem::path& given);

}  // namespace dckpt
