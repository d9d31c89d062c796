#include "operations/inspect/extract/tensor_file.h"

#include <optional>
#include <string>
#include <string_view>

#include "mapping/base/error.h"
#include "operations/inspect/stream.h"
#include "strategies/formats/safetensors/header.h"

namespace dckpt {
namespace {

std::optional<std::string_view> npy_type(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "|b1";
    case DType::kUInt8: return "|u1";
    case DType::kUInt16: return "<u2";
    case DType::kUInt32: return "<u4";
    case DType::kUInt64: return "<u8";
    case DType::kInt8: return "|i1";
    case DType::kInt16: return "<i2";
    case DType::kInt32: return "<i4";
    case DType::kInt64: return "<i8";
    case DType::kFloat16: return "<f2";
    case DType::kFloat32: return "<f4";
    case DType::kFloat64: return "<f8";
    case DType::kComplex64: return "<c8";
    case DType::kComplex128: return "<c16";
    default: return std::nullopt;
  }
}

[[noreturn]] void throw_no_type(DType dtype, const std::string& format, const std::string& advice) {
  throw_error(ErrorCode::kUnsupported, "{} files cannot hold {}{}", format, to_string(dtype),
              advice);
}

/// Returns magic, version 1.0, length of the header, then a Python dict padded with blanks so that
/// the elements start at a multiple of 64.
std::string npy_header(DType dtype, const Shape& shape) {
  const std::optional<std::string_view> type = npy_type(dtype);
  if (!type)
    throw_no_type(dtype, ".npy",
                  safetensors_dtype(dtype)
                      ? ": numpy has no such type; write a .safetensors file instead"
                      : "");
  constexpr std::size_t kPrefix = 10;
  std::string dict = str_format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", *type,
                                to_string(shape));
  dict.append(63 - (kPrefix + dict.size()) % 64, ' ');
  dict += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

std::string safetensors_header(const std::string& key, DType dtype, const Shape& shape) {
  if (!safetensors_dtype(dtype))
    throw_no_type(dtype, ".safetensors", npy_type(dtype) ? "; write a .npy file instead" : "");
  return std::string(
      as_text(write_safetensors_header({.tensors = {{key, dtype, shape}}, .metadata = {}})));
}

}  // namespace

void write_tensor_file(const CheckpointReader& reader, std::size_t tensor, TensorFileFormat format,
                       const std::function<void(ByteView)>& sink,
                       const TensorFileOptions& options) {
  const TensorStorageMetadata& metadata = reader.metadata().tensors[tensor];
  with_context({.key = metadata.key}, [&] {
    const DType dtype = metadata.properties.dtype;
    const std::string header =
        format == TensorFileFormat::kNpy
            ? npy_header(dtype, metadata.global_shape())
            : safetensors_header(metadata.key, dtype, metadata.global_shape());
    TensorStream pieces(reader, tensor, {.piece = options.memory, .threads = options.threads});
    ProgressCounter progress(options.progress, metadata.nbytes());
    sink(as_bytes(header));
    while (const std::optional<Tensor> piece = pieces.next()) {
      sink(piece->bytes());
      progress.add(piece->nbytes());
    }
  });
}

}  // namespace dckpt
