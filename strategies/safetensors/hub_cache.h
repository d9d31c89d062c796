#pragma once

#include <memory>

#include "strategies/storage/storage.h"

namespace dckpt {

/// Returns a folder in the cache of Hugging Face's hub as if its files were in it:
///
///     models--gpt2/snapshots/main/model.safetensors → ../../blobs/0a3f…
///
/// Only links of exactly this form are followed, and only to regular files; any other link stays
/// one. A storage without such links is returned as it is.
std::shared_ptr<const Storage> with_hub_cache(std::shared_ptr<const Storage> folder);

}  // namespace dckpt
