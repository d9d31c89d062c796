#include "benchmarks/workloads.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <tuple>

#include "mapping/state/sharded_tensor.h"

namespace dckpt::bench {
namespace {

constexpr std::int64_t kPeriod = 251;
constexpr std::size_t kPatternLength = std::size_t{1} << 16;
constexpr std::array kOptimizerStates{"exp_avg", "exp_avg_sq", "fp32_param"};

/// Returns consecutive elements of every tensor, starting with the value 0, and one period longer
/// than kPatternLength, so that any phase can be copied from it.
std::vector<std::byte> make_pattern(std::size_t size) {
  std::vector<std::byte> elements((kPatternLength + kPeriod) * size);
  for (std::size_t i = 0; i < kPatternLength + kPeriod; ++i) {
    const auto value = static_cast<float>(i % kPeriod);
    // The upper half of a float is a bfloat16, exactly in this case: seven bits of mantissa are
    // enough.
    std::memcpy(elements.data() + i * size,
                reinterpret_cast<const std::byte*>(&value) + sizeof value - size, size);
  }
  return elements;
}

const std::vector<std::byte>& pattern(DType dtype) {
  static const std::vector<std::byte> narrow = make_pattern(2);
  static const std::vector<std::byte> wide = make_pattern(4);
  return dtype == DType::kBFloat16 ? narrow : wide;
}

/// Calls `visit(destination, source, bytes)` for the runs of `count` elements from row-major
/// position `begin` of the tensor.
template <typename Visit>
void for_pattern(const TensorSpec& spec, std::int64_t begin, std::int64_t count,
                 std::byte* destination, Visit&& visit) {
  const std::size_t size = item_size(spec.dtype);
  while (count > 0) {
    const std::int64_t run = std::min<std::int64_t>(count, kPatternLength);
    visit(destination,
          pattern(spec.dtype).data() +
              static_cast<std::size_t>((begin + spec.ordinal) % kPeriod) * size,
          static_cast<std::size_t>(run) * size);
    destination += static_cast<std::size_t>(run) * size;
    begin += run;
    count -= run;
  }
}

/// Does the same for a box of whole rows or of a part of each row of a matrix, or a whole vector.
template <typename Visit>
void for_box(const TensorSpec& spec, const Box& box, std::byte* data, Visit&& visit) {
  const std::int64_t columns = numel(ShapeView(spec.shape).subspan(1));
  if (box.dims() == 1 || box.sizes[1] == columns)
    return for_pattern(spec, box.offsets[0] * columns, box.sizes[0] * columns, data, visit);
  for (std::int64_t row = 0; row < box.sizes[0]; ++row) {
    for_pattern(spec, (box.offsets[0] + row) * columns + box.offsets[1], box.sizes[1],
                data + static_cast<std::size_t>(row * box.sizes[1]) * item_size(spec.dtype), visit);
  }
}

/// Does the same for a box, or a range of the row-major elements of a whole tensor.
template <typename Visit>
void for_part(const TensorSpec& spec, const Box& box, const std::optional<FlattenedRange>& range,
              std::byte* data, Visit&& visit) {
  if (range) return for_pattern(spec, range->begin, range->end - range->begin, data, visit);
  for_box(spec, box, data, visit);
}

/// A rank's part of a tensor: piece `index` of `count` along `axis`.
struct Piece {
  std::optional<std::size_t> axis;
  std::int64_t index;
  std::int64_t count;
  ReplicaId replica;

  std::vector<RankOffset> offsets() const {
    if (!axis) return {};
    return {{.axis = static_cast<std::int64_t>(*axis), .rank = index, .count = count}};
  }
  Box box(const TensorSpec& spec) const {
    Box box = whole(spec.shape);
    if (axis) {
      box.sizes[*axis] /= count;
      box.offsets[*axis] = index * box.sizes[*axis];
    }
    return box;
  }
};

Piece piece_of(const Workload& workload, const TensorSpec& spec, std::optional<std::size_t> axis,
               int rank, int ranks) {
  if (workload.tensor_parallel == 0) return {axis, rank, ranks, {}};
  const std::int64_t piece = rank % workload.tensor_parallel;
  const std::int64_t replica = rank / workload.tensor_parallel;
  return {spec.tp_axis, piece, workload.tensor_parallel, {0, spec.tp_axis ? 0 : piece, replica}};
}

std::vector<TensorSpec> equal_tensors(int count, Shape shape) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < count; ++i)
    tensors.push_back(
        {.key = "layers." + std::to_string(i) + ".weight", .shape = shape, .ordinal = i});
  return tensors;
}

/// Returns tensors of 4 to 64 KiB in mixed order of size.
std::vector<TensorSpec> small_tensors(int count) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < count; ++i) {
    const std::int64_t kib = 4 + (37 * i) % 61;
    tensors.push_back(
        {.key = "experts." + std::to_string(i) + ".weight", .shape = {8 * kib, 64}, .ordinal = i});
  }
  return tensors;
}

/// Returns a small GPT in bfloat16 and its optimizer state in float32, as Megatron cuts it.
std::vector<TensorSpec> gpt_tensors(int layers) {
  std::vector<TensorSpec> params;
  const auto add = [&](const std::string& name, const Shape& shape,
                       std::optional<std::size_t> axis) {
    params.push_back({.key = name, .shape = shape, .tp_axis = axis});
  };
  add("embedding.word_embeddings.weight", {16384, 1024}, 0);
  const std::tuple<const char*, Shape, std::optional<std::size_t>> of_layers[] = {
      {"self_attention.linear_qkv.weight", {3072, 1024}, 0},
      {"self_attention.linear_proj.weight", {1024, 1024}, 1},
      {"mlp.linear_fc1.weight", {4096, 1024}, 0},
      {"mlp.linear_fc2.weight", {1024, 4096}, 1},
      {"input_layernorm.weight", {1024}, std::nullopt},
      {"pre_mlp_layernorm.weight", {1024}, std::nullopt}};
  for (int layer = 0; layer < layers; ++layer) {
    for (const auto& [name, shape, axis] : of_layers)
      add("decoder.layers." + std::to_string(layer) + "." + name, shape, axis);
  }
  add("decoder.final_layernorm.weight", {1024}, std::nullopt);
  std::vector<TensorSpec> tensors;
  const auto store = [&](TensorSpec spec, const std::string& prefix, DType dtype) {
    spec.key = prefix + spec.key;
    spec.dtype = dtype;
    spec.ordinal = static_cast<std::int64_t>(tensors.size());
    tensors.push_back(std::move(spec));
  };
  for (const TensorSpec& param : params) {
    store(param, "model.", DType::kBFloat16);
    for (const char* const state : {"fp32_param", "exp_avg", "exp_avg_sq"})
      store(param, std::string("optimizer.state.") + state + ".", DType::kFloat32);
  }
  return tensors;
}

/// Returns the optimizer state of a small GPT as a distributed optimizer keeps it.
std::vector<TensorSpec> optimizer_tensors(int layers) {
  const std::pair<const char*, Shape> of_layers[] = {
      {"self_attention.linear_qkv.weight", {3072, 1024}},
      {"self_attention.linear_proj.weight", {1024, 1024}},
      {"mlp.linear_fc1.weight", {4096, 1024}},
      {"mlp.linear_fc2.weight", {1024, 4096}},
      {"input_layernorm.weight", {1024}},
      {"pre_mlp_layernorm.weight", {1024}}};
  std::vector<TensorSpec> tensors;
  for (const char* const state : kOptimizerStates) {
    for (int layer = 0; layer < layers; ++layer) {
      for (const auto& [name, shape] : of_layers)
        tensors.push_back({.key = std::string("optimizer.state.") + state + ".decoder.layers." +
                                  std::to_string(layer) + "." + name,
                           .shape = shape,
                           .ordinal = static_cast<std::int64_t>(tensors.size()),
                           .dtype = DType::kFloat32});
    }
  }
  return tensors;
}

/// Returns a tensor in memory that this process shares with those that it forks.
Tensor shared_tensor(DType dtype, const Shape& shape) {
  const std::size_t bytes =
      std::max<std::size_t>(static_cast<std::size_t>(numel(shape)) * item_size(dtype), 1);
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw std::runtime_error("not enough memory for the benchmark's tensors");
  return {dtype, shape, row_major_strides(shape), memory,
          std::shared_ptr<const void>(
              memory, [bytes](const void* start) { ::munmap(const_cast<void*>(start), bytes); })};
}

}  // namespace

std::uint64_t Workload::nbytes() const noexcept {
  std::uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.nbytes();
  return total;
}

std::vector<Workload> workloads() {
  return {
      {.name = "io-2g",
       .about = "32 tensors of 64 MiB, one rank: the raw data path",
       .tensors = equal_tensors(32, {32768, 1024})},
      {.name = "io-many-small",
       .about = "20 000 tensors of 4 to 64 KiB, one rank: the cost per item",
       .tensors = small_tensors(20'000)},
      {.name = "reshard-dim0-to-dim1",
       .about = "four writers cut rows, four readers cut columns: every reader needs a part of "
                "every chunk",
       .writers = 4,
       .readers = 4,
       .save_axis = 0,
       .load_axis = 1,
       .tensors = equal_tensors(32, {8192, 4096})},
      {.name = "reshard-flattened",
       .about = "fragments of a distributed optimizer, from 4 data parallel ranks to 3",
       .writers = 4,
       .readers = 3,
       .flat_alignment = 128,
       .flat_states = kOptimizerStates.size(),
       .tensors = optimizer_tensors(8)},
      {.name = "gpt-mini-optimizer",
       .about = "a GPT-like model with its optimizer state, 2 tensor parallel ranks and 2 replicas "
                "of each, who share the work",
       .writers = 4,
       .readers = 4,
       .tensor_parallel = 2,
       .tensors = gpt_tensors(5)},
  };
}

RankState::RankState(const Workload& workload, std::optional<std::size_t> axis, int rank, int ranks,
                     Content content) {
  if (workload.flat_alignment > 0) {
    add_fragments(workload, rank, ranks, content);
  } else {
    add_pieces(workload, axis, rank, ranks, content);
  }
}

void RankState::add_pieces(const Workload& workload, std::optional<std::size_t> axis, int rank,
                           int ranks, Content content) {
  for (const TensorSpec& spec : workload.tensors) {
    const Piece piece = piece_of(workload, spec, axis, rank, ranks);
    const Box box = piece.box(spec);
    const Tensor data = shared_tensor(spec.dtype, box.sizes);
    state_[spec.key.c_str()] = ShardedTensor::from_rank_offsets(spec.key, data, piece.offsets(),
                                                                {.replica_id = piece.replica});
    hold({&spec, box, std::nullopt, data}, content);
  }
}

void RankState::add_fragments(const Workload& workload, int rank, int ranks, Content content) {
  const std::size_t in_state = workload.tensors.size() / workload.flat_states;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < in_state; ++i) total += numel(workload.tensors[i].shape);
  const std::int64_t unit = ranks * workload.flat_alignment;
  const std::int64_t share = (total + unit - 1) / unit * workload.flat_alignment;
  std::int64_t at = 0;  // start of a tensor in the buffer of its state
  for (std::size_t i = 0; i < workload.tensors.size(); ++i) {
    const TensorSpec& spec = workload.tensors[i];
    if (i % in_state == 0) at = 0;
    const std::int64_t count = numel(spec.shape);
    const FlattenedRange range{std::clamp<std::int64_t>(rank * share - at, 0, count),
                               std::clamp<std::int64_t>((rank + 1) * share - at, 0, count)};
    at += count;
    if (range.begin == range.end) continue;
    const Tensor data = shared_tensor(spec.dtype, {range.end - range.begin});
    state_[spec.key.c_str()] =
        ShardedTensor::from_rank_offsets_flat(spec.key, data, spec.shape, {}, range);
    hold({&spec, whole(spec.shape), range, data}, content);
  }
}

void RankState::hold(Part part, Content content) {
  if (content == Content::kValues) {
    for_part(*part.spec, part.box, part.range, part.data.data(),
             [](std::byte* to, const std::byte* from, std::size_t bytes) {
               std::memcpy(to, from, bytes);
             });
  } else {
    std::memset(part.data.data(), 0, part.data.nbytes());
  }
  nbytes_ += part.data.nbytes();
  parts_.push_back(std::move(part));
}

void RankState::touch() const {
  constexpr std::uint64_t kPage = 4096;
  for (const Part& part : parts_) {
    for (std::uint64_t at = 0; at < part.data.nbytes(); at += kPage) {
      volatile std::byte* const byte = part.data.mutable_data() + at;
      *byte = *byte;
    }
  }
}

void RankState::check() const {
  for (const std::size_t index : {std::size_t{0}, parts_.size() / 2, parts_.size() - 1}) {
    const Part& part = parts_[index];
    for_part(*part.spec, part.box, part.range, part.data.mutable_data(),
             [&](const std::byte* got, const std::byte* wanted, std::size_t bytes) {
               if (std::memcmp(got, wanted, bytes) != 0)
                 throw std::runtime_error("wrong content in " + part.spec->key + " after loading");
             });
  }
}

}  // namespace dckpt::bench
