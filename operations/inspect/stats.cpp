#include "operations/inspect/stats.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include "dist_checkpointing/ranks/shared_work.h"
#include "dist_checkpointing/verify/still_files.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/geometry/cast.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/planning/load/read_plan.h"
#include "migration/optimizer/optimizer_buckets.h"
#include "operations/inspect/layer_names.h"
#include "operations/inspect/stream.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMostPiece = std::uint64_t{8} << 20;  // a longer one is hardly read faster

/// A part of a tensor, of one layer if the tensor holds several.
struct Piece {
  std::uint32_t tensor = 0;  ///< in the metadata
  std::size_t row = 0;       ///< in the report
  std::optional<std::uint64_t> layer{};
  Box box;
  std::optional<ElementStats> stats{};
};

/// The statistics of the pieces that are read together, on the way between ranks. Pieces that
/// cannot be read have none.
using PieceStats = std::vector<std::optional<ElementStats>>;

/// Each adds what is wrong with the values.
void find_special(StatsReport& report);
void find_negative_moments(StatsReport& report);
void find_steps(const CheckpointReader& reader, const KeyFilter& keys, StatsReport& report);

/// Returns whether a tensor is one of the weights, whose statistics can be put together.
bool is_weight(const TensorStorageMetadata& tensor) {
  return can_cast(tensor.properties.dtype, DType::kFloat32) && !is_optimizer_key(tensor.key);
}

class StatsReader {
 public:
  StatsReader(const CheckpointReader& reader, const StatsOptions& options, Communicator& comm)
      : reader_(reader),
        metadata_(reader.metadata()),
        options_(options),
        limit_(std::clamp<std::uint64_t>(options.memory, 1, kMostPiece)),
        work_(comm, "reading the elements",
              static_cast<int>(
                  std::min<std::uint64_t>(static_cast<std::uint64_t>(std::max(options.threads, 1)),
                                          std::max<std::uint64_t>(options.memory / limit_, 1))),
              options.progress),
        still_(reader) {}

  StatsReport run() {
    work_.on_all_ranks([&] { choose(); });
    read();
    work_.on_all_ranks([&] {
      collect();
      find_special(report_);
      find_negative_moments(report_);
      read_past_damage([&] { find_steps(reader_, options_.keys, report_); });
      still_.require_unchanged();
    });
    return std::move(report_);
  }

 private:
  /// Lists the tensors and their pieces.
  void choose() {
    options_.keys.check({&metadata_});
    find_stacks();
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata_.tensors[i];
      if (!options_.keys(tensor.key)) continue;
      report_.tensors.push_back({tensor.key, tensor.properties.dtype, tensor.global_shape()});
      if (!has_stats(tensor.properties.dtype)) continue;
      if (!read_past_damage([&] { require_covered(tensor); })) continue;
      report_.tensors.back().elements.emplace();
      add_pieces(static_cast<std::uint32_t>(i));
    }
  }

  /// Finds the stacks whose layers are the first axis of their tensors: all have the same extent.
  void find_stacks() {
    for (const TensorStorageMetadata& tensor : metadata_.tensors) {
      const std::optional<std::string> stack = stack_of(tensor.key);
      if (!stack || !is_weight(tensor)) continue;
      const Shape& shape = tensor.global_shape();
      const std::int64_t extent = shape.empty() ? 0 : shape[0];
      const auto [found, added] = stacks_.emplace(*stack, extent);
      if (!added && found->second != extent) found->second = 0;
    }
  }

  bool holds_layers(const TensorStorageMetadata& tensor) const {
    const std::optional<std::string> stack = stack_of(tensor.key);
    const auto found = stack ? stacks_.find(*stack) : stacks_.end();
    return found != stacks_.end() && found->second > 0 && is_weight(tensor);
  }

  void add_pieces(std::uint32_t index) {
    const TensorStorageMetadata& tensor = metadata_.tensors[index];
    if (tensor.flattened_shape) return add_pieces(index, whole(tensor.global_shape()));
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) add_pieces(index, tensor.chunks[i]);
  }

  void add_pieces(std::uint32_t index, const Box& chunk) {
    const TensorStorageMetadata& tensor = metadata_.tensors[index];
    const bool by_layer = holds_layers(tensor);
    const std::int64_t layers = by_layer ? chunk.sizes[0] : 1;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      Box part = chunk;
      if (by_layer) {
        part.offsets[0] += layer;
        part.sizes[0] = 1;
      }
      PieceWalker walker(part.sizes, item_size(tensor.properties.dtype), limit_);
      while (std::optional<Box> box = walker.next()) {
        for (std::size_t axis = 0; axis < box->dims(); ++axis)
          box->offsets[axis] += part.offsets[axis];
        Piece& piece = pieces_.emplace_back();
        piece.tensor = index;
        piece.row = report_.tensors.size() - 1;
        if (by_layer) piece.layer = static_cast<std::uint64_t>(part.offsets[0]);
        piece.box = std::move(*box);
      }
    }
  }

  std::uint64_t bytes_of(const Piece& piece) const {
    return static_cast<std::uint64_t>(numel(piece.box.sizes)) *
           item_size(metadata_.tensors[piece.tensor].properties.dtype);
  }

  /// Reads consecutive pieces together, as many as fit into the memory of a thread.
  void read() {
    std::vector<std::span<Piece>> jobs;
    std::vector<std::uint64_t> sizes;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const std::uint64_t bytes = bytes_of(pieces_[i]);
      if (sizes.empty() || sizes.back() + bytes > limit_) {
        begin = i;
        jobs.emplace_back();
        sizes.push_back(0);
      }
      jobs.back() = std::span(pieces_).subspan(begin, i + 1 - begin);
      sizes.back() += bytes;
    }
    const auto found = work_.share<PieceStats>(sizes, [&](std::size_t job) {
      PieceStats stats = read_readable(jobs[job], sizes[job]);
      work_.add(sizes[job]);
      return stats;
    });
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      for (std::size_t i = 0; i < jobs[job].size(); ++i) jobs[job][i].stats = found[job].at(i);
    }
  }

  /// Returns false if `read` fails and the options let the rest go on.
  bool read_past_damage(const std::function<void()>& read) const {
    try {
      read();
      return true;
    } catch (const CheckpointError& error) {
      if (!options_.past_damage || error.code() == ErrorCode::kCancelled ||
          error.code() == ErrorCode::kInternal)
        throw;
      return false;
    }
  }

  PieceStats read_readable(std::span<const Piece> pieces, std::uint64_t bytes) {
    PieceStats stats;
    if (read_past_damage([&] { stats = read_job(pieces, bytes); })) return stats;
    if (pieces.size() == 1) return {std::nullopt};
    for (const Piece& piece : pieces)
      stats.push_back(read_readable({&piece, 1}, bytes_of(piece)).front());
    return stats;
  }

  PieceStats read_job(std::span<const Piece> pieces, std::uint64_t bytes) {
    Bytes buffer = take_buffer();
    if (buffer.size() < bytes) buffer.resize(bytes);
    std::vector<WantedShard> wanted;
    std::vector<Tensor> tensors;
    std::byte* at = buffer.data();
    for (const Piece& piece : pieces) {
      wanted.push_back({.tensor = piece.tensor,
                        .destination = static_cast<std::uint32_t>(tensors.size()),
                        .box = piece.box});
      tensors.emplace_back(metadata_.tensors[piece.tensor].properties.dtype, piece.box.sizes,
                           row_major_strides(piece.box.sizes), at, nullptr);
      at += bytes_of(piece);
    }
    read_tensors(reader_, plan_reads(metadata_, wanted), tensors,
                 {.threads = 1, .engine = ReadEngine::kAuto, .staging = limit_});
    PieceStats stats;
    for (const Tensor& tensor : tensors)
      add_elements(stats.emplace_back().emplace(), tensor.dtype(), tensor.data(),
                   static_cast<std::size_t>(tensor.numel()));
    const std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
    return stats;
  }

  Bytes take_buffer() {
    const std::lock_guard lock(mutex_);
    if (buffers_.empty()) return {};
    Bytes buffer = std::move(buffers_.back());
    buffers_.pop_back();
    return buffer;
  }

  /// Puts the pieces together in their order.
  void collect() {
    std::map<std::pair<std::string, std::uint64_t>, ElementStats> layers;
    for (const Piece& piece : pieces_)
      if (!piece.stats) report_.tensors[piece.row].elements.reset();
    for (const Piece& piece : pieces_) {
      const TensorStorageMetadata& tensor = metadata_.tensors[piece.tensor];
      std::optional<ElementStats>& elements = report_.tensors[piece.row].elements;
      if (!elements) continue;
      elements->merge(*piece.stats);
      if (!is_weight(tensor)) continue;
      report_.weights.merge(*piece.stats);
      if (piece.layer)
        layers[{*stack_of(tensor.key), *piece.layer}].merge(*piece.stats);
      else if (const std::optional<LayerName> name = layer_of(tensor.key))
        layers[{name->stack, name->number}].merge(*piece.stats);
    }
    for (const TensorStats& tensor : report_.tensors)
      if (!tensor.elements && has_stats(tensor.dtype)) report_.unreadable.push_back(tensor.key);
    for (const auto& [name, stats] : layers)
      report_.layers.push_back({name.first, name.second, stats});
  }

  const CheckpointReader& reader_;
  const Metadata& metadata_;
  const StatsOptions& options_;
  const std::uint64_t limit_;
  std::map<std::string, std::int64_t> stacks_;  // extent of their first axis, 0 if they differ
  std::vector<Piece> pieces_;
  std::mutex mutex_;
  std::vector<Bytes> buffers_;  // of ended jobs: touching fresh memory costs more than reading
  SharedWork work_;
  const StillFiles still_;
  StatsReport report_;
};

/// Finds elements that are not finite.
void find_special(StatsReport& report) {
  std::uint64_t nan = 0, infinite = 0;
  std::vector<std::string> keys;
  for (const TensorStats& tensor : report.tensors) {
    if (!tensor.elements || tensor.elements->finite() == tensor.elements->count ||
        is_bucket_key(tensor.key))
      continue;
    nan += tensor.elements->nan;
    infinite += tensor.elements->infinite;
    keys.push_back(tensor.key);
  }
  if (keys.empty()) return;
  report.findings.push_back(
      {FindingCode::kNotFinite,
       str_format("{} NaN and {} infinite, in {}", counted(nan, "element is", "elements are"),
                  grouped(infinite), quoted_list(keys)),
       keys});
}

/// Returns whether a key ends with this name, or names such state of Megatron's optimizers.
bool is_state(const std::string& key, std::string_view name) {
  return parse_optimizer_state_key(key).name == name ||
         (is_optimizer_key(key) && key.ends_with("." + std::string(name)));
}

bool is_second_moment(const std::string& key) {
  return is_state(key, "exp_avg_sq") || is_state(key, "max_exp_avg_sq");
}

/// Finds second moments below zero, which are averages of squares.
void find_negative_moments(StatsReport& report) {
  std::vector<std::string> keys;
  for (const TensorStats& tensor : report.tensors) {
    if (tensor.elements && tensor.elements->min < 0 && !is_bucket_key(tensor.key) &&
        is_second_moment(tensor.key))
      keys.push_back(tensor.key);
  }
  if (keys.empty()) return;
  report.findings.push_back(
      {FindingCode::kStateImpossible,
       str_format("{} elements below zero, although an average of squares has none: {}",
                  counted(keys.size(), "second moment has", "second moments have"),
                  quoted_list(keys)),
       keys});
}

using Steps = std::map<double, std::vector<std::string>>;  // where each step is

/// Adds the steps of the optimizer's groups of parameters.
void add_steps(const Value& value, const std::string& path, int depth, Steps& steps) {
  constexpr int kDeepest = 6;
  if (depth > kDeepest) return;
  if (value.is_list()) {
    for (std::size_t i = 0; i < value.items().size(); ++i)
      add_steps(value.items()[i], path + "[" + std::to_string(i) + "]", depth + 1, steps);
  } else if (value.is_dict()) {
    for (const auto& [key, entry] : value.as_dict()) {
      if (!key.is_str()) continue;
      const std::string inner = path.empty() ? key.as_str() : path + "." + key.as_str();
      if (key.as_str() == "step" && entry.is_int() && path.find("param_groups") != path.npos)
        steps[static_cast<double>(entry.as_int())].push_back(inner);
      else
        add_steps(entry, inner, depth + 1, steps);
    }
  }
}

/// Finds steps that differ, as after parts of two saves were mixed.
void find_steps(const CheckpointReader& reader, const KeyFilter& keys, StatsReport& report) {
  Steps steps;
  for (const TensorStats& tensor : report.tensors) {
    if (!tensor.elements || tensor.elements->finite() == 0 || !is_state(tensor.key, "step"))
      continue;
    steps[tensor.elements->min].push_back(tensor.key);
    if (tensor.elements->max != tensor.elements->min)
      steps[tensor.elements->max].push_back(tensor.key);
  }
  if (keys.include.empty() && keys.exclude.empty()) add_steps(reader.common_state(), "", 0, steps);
  if (steps.size() < 2) return;
  const auto& [first, at_first] = *steps.begin();
  const auto& [last, at_last] = *steps.rbegin();
  report.findings.push_back(
      {.code = FindingCode::kStateImpossible,
       .message = str_format("the optimizer's steps differ: {} in {}, {} in {}", first,
                             quoted_list(at_first, 3), last, quoted_list(at_last, 3)),
       .keys = {},
       .severity = Severity::kWarning});
}

}  // namespace

StatsReport stats(const CheckpointReader& reader, const StatsOptions& options) {
  return stats(reader, options, *single_rank());
}

StatsReport stats(const CheckpointReader& reader, const StatsOptions& options,
                  Communicator& comm) try {
  return StatsReader(reader, options, comm).run();
} catch (...) {
  throw_checkpoint_error();
}

std::vector<TensorStats> outliers_first(std::vector<TensorStats> tensors) {
  std::ranges::stable_sort(tensors, std::greater<>(), [](const TensorStats& tensor) {
    const ElementStats stats = tensor.elements.value_or(ElementStats());
    return std::tuple(stats.count - stats.finite(), !is_second_moment(tensor.key),
                      stats.furthest());
  });
  return tensors;
}

}  // namespace dckpt
