#include "configs/options.h"

#include "mapping/base/enum_names.h"

namespace dckpt {
namespace {

constexpr EnumNames<Compat, 3> kCompat{{
    {Compat::kMegatron, "megatron"},
    {Compat::kMegatron019, "megatron-0.19"},
    {Compat::kDcp, "dcp"},
}};

constexpr EnumNames<Strict, 8> kStrict{{
    {Strict::kAssumeOkUnexpected, "assume_ok_unexpected"},
    {Strict::kLogUnexpected, "log_unexpected"},
    {Strict::kLogAll, "log_all"},
    {Strict::kRaiseUnexpected, "raise_unexpected"},
    {Strict::kRaiseAll, "raise_all"},
    {Strict::kReturnUnexpected, "return_unexpected"},
    {Strict::kReturnAll, "return_all"},
    {Strict::kIgnoreAll, "ignore_all"},
}};

}  // namespace

std::string_view to_string(Compat compat) noexcept { return name_of(kCompat, compat); }
std::optional<Compat> parse_compat(std::string_view name) noexcept { return value_of(kCompat, name); }
std::string_view to_string(Strict strict) noexcept { return name_of(kStrict, strict); }
std::optional<Strict> parse_strict(std::string_view name) noexcept { return value_of(kStrict, name); }

}  // namespace dckpt
