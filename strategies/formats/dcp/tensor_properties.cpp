#include "strategies/formats/dcp/tensor_properties.h"

#include <algorithm>
#include <optional>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"

namespace dckpt::dcp {
namespace {

using Id = MetadataGraph::Id;
using Kind = MetadataGraph::Kind;

DType read_dtype(const MetadataGraph& graph, Id id) {
  const GlobalName name = graph.global(id);
  if (name.module != "torch" || name.name.find('.') != std::string_view::npos) {
    throw_error(ErrorCode::kCorrupt, "the dtype of the tensor is {} (expected: a dtype of torch)",
                graph.describe(id));
  }
  if (const auto dtype = parse_dtype(name.name); dtype && is_torch_dtype(*dtype)) return *dtype;
  throw_error(ErrorCode::kUnsupported, "the tensor has dtype {}, which this version does not know",
              quote("torch." + std::string(name.name)));
}

void check_layout(const MetadataGraph& graph, Id id) {
  if (graph.is_none(id) || graph.global(id).is("torch", "strided")) return;
  if (!graph.called(id).is("torch.serialization", "_get_layout") ||
      graph.arguments(id).size() != 1) {
    throw_error(ErrorCode::kCorrupt, "the layout of the tensor is {} (expected: a layout of torch)",
                graph.describe(id));
  }
  const std::string_view name = graph.text(graph.arguments(id)[0], "the layout of the tensor");
  if (name != "torch.strided")
    throw_error(ErrorCode::kUnsupported, "the tensor has layout {}; only torch.strided can be read",
                quote(name));
}

/// Reads an enum by value (`E(0)`), by name (`getattr(E, 'TORCH_…')`, Python 3.11.0 to 3.11.3), or
/// the memory format of torch itself.
TensorProperties::MemoryFormat read_memory_format(const MetadataGraph& graph, Id id) {
  static constexpr std::string_view kNames[] = {"TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST",
                                                "TORCH_PRESERVE_FORMAT"};
  static constexpr std::string_view kFormats[] = {"contiguous_format", "channels_last",
                                                  "preserve_format"};
  const auto is_enum = [](const GlobalName& name) {
    return name.is(kMetadataModule, "_MEM_FORMAT_ENCODING") ||
           name.is("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING");
  };
  const GlobalName function = graph.called(id);
  std::size_t found = std::size(kNames);
  if (const GlobalName format = graph.global(id); format.module == "torch") {
    found = static_cast<std::size_t>(
        std::find(std::begin(kFormats), std::end(kFormats), format.name) - std::begin(kFormats));
  } else if (is_enum(function) && graph.arguments(id).size() == 1) {
    found = static_cast<std::size_t>(graph.count(graph.arguments(id)[0], "the memory format"));
  } else if (function.is("builtins", "getattr") && graph.arguments(id).size() == 2 &&
             is_enum(graph.global(graph.arguments(id)[0]))) {
    const std::string_view name = graph.text(graph.arguments(id)[1], "the memory format");
    found = static_cast<std::size_t>(std::find(std::begin(kNames), std::end(kNames), name) -
                                     std::begin(kNames));
  }
  if (found >= std::size(kNames))
    throw_error(
        ErrorCode::kCorrupt,
        "the memory format of the tensor is {} (expected: a member of _MEM_FORMAT_ENCODING)",
        graph.describe(id));
  return static_cast<TensorProperties::MemoryFormat>(found);
}

}  // namespace

TensorProperties read_properties(const MetadataGraph& graph, Id id) {
  const GlobalName type = graph.class_of(id);
  // Up to torch 2.2 the class belonged to the module of sharded tensors.
  if (!type.is(kMetadataModule, "TensorProperties") &&
      !type.is("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties")) {
    throw_error(ErrorCode::kCorrupt,
                "the properties of the tensor are {} (expected: TensorProperties)",
                graph.describe(id));
  }
  const Id state = graph.state(id);
  Id parts[5];  // dtype, layout, requires_grad, memory format, pin_memory
  if (state != MetadataGraph::kAbsent && graph.kind(state) == Kind::kTuple) {
    const auto members = graph.list_or_tuple(state, "the state");
    if (members.size() < std::size(parts))
      throw_error(ErrorCode::kCorrupt, "TensorProperties has {} (expected: at least 5)",
                  counted(members.size(), "field"));
    std::copy_n(members.begin(), std::size(parts),
                parts);  // torch 2.15 adds the strides of the tensor in memory
  } else {
    const auto fields = graph.attributes(id);
    static constexpr std::string_view kNames[] = {"dtype", "layout", "requires_grad",
                                                  "memory_format", "pin_memory"};
    std::transform(std::begin(kNames), std::end(kNames), parts,
                   [&](std::string_view name) { return graph.find(fields, name); });
  }
  TensorProperties properties;
  properties.dtype = read_dtype(graph, parts[0]);
  check_layout(graph, parts[1]);
  if (!graph.is_none(parts[2])) properties.requires_grad = graph.boolean(parts[2], "requires_grad");
  if (!graph.is_none(parts[3])) properties.memory_format = read_memory_format(graph, parts[3]);
  if (!graph.is_none(parts[4])) properties.pin_memory = graph.boolean(parts[4], "pin_memory");
  return properties;
}

}  // namespace dckpt::dcp
