#include "configs/options.h"

#include <array>
#include <utility>

namespace dckpt {
namespace {

constexpr std::array kCompat = {
    std::pair{Compat::kMegatron, std::string_view("megatron")},
    std::pair{Compat::kMegatron019, std::string_view("megatron-0.19")},
    std::pair{Compat::kDcp, std::string_view("dcp")},
};

constexpr std::array kStrict = {
    std::pair{Strict::kAssumeOkUnexpected, std::string_view("assume_ok_unexpected")},
    std::pair{Strict::kLogUnexpected, std::string_view("log_unexpected")},
    std::pair{Strict::kLogAll, std::string_view("log_all")},
    std::pair{Strict::kRaiseUnexpected, std::string_view("raise_unexpected")},
    std::pair{Strict::kRaiseAll, std::string_view("raise_all")},
    std::pair{Strict::kReturnUnexpected, std::string_view("return_unexpected")},
    std::pair{Strict::kReturnAll, std::string_view("return_all")},
    std::pair{Strict::kIgnoreAll, std::string_view("ignore_all")},
};

template <typename Table, typename Value>
std::string_view name_of(const Table& table, Value value) noexcept {
  for (const auto& [candidate, name] : table) {
    if (candidate == value) return name;
  }
  return "?";
}

template <typename Value, typename Table>
std::optional<Value> value_of(const Table& table, std::string_view wanted) noexcept {
  for (const auto& [value, name] : table) {
    if (name == wanted) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(Compat compat) noexcept { return name_of(kCompat, compat); }
std::optional<Compat> parse_compat(std::string_view name) noexcept { return value_of<Compat>(kCompat, name); }
std::string_view to_string(Strict strict) noexcept { return name_of(kStrict, strict); }
std::optional<Strict> parse_strict(std::string_view name) noexcept { return value_of<Strict>(kStrict, name); }

}  // namespace dckpt
