#pragma once

#include <filesystem>
#include <string_view>

namespace dckpt {

/// "s3" of "s3://bucket" (RFC 3986: a letter, then letters, digits, '+', '-' and '.'); empty for a
/// path without a scheme.
std::string_view scheme_of(std::string_view text);

/// A path as users write it, as one of the local file system: `file:///a/b` is /a/b. Throws
/// CheckpointError (unsupported) for every other scheme, as in s3://bucket/run, which would name a
/// local folder "s3:" otherwise. Whatever takes a path from outside calls this before it changes or
/// combines it.
std::filesystem::path local_path(const std::filesystem::path& given);

}  // namespace dckpt
