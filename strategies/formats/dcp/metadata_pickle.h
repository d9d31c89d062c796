#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/geometry/shape.h"
#include "mapping/planning/metadata.h"
#include "strategies/formats/dcp/metadata_graph.h"
#include "strategies/formats/pickle/writer.h"

namespace dckpt::dcp {

/// Emits objects as Python's pickler does: an object is NEWOBJ of its class and BUILD of its
/// attributes, and repeated texts, globals, equal sizes and properties are referred to.
class MetadataPickle : public pickle::PickleWriter {
 public:
  using Text = RepeatedText;
  using Global = RepeatedGlobal;
  using PickleWriter::tuple;

  MetadataPickle() : PickleWriter(4) {}

  void object(std::string_view module, std::string_view name) {
    Global type{module, name};
    object(type);
  }

  void object(Global& type) {
    global(type);
    empty_tuple();
    new_object();
  }

  /// Writes a dict whose items `write` pushes.
  template <typename Write>
  void dict(Write write) {
    empty_dict();
    mark();
    write();
    set_items();
  }

  template <typename Write>
  void list(Write write) {
    empty_list();
    mark();
    write();
    append_items();
  }

  template <typename Write>
  void attributes(Write write) {
    dict(write);
    build();
  }

  template <typename Write>
  void attribute(std::string_view name, Write write) {
    text(name);
    write();
  }

  template <typename Write>
  void attribute(Text& name, Write write) {
    text(name);
    write();
  }

  void tuple(ShapeView numbers) {
    if (numbers.empty()) return empty_tuple();
    if (numbers.size() > 3) mark();
    for (const std::int64_t number : numbers) integer(number);
    if (numbers.size() > 3) {
      tuple();
    } else {
      tuple(static_cast<int>(numbers.size()));
    }
  }

  Slot torch_size(ShapeView numbers) {
    global(torch_size_);
    tuple(numbers);
    tuple(1);
    reduce();
    return put();
  }

  /// Remembers sizes, which repeat, unlike offsets.
  void repeated_torch_size(ShapeView numbers) {
    if (last_size_ != sizes_.end() && equal(last_size_->first, numbers))
      return get(last_size_->second);
    const Shape key = Shape(numbers);
    last_size_ = sizes_.find(key);
    if (last_size_ != sizes_.end()) return get(last_size_->second);
    last_size_ = sizes_.emplace(key, torch_size(numbers)).first;
  }

  void properties(const TensorProperties& wanted) {
    object(kMetadataModule, "TensorProperties");
    const auto known = std::find_if(states_.begin(), states_.end(),
                                    [&](const auto& state) { return state.first == wanted; });
    if (known != states_.end()) {
      get(known->second);
    } else {
      mark();
      global("torch", to_string(wanted.dtype));
      global("torch.serialization", "_get_layout");
      text("torch.strided");
      tuple(1);
      reduce();
      boolean(wanted.requires_grad);
      global(kMetadataModule, "_MEM_FORMAT_ENCODING");
      integer(static_cast<std::int64_t>(wanted.memory_format));
      tuple(1);
      reduce();
      boolean(wanted.pin_memory);
      tuple();
      states_.emplace_back(wanted, put());
    }
    build();
  }

  void original_shape(const std::optional<Shape>& shape) {
    dict([&] {
      if (shape) attribute("nd_reformulated_orig_global_shape", [&] { tuple(*shape); });
    });
  }

  Global chunk_class{kMetadataModule, "ChunkStorageMetadata"};
  Global index_class{kMetadataModule, "MetadataIndex"};
  Text offsets_name{"offsets"}, sizes_name{"sizes"};
  Text fqn_name{"fqn"}, index_name{"index"}, offset_name{"offset"};

 private:
  struct Lexicographic {
    bool operator()(const Shape& a, const Shape& b) const {
      return std::ranges::lexicographical_compare(a, b);
    }
  };

  Global torch_size_{"torch", "Size"};
  std::map<Shape, Slot, Lexicographic> sizes_;
  std::map<Shape, Slot, Lexicographic>::iterator last_size_ = sizes_.end();
  std::vector<std::pair<TensorProperties, Slot>> states_;  // few kinds of properties
};

}  // namespace dckpt::dcp
