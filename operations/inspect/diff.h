#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/open/key_filter.h"
#include "mapping/base/api.h"
#include "mapping/base/fields.h"
#include "mapping/base/progress.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// Differences between the elements of two tensors of one shape and dtype.
struct ElementDifferences {
  std::uint64_t count = 0;     ///< elements that differ
  std::uint64_t elements = 0;  ///< all elements of the tensor
  Shape first{};               ///< index of the first differing element in C order
  std::string first_a{};       ///< values there, as to_string(Element)
  std::string first_b{};
  /// Largest |a − b| among them; empty if no pair is finite.
  std::optional<double> max_abs{};
  /// Differing elements of each layer, for a tensor that holds the layers of a stack along its
  /// first axis, as Megatron stores them; else empty.
  std::vector<std::uint64_t> by_layer{};
};
constexpr auto fields(const ElementDifferences*) {
  using D = ElementDifferences;
  return std::tuple(Field(&D::count), Field(&D::elements), Field(&D::first), Field(&D::first_a),
                    Field(&D::first_b), Field(&D::max_abs), Field(&D::by_layer));
}

struct Difference {
  enum class Kind : std::uint8_t { kOnlyInA, kOnlyInB, kDType, kShape, kValues, kObject, kCommon };
  Kind kind = Kind::kValues;
  std::string key;     ///< tensor or object; empty for kCommon
  std::string path{};  ///< kObject, kCommon: the place in the value, such as
                       ///< "optimizer.param_groups[0].lr"; empty for the whole value
  std::string a{};     ///< short text of each side; empty if missing
  std::string b{};
  std::optional<ElementDifferences> elements{};  ///< kValues
};
constexpr Difference::Kind last_of(Difference::Kind) {
  return Difference::Kind::kCommon;
}
constexpr auto fields(const Difference*) {
  using D = Difference;
  return std::tuple(Field(&D::kind), Field(&D::key), Field(&D::path), Field(&D::a), Field(&D::b),
                    Field(&D::elements));
}

/// "only-in-a", "only-in-b", "dtype", "shape", "values", "object", "common"
const char* to_string(Difference::Kind kind) noexcept;

struct DiffOptions {
  KeyFilter keys{};
  /// If either is set, floating-point numbers a and b are equal if |a − b| ≤ atol + rtol·|b|, and
  /// NaN equals NaN. If neither is set, tensors are compared bit by bit: a NaN equals only the same
  /// NaN, and 0.0 differs from −0.0. Other types are always compared exactly.
  std::optional<double> rtol{};
  std::optional<double> atol{};
  bool common = true;  ///< also compare the common state
  int threads = 2;
  std::uint64_t memory =
      std::uint64_t{128}
      << 20;  ///< tensor bytes in memory at a time, for both sides and all threads together
  Progress progress{};
};

struct DiffReport {
  std::vector<Difference> differences;  ///< tensors, then objects, in the order of A, followed by
                                        ///< those only in B; then the common state
  std::size_t tensors_compared = 0;
  std::size_t objects_compared = 0;
  bool common_compared = false;  ///< false if neither has one

  bool equal() const noexcept { return differences.empty(); }
};

/// Compares two checkpoints of any formats and shardings. Tensors are compared whole, in their
/// global shape; objects and the common state by value (as rendered by render()), with at most
/// kMaxDifferencesPerValue differences each. Plain values that a DCP directory stores as objects
/// are compared as common state if the other side has one, and a side without a common state has an
/// empty one. Throws CheckpointError if either cannot be read.
[[nodiscard]] DiffReport diff(const CheckpointReader& a, const CheckpointReader& b,
                              const DiffOptions& options = {});

/// Does the same with the ranks of a job, which have opened the same checkpoints: they divide the
/// tensors and objects by bytes, and all get the same report. Collective; an error on one rank is
/// thrown on all.
[[nodiscard]] DiffReport diff(const CheckpointReader& a, const CheckpointReader& b,
                              const DiffOptions& options, Communicator& comm);
inline constexpr std::size_t kMaxDifferencesPerValue = 1000;

}  // namespace dckpt
