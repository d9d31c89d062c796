#pragma once

#include <filesystem>

namespace dckpt {

/// A path as users write it, as one of the local file system: `file:///a/b` is /a/b. Throws
/// CheckpointError (unsupported) for every other scheme, as in s3://bucket/run, which would name a
/// local folder "s3:" otherwise. Whatever takes a path from outside calls this before it changes or
/// combines it.
std::filesystem::path local_path(const std::filesystem::path& given);

}  // namespace dckpt
