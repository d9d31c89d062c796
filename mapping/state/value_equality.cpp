#include <algorithm>
#include <bit>
#include <cmath>
#include <variant>

#include "mapping/base/error.h"
#include "mapping/state/members.h"
#include "mapping/state/value.h"

namespace dckpt {
namespace {

using Kind = Value::Kind;

/// A number in the one form that all equal Python numbers share: 1, 1.0, 1+0j and True are the
/// int 1.
using Number = std::variant<std::int64_t, BigInt, double, std::complex<double>>;

bool is_number(Kind kind) {
  return kind == Kind::kBool || kind == Kind::kInt || kind == Kind::kBigInt ||
         kind == Kind::kFloat || kind == Kind::kComplex;
}

/// Converts a whole double of 2^63 or more (or less than -2^63) to two's complement.
BigInt whole_double(double value) {
  int exponent = 0;
  const double fraction =
      std::frexp(value, &exponent);  // value = fraction · 2^exponent, exponent ≥ 63
  auto mantissa = static_cast<std::int64_t>(std::ldexp(fraction, 53));
  const int shift = exponent - 53;
  mantissa *= std::int64_t{1} << shift % 8;  // below 2^60
  Bytes bytes(static_cast<std::size_t>(shift / 8), std::byte{0});
  append_le(bytes, mantissa);
  const Value normalized{BigInt{std::move(bytes)}};
  return normalized.as_big_int();
}

Number canonical(double value) {
  if (!std::isfinite(value) || std::trunc(value) != value) return value;
  if (value >= -0x1p63 && value < 0x1p63) return static_cast<std::int64_t>(value);
  return whole_double(value);
}

Number canonical(const Value& value) {
  switch (value.kind()) {
    case Kind::kBool: return std::int64_t{value.as_bool()};
    case Kind::kInt: return value.as_int();
    case Kind::kBigInt: return value.as_big_int();
    case Kind::kFloat: return canonical(value.as_float());
    default: break;
  }
  const std::complex<double> number = value.as_complex();
  if (number.imag() == 0) return canonical(number.real());
  return number;
}

bool same(double a, double b) {
  return a == b || std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool same(const Number& a, const Number& b) {
  if (a.index() != b.index()) return false;
  if (const double* real = std::get_if<double>(&a)) return same(*real, std::get<double>(b));
  if (const auto* pair = std::get_if<std::complex<double>>(&a)) {
    const auto& other = std::get<std::complex<double>>(b);
    return same(pair->real(), other.real()) && same(pair->imag(), other.imag());
  }
  return a == b;
}

bool same(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const auto readable = [](const Tensor& tensor) {
    return tensor.has_data() && tensor.device().kind == Device::Kind::kCpu;
  };
  if (readable(a) && readable(b)) return equal(a, b);
  const FileRange* left = a.file_range();
  const FileRange* right = b.file_range();
  if (left != nullptr && right != nullptr)
    return left->file == right->file && left->offset == right->offset && a.strides() == b.strides();
  return left == right && a.data() == b.data() && a.strides() == b.strides() &&
         a.device() == b.device();
}

/// Both limits guard against hostile pickles: one that nests deeply, and one whose parts are shared
/// so that it is small as a graph and huge as a tree.
constexpr int kMaxDepth = 1100;
constexpr std::uint64_t kMaxCompared = std::uint64_t{1} << 24;

class ValueComparer {
 public:
  bool equal(const Value& a, const Value& b) {
    const Kind left = a.kind();
    const Kind right = b.kind();
    if (is_number(left) && is_number(right) && left != right)
      return same(canonical(a), canonical(b));
    if (family(left) != family(right)) return false;
    if (left == Kind::kReference) return same_label(a.label(), b.label());
    switch (left) {
      case Kind::kBool: return a.as_bool() == b.as_bool();
      case Kind::kInt: return a.as_int() == b.as_int();
      case Kind::kFloat:
      case Kind::kComplex: return same(canonical(a), canonical(b));
      default: break;
    }
    if (a.identity() == b.identity()) return true;
    if (a.label() != 0 && b.label() != 0) labels_.insert_or_assign(a.label(), b.label());
    switch (left) {
      case Kind::kBigInt: return a.as_big_int() == b.as_big_int();
      case Kind::kStr: return a.as_str() == b.as_str();
      case Kind::kBytes:
      case Kind::kByteArray: return a.as_bytes() == b.as_bytes();
      case Kind::kTensor: return same(a.as_tensor(), b.as_tensor());
      case Kind::kGlobal: return a.as_global() == b.as_global();
      case Kind::kStorage: return equal(a.as_storage(), b.as_storage());
      case Kind::kList:
      case Kind::kTuple: return nested([&] { return equal(a.items(), b.items()); });
      case Kind::kSet:
      case Kind::kFrozenSet: return nested([&] { return equal_sets(a.items(), b.items()); });
      case Kind::kDict: return nested([&] { return equal(a.as_dict(), b.as_dict()); });
      case Kind::kOpaque: return nested([&] { return equal(a.as_opaque(), b.as_opaque()); });
      default: return false;  // sharded leaves are equal to themselves only
    }
  }

 private:
  /// Returns whether two references lead to places that were compared with each other.
  bool same_label(std::uint32_t a, std::uint32_t b) const {
    const auto known = labels_.find(a);
    return a == b || (known != labels_.end() && known->second == b);
  }

  /// Returns one kind for all kinds that can be equal to each other.
  static Kind family(Kind kind) {
    if (kind == Kind::kByteArray) return Kind::kBytes;
    return kind == Kind::kFrozenSet ? Kind::kSet : kind;
  }

  template <typename Body>
  bool nested(Body&& body) {
    if (++depth_ > kMaxDepth) {
      throw_error(ErrorCode::kUnsupported, "values nested more than {} deep are not compared",
                  kMaxDepth);
    }
    const bool result = body();
    --depth_;
    return result;
  }

  bool counted(const Value& a, const Value& b) {
    if (++compared_ > kMaxCompared) {
      throw_error(ErrorCode::kUnsupported, "values of more than {} parts are not compared",
                  kMaxCompared);
    }
    return equal(a, b);
  }

  template <typename Container>
  bool equal(const Container& a, const Container& b) {
    const auto same_member = [&](const Value&, const Value* of_a, const Value* of_b) {
      return of_a != nullptr && of_b != nullptr && counted(*of_a, *of_b);
    };
    return a.size() == b.size() && for_each_member(a, b, same_member);
  }

  bool equal_sets(const ValueList& a, const ValueList& b) {
    if (a.size() != b.size()) return false;
    std::unordered_multimap<std::size_t, const Value*> members;
    for (const Value& member : a) members.emplace(hash_value(member), &member);
    return std::all_of(b.begin(), b.end(), [&](const Value& wanted) {
      const auto [first, last] = members.equal_range(hash_value(wanted));
      return std::any_of(first, last,
                         [&](const auto& entry) { return counted(*entry.second, wanted); });
    });
  }

  static bool equal(const TorchStorage& a, const TorchStorage& b) {
    return a.type == b.type && a.location == b.location && same(a.elements, b.elements);
  }

  bool equal(const Opaque& a, const Opaque& b) {
    if (a.form != b.form || a.kwargs.has_value() != b.kwargs.has_value() ||
        a.dict_items.size() != b.dict_items.size())
      return false;
    if (!counted(a.callable, b.callable) || !counted(a.args, b.args) ||
        (a.kwargs && !counted(*a.kwargs, *b.kwargs)))
      return false;
    if (!equal(a.states, b.states) || !equal(a.list_items, b.list_items)) return false;
    for (std::size_t i = 0; i < a.dict_items.size(); ++i) {
      if (!counted(a.dict_items[i].first, b.dict_items[i].first) ||
          !counted(a.dict_items[i].second, b.dict_items[i].second))
        return false;
    }
    return true;
  }

  int depth_ = 0;
  std::uint64_t compared_ = 0;
  std::unordered_map<std::uint32_t, std::uint32_t> labels_;
};

std::size_t mixed(std::size_t seed, std::size_t value) noexcept {
  std::uint64_t x = (seed ^ value) + 0x9E3779B97F4A7C15u + (seed << 6);
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

std::size_t hash_text(std::string_view text) noexcept {
  return std::hash<std::string_view>{}(text);
}

/// Hashes only the first parts of a value, as many as the budget allows: keys are small, and for
/// others this only costs collisions.
class ValueHasher {
 public:
  explicit ValueHasher(int budget) : budget_(budget) {}

  std::size_t of(const Value& value) noexcept {
    --budget_;
    const Kind kind = value.kind();
    if (is_number(kind)) return of_number(value);
    const auto seed = static_cast<std::size_t>(kind);
    switch (kind) {
      case Kind::kStr: return hash_text(value.as_str());
      case Kind::kBytes:
      case Kind::kByteArray: return hash_text(as_text(value.as_bytes()));
      case Kind::kList:
      case Kind::kTuple: return of(mixed(seed, value.size()), value.items());
      case Kind::kSet:
      case Kind::kFrozenSet: return of_set(value.items());
      case Kind::kDict: return of_dict(value.as_dict());
      case Kind::kTensor:
        return mixed(mixed(seed, static_cast<std::size_t>(value.as_tensor().dtype())),
                     value.as_tensor().nbytes());
      case Kind::kStorage: return mixed(seed, hash_text(value.as_storage().type));
      case Kind::kGlobal:
        return mixed(hash_text(value.as_global().module), hash_text(value.as_global().name));
      case Kind::kOpaque: return of_opaque(value.as_opaque());
      default: return mixed(seed, std::hash<const void*>{}(value.identity()));
    }
  }

 private:
  static std::size_t of_number(const Value& value) noexcept {
    if (value.is_int()) return mixed(0, static_cast<std::size_t>(value.as_int()));
    if (value.is(Kind::kBigInt)) return hash_text(as_text(value.as_big_int().bytes));
    const Number number = canonical(value);
    if (const auto* integer = std::get_if<std::int64_t>(&number))
      return mixed(0, static_cast<std::size_t>(*integer));
    if (const auto* big = std::get_if<BigInt>(&number)) return hash_text(as_text(big->bytes));
    if (const auto* real = std::get_if<double>(&number))
      return mixed(1, std::hash<double>{}(*real));
    const auto pair = std::get<std::complex<double>>(number);
    return mixed(std::hash<double>{}(pair.real()), std::hash<double>{}(pair.imag()));
  }

  std::size_t of(std::size_t seed, const ValueList& items) noexcept {
    for (const Value& item : items) {
      if (budget_ <= 0) break;
      seed = mixed(seed, of(item));
    }
    return seed;
  }

  /// Hashes alike in every order of the members, so each gets the same share of the budget.
  std::size_t of_set(const ValueList& members) noexcept {
    std::size_t sum = mixed(static_cast<std::size_t>(Kind::kSet), members.size());
    if (members.empty() || members.size() > static_cast<std::size_t>(std::max(budget_, 0)))
      return sum;
    const int share = budget_ / static_cast<int>(members.size());
    for (const Value& member : members) sum += ValueHasher(share).of(member);
    budget_ -= share * static_cast<int>(members.size());
    return sum;
  }

  /// Hashes states of opaque objects that are keys; the order does not count here, either.
  std::size_t of_dict(const Dict& dict) noexcept {
    std::size_t sum = mixed(static_cast<std::size_t>(Kind::kDict), dict.size());
    if (dict.empty() || dict.size() > static_cast<std::size_t>(std::max(budget_, 0)) / 2)
      return sum;
    const int share = budget_ / 2 / static_cast<int>(dict.size());
    for (const auto& [key, item] : dict)
      sum += mixed(ValueHasher(share).of(key), ValueHasher(share).of(item));
    budget_ -= 2 * share * static_cast<int>(dict.size());
    return sum;
  }

  std::size_t of_opaque(const Opaque& object) noexcept {
    std::size_t seed = mixed(static_cast<std::size_t>(Kind::kOpaque), of(object.callable));
    if (budget_ > 0) seed = mixed(seed, of(object.args));
    return of(of(seed, object.states), object.list_items);
  }

  int budget_;
};

}  // namespace

bool operator==(const Value& a, const Value& b) {
  return ValueComparer().equal(a, b);
}

std::size_t hash_value(const Value& value) noexcept {
  constexpr int kBudget = 256;
  return ValueHasher(kBudget).of(value);
}

}  // namespace dckpt
