// A local plan on the wire: "DCP1", the number of strings and items, the strings (keys, each once), the items. Numbers are LEB128, offsets and
// sizes zigzag-free since they are never negative. A plan of 256 items is a few kilobytes.

#include <unordered_map>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/planning/save_plan.h"

namespace dckpt {
namespace {

constexpr std::string_view kMagic = "DCP1";

constexpr std::uint64_t kIsObject = 1;
constexpr std::uint64_t kRequiresGrad = 2;
constexpr std::uint64_t kPinned = 4;
constexpr std::uint64_t kFlattened = 8;

class Writer {
 public:
  explicit Writer(Bytes& out) : out_(out) {}
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<std::byte>(value | 0x80));
    out_.push_back(static_cast<std::byte>(value));
  }
  void text(std::string_view text) {
    number(text.size());
    const ByteView view = as_bytes(text);
    out_.insert(out_.end(), view.begin(), view.end());
  }
  void shape(ShapeView shape) {
    number(shape.size());
    for (const std::int64_t extent : shape) number(static_cast<std::uint64_t>(extent));
  }

 private:
  Bytes& out_;
};

[[noreturn]] void malformed(const char* what) { throw CheckpointError(ErrorCode::kCorrupt, std::string("a save plan from another rank is malformed: ") + what); }

class Reader {
 public:
  explicit Reader(ByteView bytes) : bytes_(bytes) {}
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) malformed("it ends too early");
      const auto byte = static_cast<std::uint64_t>(bytes_[at_++]);
      const std::uint64_t part = byte & 0x7F;
      if (shift == 63 && part > 1) malformed("a number is too large");
      value |= part << shift;
      if ((byte & 0x80) == 0) return value;
    }
    malformed("a number is too large");
  }
  std::int64_t signed_number() {
    const std::uint64_t value = number();
    if (value > static_cast<std::uint64_t>(INT64_MAX)) malformed("a number is too large");
    return static_cast<std::int64_t>(value);
  }
  /// A count of things that take at least one byte each.
  std::size_t count() {
    const std::uint64_t value = number();
    if (value > bytes_.size() - at_) malformed("a count is larger than the plan");
    return value;
  }
  std::string text() {
    const std::size_t length = count();
    const std::string_view view = as_text(bytes_.subspan(at_, length));
    at_ += length;
    return std::string(view);
  }
  Shape shape() {
    const std::size_t dims = count();
    if (dims > kMaxDims + 1) malformed("a tensor has too many axes");
    Shape shape(dims);
    for (std::int64_t& extent : shape) extent = signed_number();
    return shape;
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  ByteView bytes_;
  std::size_t at_ = 0;
};

void decode_tensor(Reader& reader, std::uint64_t flags, WriteItem& item) {
  const std::uint64_t dtype = reader.number();
  const std::uint64_t memory_format = reader.number();
  if (dtype > static_cast<std::uint64_t>(DType::kQInt32) || memory_format > 2) malformed("an unknown dtype or memory format");
  item.properties = {static_cast<DType>(dtype), (flags & kRequiresGrad) != 0, static_cast<TensorProperties::MemoryFormat>(memory_format), (flags & kPinned) != 0};
  item.source_begin = reader.signed_number();
  item.size = reader.shape();
  item.chunk.offsets = reader.shape();
  item.chunk.sizes = reader.shape();
  if (flags & kFlattened) item.flattened_shape = reader.shape();
  if (!checked_numel(item.size) || !fits(item.chunk, item.size)) malformed("a chunk lies outside its tensor");
  if (item.flattened_shape && !checked_numel(*item.flattened_shape)) malformed("an original shape is too large");
}

}  // namespace

Bytes encode_plan(const SavePlan& plan) {
  std::unordered_map<std::string_view, std::uint64_t> numbers;
  std::vector<std::string_view> keys;
  for (const WriteItem& item : plan) {
    if (numbers.try_emplace(item.key, keys.size()).second) keys.push_back(item.key);
  }
  Bytes out = to_bytes(kMagic);
  Writer writer(out);
  writer.number(keys.size());
  writer.number(plan.size());
  for (const std::string_view key : keys) writer.text(key);
  for (const WriteItem& item : plan) {
    const bool is_object = item.kind == WriteItem::Kind::kObject;
    writer.number((is_object ? kIsObject : 0U) | (item.properties.requires_grad ? kRequiresGrad : 0U) | (item.properties.pin_memory ? kPinned : 0U) |
                  (item.flattened_shape ? kFlattened : 0U));
    writer.number(numbers.at(item.key));
    writer.number(item.source);
    writer.number(item.nbytes);
    if (is_object) continue;
    writer.number(static_cast<std::uint64_t>(item.properties.dtype));
    writer.number(static_cast<std::uint64_t>(item.properties.memory_format));
    writer.number(static_cast<std::uint64_t>(item.source_begin));
    writer.shape(item.size);
    writer.shape(item.chunk.offsets);
    writer.shape(item.chunk.sizes);
    if (item.flattened_shape) writer.shape(*item.flattened_shape);
  }
  return out;
}

SavePlan decode_plan(ByteView bytes) {
  if (!as_text(bytes).starts_with(kMagic)) malformed("its first bytes are not 'DCP1'; all ranks must run the same version");
  Reader reader(bytes.subspan(kMagic.size()));
  const std::size_t key_count = reader.count();
  const std::size_t item_count = reader.count();
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < key_count; ++i) keys.push_back(reader.text());
  SavePlan plan;
  for (std::size_t i = 0; i < item_count; ++i) {
    WriteItem item;
    const std::uint64_t flags = reader.number();
    if (flags > (kIsObject | kRequiresGrad | kPinned | kFlattened)) malformed("unknown flags");
    const std::uint64_t key = reader.number();
    if (key >= keys.size()) malformed("a key number is out of range");
    item.key = keys[key];
    const std::uint64_t source = reader.number();
    if (source > UINT32_MAX) malformed("a source number is out of range");
    item.source = static_cast<std::uint32_t>(source);
    item.nbytes = reader.number();
    item.kind = (flags & kIsObject) ? WriteItem::Kind::kObject : WriteItem::Kind::kTensor;
    if (item.kind == WriteItem::Kind::kTensor) decode_tensor(reader, flags, item);
    plan.push_back(std::move(item));
  }
  if (!reader.at_end()) malformed("bytes follow the last item");
  return plan;
}

}  // namespace dckpt
