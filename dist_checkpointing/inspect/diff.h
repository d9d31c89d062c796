#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/key_filter.h"
#include "dist_checkpointing/progress.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// How the elements of two tensors of one shape and dtype differ.
struct ElementDifferences {
  std::uint64_t count = 0;     ///< elements that differ
  std::uint64_t elements = 0;  ///< of the tensor
  Shape first{};               ///< index of the first one in C order
  std::string first_a{};       ///< its values, as to_string(Element)
  std::string first_b{};
  /// Largest |a − b| among them; empty if none of them is a pair of finite numbers.
  std::optional<double> max_abs{};
};

struct Difference {
  enum class Kind : std::uint8_t { kOnlyInA, kOnlyInB, kDType, kShape, kValues, kObject, kCommon };
  Kind kind = Kind::kValues;
  std::string key;     ///< tensor or object; empty for kCommon
  std::string path{};  ///< kObject, kCommon: where in the value, as "optimizer.param_groups[0].lr";
                       ///< empty for the whole
  std::string a{};     ///< short text of either side; empty where it is missing
  std::string b{};
  std::optional<ElementDifferences> elements{};  ///< kValues
};

/// "only-in-a", "only-in-b", "dtype", "shape", "values", "object", "common"
const char* to_string(Difference::Kind kind) noexcept;

struct DiffOptions {
  KeyFilter keys{};
  /// If either is set, floating-point numbers a and b are equal when |a − b| ≤ atol + rtol·|b|, and
  /// NaN equals NaN. If neither is, tensors are compared bit by bit: NaN equals the same NaN only,
  /// 0.0 differs from −0.0. Other types are always compared exactly.
  std::optional<double> rtol{};
  std::optional<double> atol{};
  bool common = true;  ///< also compare the common state
  int threads = 2;
  std::uint64_t memory =
      std::uint64_t{128}
      << 20;  ///< bytes of tensors in memory at a time, both sides and all threads together
  Progress progress{};
};

struct DiffReport {
  std::vector<Difference> differences;  ///< tensors, then objects, in the order of A and then of
                                        ///< B's own; then the common state
  std::size_t tensors_compared = 0;
  std::size_t objects_compared = 0;
  bool common_compared = false;  ///< false if one of the two formats has none

  bool equal() const noexcept { return differences.empty(); }
};

/// Compares two checkpoints of any formats and shardings. Tensors are compared as wholes in their
/// global shape; objects and the common state by value (as render() shows them), at most
/// kMaxDifferencesPerValue places each. Throws CheckpointError if either cannot be read.
DiffReport diff(const CheckpointReader& a, const CheckpointReader& b,
                const DiffOptions& options = {});
inline constexpr std::size_t kMaxDifferencesPerValue = 1000;

}  // namespace dckpt
