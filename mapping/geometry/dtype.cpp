#include "mapping/geometry/dtype.h"

#include <array>
#include <utility>

namespace dckpt {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array kRows = {
    Row{DType::kBool, "bool", 1},
    Row{DType::kUInt8, "uint8", 1},
    Row{DType::kUInt16, "uint16", 2},
    Row{DType::kUInt32, "uint32", 4},
    Row{DType::kUInt64, "uint64", 8},
    Row{DType::kInt8, "int8", 1},
    Row{DType::kInt16, "int16", 2},
    Row{DType::kInt32, "int32", 4},
    Row{DType::kInt64, "int64", 8},
    Row{DType::kFloat16, "float16", 2},
    Row{DType::kBFloat16, "bfloat16", 2},
    Row{DType::kFloat32, "float32", 4},
    Row{DType::kFloat64, "float64", 8},
    Row{DType::kComplex32, "complex32", 4},
    Row{DType::kComplex64, "complex64", 8},
    Row{DType::kComplex128, "complex128", 16},
    Row{DType::kFloat8E4M3FN, "float8_e4m3fn", 1},
    Row{DType::kFloat8E4M3FNUZ, "float8_e4m3fnuz", 1},
    Row{DType::kFloat8E5M2, "float8_e5m2", 1},
    Row{DType::kFloat8E5M2FNUZ, "float8_e5m2fnuz", 1},
    Row{DType::kFloat8E8M0FNU, "float8_e8m0fnu", 1},
    Row{DType::kFloat4E2M1FNx2, "float4_e2m1fn_x2", 1},
    Row{DType::kFloat6E2M3FNx4, "float6_e2m3fn_x4", 3},
    Row{DType::kFloat6E3M2FNx4, "float6_e3m2fn_x4", 3},
    Row{DType::kQInt8, "qint8", 1},
    Row{DType::kQUInt8, "quint8", 1},
    Row{DType::kQInt32, "qint32", 4},
};

constexpr bool rows_follow_enum() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_follow_enum());

constexpr std::array<std::pair<std::string_view, DType>, 9> kAliases = {{
    {"half", DType::kFloat16},
    {"float", DType::kFloat32},
    {"double", DType::kFloat64},
    {"short", DType::kInt16},
    {"int", DType::kInt32},
    {"long", DType::kInt64},
    {"chalf", DType::kComplex32},
    {"cfloat", DType::kComplex64},
    {"cdouble", DType::kComplex128},
}};

}  // namespace

std::size_t item_size(DType dtype) noexcept {
  return kRows[static_cast<std::size_t>(dtype)].size;
}

int packed_values(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat4E2M1FNx2: return 2;
    case DType::kFloat6E2M3FNx4:
    case DType::kFloat6E3M2FNx4: return 4;
    default: return 1;
  }
}

bool is_torch_dtype(DType dtype) noexcept {
  return dtype != DType::kFloat6E2M3FNx4 && dtype != DType::kFloat6E3M2FNx4;
}

std::string_view to_string(DType dtype) noexcept {
  return kRows[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  for (const auto& [alias, dtype] : kAliases) {
    if (alias == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace dckpt
