#pragma once

#include <functional>
#include <memory>
#include <string>

#include "conformance/report.h"
#include "mapping/base/api.h"
#include "strategies/storage/storage.h"

namespace DCKPT_API dckpt {

/// Checks that a storage conforms, for use in your own tests. `make` returns a new, empty one for
/// each check.
///
///   EXPECT_THAT(check_storage([] { return my_storage(); }).problems, IsEmpty());
///
/// Covers writing and reading ranges, directories, renames, removals, error codes, and names that
/// leave the root, are malformed, or are at their limits. Does not cover durability, locks, and
/// concurrent use. `above` is the name of the root if the storage is a subtree of another one; it
/// counts towards the limits of names. Takes milliseconds.
[[nodiscard]] ConformanceReport check_storage(const std::function<std::shared_ptr<Storage>()>& make,
                                              const std::string& above = "");

}  // namespace dckpt
