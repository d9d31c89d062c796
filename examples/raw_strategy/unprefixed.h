#pragma once

namespace raw {

/// Registers strategy `unprefixed` for loading: checkpoints of any other format, with a prefix of
/// the keys taken away. Its option `prefix` is that of all tensors ("model." unless said
/// otherwise).
void register_unprefixed();

}  // namespace raw
