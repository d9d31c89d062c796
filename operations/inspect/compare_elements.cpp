#include "operations/inspect/compare_elements.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "operations/inspect/element.h"

namespace dckpt {
namespace {

double magnitude(std::uint64_t a, std::uint64_t b) noexcept {
  return static_cast<double>(a > b ? a - b : b - a);
}

/// Returns |a − b|, exact before it is rounded to a double; infinite or NaN if the elements are.
double distance(const Element& a, const Element& b) noexcept {
  if (const auto* x = std::get_if<double>(&a)) return std::abs(*x - std::get<double>(b));
  if (const auto* x = std::get_if<ComplexElement>(&a)) {
    const auto& y = std::get<ComplexElement>(b);
    return std::hypot(x->real - y.real, x->imag - y.imag);
  }
  if (const auto* x = std::get_if<std::uint64_t>(&a))
    return magnitude(*x, std::get<std::uint64_t>(b));
  if (std::holds_alternative<bool>(a)) return 1;
  // Shifted by 2^63, int64 becomes uint64 in the same order.
  const auto shifted = [](const Element& element) {
    return static_cast<std::uint64_t>(std::get<std::int64_t>(element)) ^ (std::uint64_t{1} << 63);
  };
  return magnitude(shifted(a), shifted(b));
}

bool within(const Tolerance& tolerance, const Element& a, const Element& b) noexcept {
  if (const auto* x = std::get_if<double>(&a)) return tolerance.accepts(*x, std::get<double>(b));
  if (const auto* x = std::get_if<ComplexElement>(&a)) {
    const auto& y = std::get<ComplexElement>(b);
    return tolerance.accepts(x->real, y.real) && tolerance.accepts(x->imag, y.imag);
  }
  return false;
}

}  // namespace

bool Tolerance::accepts(double a, double b) const noexcept {
  if (a == b || (std::isnan(a) && std::isnan(b))) return true;
  return std::isfinite(a) && std::isfinite(b) &&
         std::abs(a - b) <= absolute + relative * std::abs(b);
}

void ElementComparison::compare(ByteView a, ByteView b) {
  constexpr std::size_t kBlock =
      4096;  // a multiple of every element size; equal blocks are not looked into
  const std::size_t size = item_size(dtype_);
  for (std::size_t start = 0; start < a.size(); start += kBlock) {
    const std::size_t end = std::min(start + kBlock, a.size());
    if (std::memcmp(a.data() + start, b.data() + start, end - start) == 0) continue;
    for (std::size_t at = start; at < end; at += size) {
      if (std::memcmp(a.data() + at, b.data() + at, size) == 0) continue;
      const Element x = load_element(dtype_, a.data() + at);
      const Element y = load_element(dtype_, b.data() + at);
      if (tolerance_ && within(*tolerance_, x, y)) continue;
      ++count_;
      if (!first_) {
        first_ = First{position_ + at / size, {}, {}};
        std::memcpy(first_->a, a.data() + at, size);
        std::memcpy(first_->b, b.data() + at, size);
      }
      const double apart = distance(x, y);
      if (element_kind(dtype_) != ElementKind::kPacked && std::isfinite(apart) &&
          apart > max_abs_.value_or(-1))
        max_abs_ = apart;
    }
  }
  position_ += a.size() / size;
}

}  // namespace dckpt
