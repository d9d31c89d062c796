#include "raw_index.h"

namespace raw {
namespace {

constexpr const char* kMagic = "dckpt raw 1";

void write_shape(dckpt::WireWriter& writer, dckpt::ShapeView shape) {
  writer.number(shape.size());
  for (const std::int64_t extent : shape) writer.number(static_cast<std::uint64_t>(extent));
}

void write_place(dckpt::WireWriter& writer, const dckpt::StorageInfo& place) {
  writer.number(place.file);
  writer.number(place.offset);
  writer.number(place.length);
}

class Decoder {
 public:
  Decoder(dckpt::ByteView bytes, const std::string& name) : reader_(bytes, name) {}

  Index index() {
    if (reader_.text() != kMagic) reader_.malformed("it is not the index of a raw checkpoint");
    Index index;
    for (std::size_t count = reader_.count(); count > 0; --count)
      index.metadata.files.push_back(reader_.text());
    files_ = index.metadata.files.size();
    for (std::size_t count = reader_.count(); count > 0; --count)
      index.metadata.tensors.push_back(tensor());
    for (std::size_t count = reader_.count(); count > 0; --count) {
      std::string key = reader_.text();
      index.metadata.objects.push_back({std::move(key), place()});
    }
    index.common = dckpt::to_bytes(reader_.text());
    reader_.finish();
    return index;
  }

 private:
  dckpt::TensorStorageMetadata tensor() {
    dckpt::TensorStorageMetadata tensor;
    tensor.key = reader_.text();
    const auto dtype = dckpt::parse_dtype(reader_.text());
    if (!dtype) reader_.malformed("a tensor has an unknown element type");
    tensor.properties.dtype = *dtype;
    tensor.size = shape();
    if (!dckpt::checked_numel(tensor.size)) reader_.malformed("a tensor is too large");
    tensor.chunks = dckpt::BoxList(tensor.size.size());
    for (std::size_t count = reader_.count(); count > 0; --count) {
      const dckpt::Box box{shape(), shape()};
      if (box.offsets.size() != tensor.size.size() || box.sizes.size() != tensor.size.size() ||
          !dckpt::is_valid(box) || !dckpt::fits(box, tensor.size)) {
        reader_.malformed("a chunk does not lie inside its tensor");
      }
      tensor.chunks.push_back(box);
      tensor.places.push_back(place());
      if (tensor.places.back().length !=
          static_cast<std::uint64_t>(dckpt::numel(box.sizes)) * dckpt::item_size(*dtype)) {
        reader_.malformed("a chunk has another number of bytes than its elements");
      }
    }
    return tensor;
  }

  dckpt::Shape shape() {
    dckpt::Shape shape;
    for (std::uint64_t axes = reader_.number(dckpt::kMaxDims); axes > 0; --axes)
      shape.push_back(static_cast<std::int64_t>(reader_.number(INT64_MAX)));
    return shape;
  }

  dckpt::StorageInfo place() {
    dckpt::StorageInfo place;
    place.file = static_cast<std::uint32_t>(reader_.number(UINT32_MAX));
    if (place.file >= files_) reader_.malformed("it names a file that is not in its list");
    place.offset = reader_.number();
    place.length = reader_.number();
    return place;
  }

  dckpt::WireReader reader_;
  std::size_t files_ = 0;
};

}  // namespace

dckpt::Bytes encode(const dckpt::Metadata& metadata, const dckpt::CommonState* common) {
  dckpt::Bytes bytes;
  dckpt::WireWriter writer(bytes);
  writer.text(kMagic);
  writer.number(metadata.files.size());
  for (const std::string& file : metadata.files) writer.text(file);
  writer.number(metadata.tensors.size());
  for (const dckpt::TensorStorageMetadata& tensor : metadata.tensors) {
    writer.text(tensor.key);
    writer.text(dckpt::to_string(tensor.properties.dtype));
    write_shape(writer, tensor.size);
    writer.number(tensor.chunks.size());
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      write_shape(writer, tensor.chunks.offsets(i));
      write_shape(writer, tensor.chunks.sizes(i));
      write_place(writer, tensor.places[i]);
    }
  }
  writer.number(metadata.objects.size());
  for (const dckpt::BytesStorageMetadata& object : metadata.objects) {
    writer.text(object.key);
    write_place(writer, object.place);
  }
  const dckpt::Bytes pickled = common != nullptr ? common->archive() : dckpt::Bytes();
  writer.text(dckpt::as_text(pickled));
  return bytes;
}

Index decode(dckpt::ByteView bytes, const std::string& name) {
  return Decoder(bytes, name).index();
}

}  // namespace raw
