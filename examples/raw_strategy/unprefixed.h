#pragma once

namespace raw {

/// Registers strategy `unprefixed` for loading: checkpoints of any other format, with a prefix of
/// the keys removed. The option `prefix` is that prefix, which all tensors have ("model." by
/// default).
void register_unprefixed();

}  // namespace raw
