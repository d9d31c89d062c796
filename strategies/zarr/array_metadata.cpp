#include "strategies/zarr/array_metadata.h"

#include <algorithm>
#include <array>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr std::array kNumpyNames = {
    std::pair{"|b1", DType::kBool},          std::pair{"|u1", DType::kUInt8},
    std::pair{"<u2", DType::kUInt16},        std::pair{"<u4", DType::kUInt32},
    std::pair{"<u8", DType::kUInt64},        std::pair{"|i1", DType::kInt8},
    std::pair{"<i2", DType::kInt16},         std::pair{"<i4", DType::kInt32},
    std::pair{"<i8", DType::kInt64},         std::pair{"<f2", DType::kFloat16},
    std::pair{"<f4", DType::kFloat32},       std::pair{"<f8", DType::kFloat64},
    std::pair{"<c8", DType::kComplex64},     std::pair{"<c16", DType::kComplex128},
    std::pair{"bfloat16", DType::kBFloat16}, std::pair{"<V2", DType::kBFloat16},
    std::pair{"|V2", DType::kBFloat16},
};

/// A .zarray document and the file it came from, for messages.
class ZarrayParser {
 public:
  ZarrayParser(Value document, const std::string& file_name)
      : document_(std::move(document)), file_name_(file_name) {}

  ZarrArray parse() const {
    if (!document_.is_dict())
      fail(ErrorCode::kCorrupt, "the array's description is no JSON object");
    require_format();
    require_null("compressor");
    require_null("filters");
    require_text("order", "C");
    if (document_.contains("dimension_separator")) require_text("dimension_separator", ".");
    ZarrArray array;
    array.dtype = dtype();
    array.shape = extents("shape");
    array.chunk = extents("chunks");
    check(array);
    return array;
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& message) const {
    throw_error(code, {.file = file_name_}, message);
  }

  const Value& field(const char* name) const {
    const Value* const value = document_.find(name);
    if (value == nullptr)
      fail(ErrorCode::kCorrupt, "the array's description has no field " + quote(name));
    return *value;
  }

  void require_format() const {
    const Value& format = field("zarr_format");
    if (!format.is_int()) fail(ErrorCode::kCorrupt, "'zarr_format' is not an integer");
    if (format.as_int() != 2)
      fail(
          ErrorCode::kUnsupported,
          str_format("zarr format {} is not supported; Megatron writes format 2", format.as_int()));
  }

  void require_null(const char* name) const {
    if (!field(name).is_none())
      fail(ErrorCode::kUnsupported,
           str_format("the array has a {}; Megatron stores plain elements", name));
  }

  void require_text(const char* name, const char* wanted) const {
    const Value& value = field(name);
    if (!value.is_str()) fail(ErrorCode::kCorrupt, quote(name) + " is not a string");
    if (value.as_str() != wanted)
      fail(ErrorCode::kUnsupported, str_format("{} is {}; Megatron writes {}", quote(name),
                                               quote(value.as_str()), quote(wanted)));
  }

  DType dtype() const {
    const Value& name = field("dtype");
    if (!name.is_str()) fail(ErrorCode::kUnsupported, "'dtype' is not a plain element type");
    for (const auto& [numpy_name, dtype] : kNumpyNames) {
      if (name.as_str() == numpy_name) return dtype;
    }
    fail(ErrorCode::kUnsupported,
         str_format("element type {} is not supported", quote(name.as_str())));
  }

  Shape extents(const char* name) const {
    const Value& list = field(name);
    if (!list.is_list()) fail(ErrorCode::kCorrupt, quote(name) + " is not a list of extents");
    if (list.size() > kMaxDims)
      fail(ErrorCode::kCorrupt,
           str_format("{} has {} axes; the limit is {}", quote(name), list.size(), kMaxDims));
    Shape result;
    for (const Value& extent : list.items()) {
      if (!extent.is_int() || extent.as_int() < 0)
        fail(ErrorCode::kCorrupt, quote(name) + " has an entry that is not an extent");
      result.push_back(extent.as_int());
    }
    return result;
  }

  void check(const ZarrArray& array) const {
    if (array.chunk.size() != array.shape.size()) {
      fail(ErrorCode::kCorrupt,
           str_format("'shape' {} and 'chunks' {} differ in their number of axes",
                      to_string(array.shape), to_string(array.chunk)));
    }
    for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
      if (array.chunk[axis] == 0 && array.shape[axis] > 0)
        fail(ErrorCode::kCorrupt,
             str_format("'chunks' {} has an extent of 0", to_string(array.chunk)));
    }
    for (const auto& [name, extents] :
         {std::pair{"shape", &array.shape}, std::pair{"chunks", &array.chunk}}) {
      Shape at_least_one;  // so that strides fit, too, which an extent of 0 does not shorten
      for (const std::int64_t extent : *extents)
        at_least_one.push_back(std::max<std::int64_t>(extent, 1));
      const auto elements = checked_numel(at_least_one);
      if (!elements || !checked_mul<std::int64_t>(
                           *elements, static_cast<std::int64_t>(item_size(array.dtype)))) {
        fail(ErrorCode::kCorrupt,
             str_format("{} {} is too large", quote(name), to_string(*extents)));
      }
    }
  }

  Value document_;
  const std::string& file_name_;
};

}  // namespace

Shape ZarrArray::grid() const {
  Shape result;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    result.push_back(shape[axis] == 0 ? 0 : (shape[axis] - 1) / chunk[axis] + 1);
  }
  return result;
}

Box ZarrArray::chunk_box(ShapeView position) const {
  Box box;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const std::int64_t begin = position[axis] * chunk[axis];
    box.offsets.push_back(begin);
    box.sizes.push_back(std::min(chunk[axis], shape[axis] - begin));
  }
  return box;
}

ZarrArray read_zarray(ByteView json, const std::string& file_name) {
  return ZarrayParser(parse_json(json, file_name, {.max_bytes = kMaxZarrayBytes}), file_name)
      .parse();
}

std::optional<std::string_view> zarr_dtype_name(DType dtype) noexcept {
  for (const auto& [name, known] : kNumpyNames) {
    if (known == dtype) return name;
  }
  return std::nullopt;
}

std::string write_zarray(const ZarrArray& array) {
  const auto list = [](ShapeView extents) {
    std::string text;
    for (const std::int64_t extent : extents)
      text += (text.empty() ? "" : ", ") + std::to_string(extent);
    return text;
  };
  return str_format(
      "{{\"chunks\": [{}], \"compressor\": null, \"dtype\": \"{}\", \"fill_value\": null, "
      "\"filters\": null, \"order\": \"C\", \"shape\": [{}], \"zarr_format\": 2}}",
      list(array.chunk), zarr_dtype_name(array.dtype).value_or(""), list(array.shape));
}

std::string zarr_chunk_name(ShapeView position) {
  if (position.empty()) return "0";
  std::string name;
  for (const std::int64_t index : position) {
    if (!name.empty()) name += '.';
    name += std::to_string(index);
  }
  return name;
}

std::optional<Shape> parse_zarr_chunk_name(std::string_view name, std::size_t dims) {
  Shape position;
  for (const std::string& part : split(name, '.')) {
    const auto index = parse_u64(part);
    if (!index || *index > static_cast<std::uint64_t>(INT64_MAX) || position.size() == kMaxDims)
      return std::nullopt;
    position.push_back(static_cast<std::int64_t>(*index));
  }
  if (dims == 0 && name == "0") return Shape{};
  if (position.size() != dims || zarr_chunk_name(position) != name) return std::nullopt;
  return position;
}

}  // namespace dckpt
