#include "strategies/formats/safetensors/header.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr const char* kMetadataName = "__metadata__";
constexpr std::uint32_t kMaxDepth = 16;  // a sound header has 3

/// The dtypes in the reference's order, which is that of element sizes.
constexpr std::array kTypes = {
    std::pair{DType::kBool, "BOOL"},
    std::pair{DType::kFloat4E2M1FNx2, "F4"},
    std::pair{DType::kFloat6E2M3FNx4, "F6_E2M3"},
    std::pair{DType::kFloat6E3M2FNx4, "F6_E3M2"},
    std::pair{DType::kUInt8, "U8"},
    std::pair{DType::kInt8, "I8"},
    std::pair{DType::kFloat8E5M2, "F8_E5M2"},
    std::pair{DType::kFloat8E4M3FN, "F8_E4M3"},
    std::pair{DType::kFloat8E8M0FNU, "F8_E8M0"},
    std::pair{DType::kFloat8E4M3FNUZ, "F8_E4M3FNUZ"},
    std::pair{DType::kFloat8E5M2FNUZ, "F8_E5M2FNUZ"},
    std::pair{DType::kInt16, "I16"},
    std::pair{DType::kUInt16, "U16"},
    std::pair{DType::kFloat16, "F16"},
    std::pair{DType::kBFloat16, "BF16"},
    std::pair{DType::kInt32, "I32"},
    std::pair{DType::kUInt32, "U32"},
    std::pair{DType::kFloat32, "F32"},
    std::pair{DType::kComplex64, "C64"},
    std::pair{DType::kFloat64, "F64"},
    std::pair{DType::kInt64, "I64"},
    std::pair{DType::kUInt64, "U64"},
};

std::size_t order_of(DType dtype) noexcept {
  return static_cast<std::size_t>(
      std::ranges::find(kTypes, dtype, [](const auto& type) { return type.first; }) -
      kTypes.begin());
}

class HeaderParser {
 public:
  HeaderParser(std::uint64_t data_bytes, const std::string& file)
      : data_bytes_(data_bytes), file_(file) {}

  SafetensorsHeader parse(ByteView json) {
    if (json.empty() || as_text(json).front() != '{')
      fail("the header of a safetensors file starts with '{', but here is something else");
    bool has_metadata = false;
    visit_json_members(json, file_,
                       [&](const std::string& name, const Value& entry) {
                         if (name != kMetadataName)
                           return with_context({.key = name}, [&] { read_tensor(name, entry); });
                         if (std::exchange(has_metadata, true)) fail_twice(name);
                         read_metadata(entry);
                       },
                       {kMaxSafetensorsHeader, kMaxDepth});
    refuse_duplicates();
    order_by_place();
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < begins_.size(); ++i) {
      if (begins_[i] != end) {
        fail(str_format("the tensor starts at byte {} of the data, but the one before it ends at "
                        "{}: tensors lie one after the other, without gaps",
                        grouped(begins_[i]), grouped(end)),
             header_.tensors[i].key);
      }
      end += header_.tensors[i].nbytes();
    }
    if (end != data_bytes_) {
      fail(str_format("the tensors take {} bytes, but {} bytes follow the header{}", grouped(end),
                      grouped(data_bytes_), end > data_bytes_ ? ": the file is truncated" : ""));
    }
    return std::move(header_);
  }

 private:
  using Range = std::pair<std::uint64_t, std::uint64_t>;

  /// Sorts the tensors by place. Most files list them in this order.
  void order_by_place() {
    const auto ends_first = [&](std::size_t a, std::size_t b) {
      return std::tuple(begins_[a], begins_[a] + header_.tensors[a].nbytes(), a) <
             std::tuple(begins_[b], begins_[b] + header_.tensors[b].nbytes(), b);
    };
    std::vector<std::size_t> order(begins_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (std::ranges::is_sorted(order, ends_first)) return;
    std::ranges::sort(order, ends_first);
    std::vector<SafetensorsTensor> tensors;
    std::vector<std::uint64_t> begins;
    for (const std::size_t i : order) {
      tensors.push_back(std::move(header_.tensors[i]));
      begins.push_back(begins_[i]);
    }
    header_.tensors = std::move(tensors);
    begins_ = std::move(begins);
  }

  [[noreturn]] void fail(const std::string& message, std::string_view key = {}) const {
    throw_error(ErrorCode::kCorrupt, {.key = key, .file = file_}, message);
  }

  [[noreturn]] void fail_twice(const std::string& key) const {
    fail(str_format("the key {} occurs twice in one object", quote(key)));
  }

  void refuse_duplicates() const {
    std::vector<std::string_view> keys;
    keys.reserve(header_.tensors.size());
    for (const SafetensorsTensor& tensor : header_.tensors) keys.push_back(tensor.key);
    std::ranges::sort(keys);
    const auto twice = std::ranges::adjacent_find(keys);
    if (twice != keys.end()) fail_twice(std::string(*twice));
  }

  void read_metadata(const Value& entry) {
    if (!entry.is_dict()) fail("'__metadata__' is no JSON object");
    for (const auto& [name, value] : entry.as_dict()) {
      if (!value.is_str())
        fail(str_format("'__metadata__' has a value that is not a string: {}",
                        quote(name.as_str())));
      header_.metadata.emplace_back(name.as_str(), value.as_str());
    }
  }

  void read_tensor(const std::string& key, const Value& entry) {
    if (!entry.is_dict()) fail("a tensor is described by a JSON object, but here is none");
    const auto [begin, end] = range(field(entry, "data_offsets"));
    SafetensorsTensor tensor{key, dtype(field(entry, "dtype")), shape(field(entry, "shape"))};
    pack_last_axis(tensor);
    const auto elements = checked_numel(tensor.shape);
    const auto bytes = elements ? checked_mul<std::uint64_t>(static_cast<std::uint64_t>(*elements),
                                                             item_size(tensor.dtype))
                                : std::nullopt;
    if (end < begin || !bytes || end - begin != *bytes) {
      fail(str_format("'data_offsets' [{}, {}] do not agree with the shape {} of {}",
                      grouped(begin), grouped(end), to_string(tensor.shape),
                      to_string(tensor.dtype)));
    }
    header_.tensors.push_back(std::move(tensor));
    begins_.push_back(begin);
  }

  const Value& field(const Value& entry, const char* name) const {
    const Value* const value = entry.find(name);
    if (value == nullptr) fail("the description has no field " + quote(name));
    return *value;
  }

  void pack_last_axis(SafetensorsTensor& tensor) const {
    const std::int64_t shared = packed_values(tensor.dtype);
    if (shared == 1) return;
    if (tensor.shape.empty() || tensor.shape.back() % shared != 0)
      throw_error(ErrorCode::kUnsupported, {.file = file_},
                  "{} elements of {} are packed into {}; the shape {} can be read only if its last "
                  "extent is a multiple of {}",
                  shared, *safetensors_dtype(tensor.dtype),
                  counted(item_size(tensor.dtype), "byte"), to_string(tensor.shape), shared);
    tensor.shape.back() /= shared;
  }

  Range range(const Value& offsets) const {
    const auto is_offset = [](const Value& value) { return value.is_int() && value.as_int() >= 0; };
    if (!offsets.is_list() || offsets.size() != 2 || !is_offset(offsets.items()[0]) ||
        !is_offset(offsets.items()[1]))
      fail("'data_offsets' are not two positions in the file");
    return {static_cast<std::uint64_t>(offsets.items()[0].as_int()),
            static_cast<std::uint64_t>(offsets.items()[1].as_int())};
  }

  DType dtype(const Value& name) const {
    if (!name.is_str()) fail("'dtype' is not a string");
    for (const auto& [dtype, type] : kTypes) {
      if (name.as_str() == type) return dtype;
    }
    throw_error(ErrorCode::kUnsupported, {.file = file_},
                "the tensor has the element type {}, which is not known", quote(name.as_str()));
  }

  Shape shape(const Value& list) const {
    if (!list.is_list()) fail("'shape' is not a list of extents");
    if (list.size() > kMaxDims)
      fail(str_format("'shape' has {} axes; the limit is {}", list.size(), kMaxDims));
    Shape shape;
    for (const Value& extent : list.items()) {
      if (!extent.is_int() || extent.as_int() < 0)
        fail("'shape' has an entry that is not an extent");
      shape.push_back(extent.as_int());
    }
    return shape;
  }

  std::uint64_t data_bytes_;
  const std::string& file_;
  SafetensorsHeader header_;
  std::vector<std::uint64_t> begins_;  // beginnings of the tensors' bytes, parallel to the tensors
};

std::uint64_t read_length(const ReadableFile& file) {
  Bytes length(kSafetensorsLengthBytes);
  file.read(0, length);
  return load_le<std::uint64_t>(length, 0);
}

std::string json_string(const std::string& text) {
  return to_json(Value(text));
}

}  // namespace

const std::string* SafetensorsHeader::find_metadata(std::string_view name) const noexcept {
  const auto found =
      std::ranges::find(metadata, name, [](const auto& entry) { return entry.first; });
  return found == metadata.end() ? nullptr : &found->second;
}

SafetensorsHeader parse_safetensors_header(ByteView json, std::uint64_t data_bytes,
                                           const std::string& file) {
  return HeaderParser(data_bytes, file).parse(json);
}

SafetensorsLayout read_safetensors_header(const ReadableFile& file) {
  const auto fail = [&](const std::string& message) {
    throw_error(ErrorCode::kCorrupt, {.file = file.name()}, message);
  };
  if (file.size() < kSafetensorsLengthBytes)
    fail(str_format("a safetensors file starts with 8 bytes, but this one has {}", file.size()));
  const std::uint64_t length = read_length(file);
  if (length > kMaxSafetensorsHeader) {
    fail(str_format("the header should have {} bytes, more than the {} of any safetensors file",
                    grouped(length), grouped(kMaxSafetensorsHeader)));
  }
  if (!range_fits(kSafetensorsLengthBytes, length, file.size())) {
    fail(
        str_format("the header should have {} bytes, but the file has only {}: it is truncated, "
                   "or no safetensors file",
                   grouped(length), grouped(file.size())));
  }
  Bytes json(length);
  file.read(kSafetensorsLengthBytes, json);
  const std::uint64_t begin = kSafetensorsLengthBytes + length;
  return {parse_safetensors_header(json, file.size() - begin, file.name()), begin};
}

Bytes write_safetensors_header(const SafetensorsHeader& header) {
  const auto refuse = [](const std::string& message, const std::string& key) {
    throw_error(ErrorCode::kUnsupported, {.key = key}, message);
  };
  std::string json = "{";
  const auto separate = [&] { json += json.size() == 1 ? "" : ","; };
  if (!header.metadata.empty()) {
    json += str_format("{}:{{", json_string(kMetadataName));
    for (const auto& [name, value] : header.metadata)
      json += str_format("{}{}:{}", json.back() == '{' ? "" : ",", json_string(name),
                         json_string(value));
    json += '}';
  }
  std::uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.key == kMetadataName || !is_utf8(tensor.key))
      refuse("safetensors files cannot hold a tensor of this name", tensor.key);
    const std::optional<std::string_view> type = safetensors_dtype(tensor.dtype);
    const std::int64_t shared = packed_values(tensor.dtype);
    if (!type || (shared > 1 && tensor.shape.empty())) {
      refuse(str_format("safetensors files cannot hold {}; leave the tensor out, or write another "
                        "format",
                        to_string(tensor.dtype)),
             tensor.key);
    }
    separate();
    json += str_format("{}:{{\"dtype\":\"{}\",\"shape\":[", json_string(tensor.key), *type);
    Shape listed = tensor.shape;
    if (shared > 1) listed.back() *= shared;
    for (const std::int64_t extent : listed)
      json += str_format("{}{}", json.back() == '[' ? "" : ",", extent);
    const std::uint64_t end = offset + tensor.nbytes();
    json += str_format("],\"data_offsets\":[{},{}]}}", offset, end);
    offset = end;
    if (json.size() > kMaxSafetensorsHeader - 8) {
      refuse(str_format("the tensors of one safetensors file take more than the {} bytes that its "
                        "header may have; write smaller files",
                        grouped(kMaxSafetensorsHeader)),
             tensor.key);
    }
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  Bytes bytes;
  bytes.reserve(kSafetensorsLengthBytes + json.size());
  append_le<std::uint64_t>(bytes, json.size());
  const ByteView text = as_bytes(json);
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

std::optional<std::string_view> safetensors_dtype(DType dtype) noexcept {
  const std::size_t place = order_of(dtype);
  if (place == kTypes.size()) return std::nullopt;
  return kTypes[place].second;
}

bool precedes_in_safetensors(const SafetensorsTensor& a, const SafetensorsTensor& b) noexcept {
  const std::size_t left = order_of(a.dtype);
  const std::size_t right = order_of(b.dtype);
  return left != right ? left > right : a.key < b.key;
}

bool looks_like_safetensors(const ReadableFile& file) {
  if (file.size() <= kSafetensorsLengthBytes) return false;
  Bytes start(kSafetensorsLengthBytes + 1);
  file.read(0, start);
  return load_le<std::uint64_t>(start, 0) <= file.size() - kSafetensorsLengthBytes &&
         as_text(start).back() == '{';
}

bool is_reserved(std::string_view name) noexcept {
  return name == kSafetensorsFramework || name.starts_with("DCP_");
}

}  // namespace dckpt
