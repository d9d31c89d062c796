#pragma once

#include <utility>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// The common state as a strategy gets it to store it: a dict, and the same as torch.save writes
/// it.
class CommonState {
 public:
  explicit CommonState(Value value);
  /// `archive`: the bytes of the torch file that the value was read from, so that nothing of them
  /// changes on the way.
  CommonState(Value value, Bytes archive)
      : value_(std::move(value)), archive_(std::move(archive)) {}

  const Value& value() const noexcept { return value_; }
  const Bytes& archive() const noexcept { return archive_; }

 private:
  Value value_;
  Bytes archive_;
};

}  // namespace dckpt
