#pragma once

namespace dckpt {

/// Where the common state keeps SaveHooks::content_metadata, as Megatron-Core from 0.13 on does.
inline constexpr const char* kContentMetadataKey = "content_metadata";

}  // namespace dckpt
