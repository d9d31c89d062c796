#include "migration/optimizer/optimizer_buckets.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/problem_list.h"
#include "mapping/geometry/cast.h"
#include "mapping/megatron/module_order.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/planning/load/read_plan.h"

namespace dckpt {
namespace {

constexpr std::int64_t kAlignment = 64;         // alignment of parameters in a bucket
constexpr std::int64_t kWindow = 128;           // elements that are compared at a time
constexpr std::int64_t kBlock = 1 << 16;        // elements of a bucket that are read at a time
constexpr std::size_t kChunksAtOnce = 1 << 12;  // chunks whose windows are read with one request
constexpr std::string_view kParam = "param";
constexpr std::string_view kFloat8Parameters = "dtype_(torch.uint8,";  // as Megatron calls them
constexpr std::string_view kDistributed = "optimizer.distributed.";
constexpr const char* kRemedy =
    "the release of Megatron-Core that saved it, under the same parallel sizes, and save it in a "
    "form that any layout loads (0.15 and newer: --dist-ckpt-optim-fully-reshardable; before: "
    "--ckpt-fully-parallel-save)";

struct BucketKey {
  StoredBucket bucket;
  std::string name;
};

std::optional<BucketKey> parse_bucket_key(std::string_view key) {
  const std::string_view all = key;
  BucketKey parsed;
  if (take_chain(key)) parsed.bucket.chain = all.substr(0, all.size() - key.size());
  if (!key.starts_with(kDistributed)) return std::nullopt;
  key.remove_prefix(kDistributed.size());
  const auto group = take_index(key, "dp_group_idx_");
  const auto buffer = take_index(key, "gbuf_idx_");
  const std::size_t dtype_end = key.find(").");
  if (!group || !buffer || !key.starts_with("dtype_(") || dtype_end == std::string_view::npos)
    return std::nullopt;
  key.remove_prefix(dtype_end + 2);
  parsed.bucket.buffer = all.substr(0, all.size() - key.size());
  const auto index = take_index(key, "bucket_idx_");
  if (key.empty() || key.find('.') != std::string_view::npos) return std::nullopt;
  parsed.bucket.group = *group;
  parsed.bucket.buffer_index = *buffer;
  parsed.bucket.index = index.value_or(0);
  parsed.bucket.joined = !index;
  parsed.name = key;
  return parsed;
}

/// A chunk of the model, and the elements by which it is recognized.
struct ModelChunk {
  std::uint32_t tensor = 0;
  Box box;
  std::int64_t elements = 0;
  std::int64_t layer = 0;
  bool known_place = true;
  Bytes sample{};  // the elements of its windows, one after the other
};

/// Returns the windows of a chunk with so many elements. Short chunks are compared whole.
std::vector<WantedShard::Range> windows(std::int64_t elements) {
  if (elements <= 3 * kWindow) return {{0, elements}};
  const std::int64_t middle = (elements - kWindow) / 2;
  return {{0, kWindow}, {middle, middle + kWindow}, {elements - kWindow, elements}};
}

/// Returns the layer of a box, whose first axis is that of the layers if they are stacked.
std::int64_t layer_of(const Box& box) {
  return box.offsets.empty() ? 0 : box.offsets[0];
}

/// Returns the chunks of the model's floating tensors in Megatron's order, each once, with their
/// samples.
std::vector<ModelChunk> model_chunks(const CheckpointReader& reader, const ReadOptions& options) {
  const Metadata& metadata = reader.metadata();
  std::vector<ModelChunk> chunks;
  for (std::size_t i = 0; i < metadata.tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = metadata.tensors[i];
    if (is_optimizer_key(tensor.key) || tensor.flattened_shape) continue;
    if (!can_cast(DType::kFloat32, tensor.properties.dtype)) continue;
    std::set<Shape> seen;
    for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
      Box box = tensor.chunks[chunk];
      const std::int64_t elements = numel(box.sizes);
      if (elements == 0 || !seen.insert(box.offsets).second) continue;
      const ModulePlace place = module_place(tensor.key, layer_of(box));
      chunks.push_back(
          {static_cast<std::uint32_t>(i), std::move(box), elements, place.layer, place.known});
    }
  }
  std::ranges::stable_sort(chunks, [&](const ModelChunk& a, const ModelChunk& b) {
    const ModulePlace at = module_place(metadata.tensors[a.tensor].key, layer_of(a.box));
    const ModulePlace other = module_place(metadata.tensors[b.tensor].key, layer_of(b.box));
    if (at.order() != other.order()) return at.order() < other.order();
    return std::ranges::lexicographical_compare(a.box.offsets, b.box.offsets);
  });

  for (std::size_t first = 0; first < chunks.size(); first += kChunksAtOnce) {
    const std::size_t last = std::min(first + kChunksAtOnce, chunks.size());
    std::vector<WantedShard> wanted;
    std::vector<Tensor> samples;
    for (std::size_t i = first; i < last; ++i) {
      const DType dtype = metadata.tensors[chunks[i].tensor].properties.dtype;
      for (const WantedShard::Range& range : windows(chunks[i].elements)) {
        wanted.push_back(
            {chunks[i].tensor, static_cast<std::uint32_t>(samples.size()), chunks[i].box, range});
        samples.push_back(Tensor::empty(dtype, {range.end - range.begin}));
      }
    }
    read_tensors(reader, plan_reads(metadata, wanted), samples, options);
    std::size_t next = 0;
    for (std::size_t i = first; i < last; ++i) {
      for (std::size_t w = windows(chunks[i].elements).size(); w > 0; --w) {
        const ByteView bytes = samples[next++].bytes();
        chunks[i].sample.insert(chunks[i].sample.end(), bytes.begin(), bytes.end());
      }
    }
  }
  return chunks;
}

/// The elements of one bucket's main parameters, read in blocks.
class ParameterValues {
 public:
  ParameterValues(const CheckpointReader& reader, std::uint32_t tensor, const ReadOptions& options)
      : reader_(reader), tensor_(tensor), options_(options) {}

  std::int64_t size() const { return numel(shape()); }

  /// Returns float32 elements, valid until the next call. The range is inside the bucket.
  const std::byte* read(std::int64_t begin, std::int64_t end) {
    if (begin < begin_ || end > end_) {
      begin_ = begin;
      end_ = std::min(begin + kBlock, size());
      block_ = Tensor::empty(DType::kFloat32, {end_ - begin_});
      const WantedShard wanted{tensor_, 0, whole(shape()), WantedShard::Range{begin_, end_}};
      read_tensors(reader_, plan_reads(reader_.metadata(), {&wanted, 1}), {&block_, 1}, options_);
    }
    return block_.bytes().data() + static_cast<std::size_t>(begin - begin_) * sizeof(float);
  }

 private:
  const Shape& shape() const { return reader_.metadata().tensors[tensor_].global_shape(); }

  const CheckpointReader& reader_;
  std::uint32_t tensor_;
  const ReadOptions& options_;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  Tensor block_;
};

[[noreturn]] void refuse_guess(const std::set<std::string>& keys) {
  const std::vector<std::string> list(keys.begin(), keys.end());
  throw_error(ErrorCode::kUnsupported,
              "{} have the same values, and in which order their state lies in the buckets is "
              "not known; train until they differ, or resume once in {}",
              quoted_list(list), kRemedy);
}

[[noreturn]] void refuse_float8(const std::string& key) {
  throw_error(ErrorCode::kUnsupported, {.key = key},
              "these are main parameters of float8 weights (--fp8-param-gather), which the "
              "model has rounded with scales that are not known here, so what the "
              "optimizer's state belongs to cannot be found out by values; resume once in {}, "
              "or convert the model alone (--exclude 'optimizer*')",
              kRemedy);
}

[[noreturn]] void refuse_values(const std::string& key, std::int64_t from, std::int64_t end) {
  throw_error(ErrorCode::kMismatch, {.key = key},
              "the main parameters from element {} to {} are, rounded, not the values of any "
              "chunk of the model, so what the optimizer's state belongs to cannot be found "
              "out: a model of another iteration, or chunks that are not those "
              "of the save (convert --ranks); convert the checkpoint as it was saved, or "
              "resume it once in {}",
              grouped(static_cast<std::uint64_t>(from)), grouped(static_cast<std::uint64_t>(end)),
              kRemedy);
}

class BucketSearch {
 public:
  BucketSearch(const CheckpointReader& reader, std::span<const StoredBucket> buckets,
               const ReadOptions& options, const std::function<void()>& go_on)
      : reader_(reader),
        buckets_(buckets),
        options_(options),
        go_on_(go_on),
        chunks_(model_chunks(reader, options)),
        found_(chunks_.size()) {
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      by_first_element_[first_element(dtype(i), chunks_[i].sample.data())].push_back(i);
      dtypes_.insert(dtype(i));
    }
  }

  FoundInBuckets run() {
    FoundInBuckets found;
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      if (bucket == 0 || buckets_[bucket].buffer != buckets_[bucket - 1].buffer) {
        used_.assign(chunks_.size(), false);
        previous_ = chunks_.size();  // buffers begin with the model's end
      }
      search(bucket);
    }
    if (!alike_.empty()) {
      std::vector<std::string> keys;
      for (const std::uint32_t tensor : alike_)
        keys.push_back(reader_.metadata().tensors[tensor].key);
      found.findings.push_back(
          {FindingCode::kStateAmbiguous,
           str_format("chunks of {} have the same values as others, as norms have before training "
                      "moves them; "
                      "Megatron's order of modules says whose optimizer state is whose",
                      quoted_list(keys)),
           keys});
    }
    if (drifted_ > 0)
      found.findings.push_back(
          {FindingCode::kStateAmbiguous,
           str_format("{} main parameters that differ between ranks which "
                      "hold the same chunk; those of the first rank were taken",
                      counted(drifted_, "chunk has", "chunks have"))});
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      if (found_[i])
        found.places.push_back(
            {chunks_[i].tensor, chunks_[i].box, found_[i]->bucket, found_[i]->begin});
    }
    return found;
  }

 private:
  struct Found {
    std::uint32_t bucket = 0;
    std::int64_t begin = 0;
    Fingerprint main;  // main parameters in its windows
  };
  using FirstElement = std::pair<DType, std::uint32_t>;

  static FirstElement first_element(DType dtype, const std::byte* at) {
    return {dtype, std::bit_cast<std::uint32_t>(load_float(dtype, at))};
  }

  DType dtype(std::size_t chunk) const {
    return reader_.metadata().tensors[chunks_[chunk].tensor].properties.dtype;
  }

  void search(std::size_t bucket) {
    const std::uint32_t param = buckets_[bucket].state.find(kParam)->second;
    ParameterValues values(reader_, param, options_);
    const std::int64_t end = buckets_[bucket].used;
    std::int64_t base = 0;      // the bucket's first element
    bool in_parameter = false;  // a chunk can follow that is cut from the same parameter
    for (std::int64_t at = 0; at < end;) {
      if (go_on_) go_on_();
      const std::int64_t next = base + (at - base + kAlignment - 1) / kAlignment * kAlignment;
      std::optional<std::size_t> chunk;
      std::int64_t begin = at;
      if (in_parameter && at != next) chunk = chunk_at(values, at, end, chunks_[previous_].tensor);
      if (!chunk && next < end) chunk = chunk_at(values, begin = next, end, std::nullopt);
      if (!chunk && at != next && buckets_[bucket].joined) {
        chunk = chunk_at(values, begin = at, end, std::nullopt);
        if (chunk) base = at;
      }
      if (!chunk && next >= end) break;
      if (!chunk) {
        if (buckets_[bucket].buffer.find(kFloat8Parameters) != std::string::npos)
          refuse_float8(reader_.metadata().tensors[param].key);
        refuse_values(reader_.metadata().tensors[param].key, next, end);
      }
      claim(*chunk, static_cast<std::uint32_t>(bucket), begin, values);
      in_parameter = true;
      at = begin + chunks_[*chunk].elements;
    }
  }

  /// Returns the chunk whose parameters begin at `begin`.
  std::optional<std::size_t> chunk_at(ParameterValues& values, std::int64_t begin, std::int64_t end,
                                      std::optional<std::uint32_t> only_of) {
    std::vector<std::size_t> candidates;
    std::array<std::byte, 8> element{};
    for (const DType dtype : dtypes_) {
      cast_elements(DType::kFloat32, values.read(begin, begin + 1), dtype, element.data(), 1);
      const auto list = by_first_element_.find(first_element(dtype, element.data()));
      if (list == by_first_element_.end()) continue;
      std::ranges::copy_if(list->second, std::back_inserter(candidates), [&](std::size_t chunk) {
        return !used_[chunk] && chunks_[chunk].elements <= end - begin &&
               (!only_of || chunks_[chunk].tensor == *only_of);
      });
    }
    std::erase_if(candidates, [&](std::size_t chunk) { return !has_values(chunk, values, begin); });
    if (candidates.size() > 1) keep_equal(candidates, values, begin);
    if (candidates.empty()) return std::nullopt;
    if (candidates.size() == 1) return candidates[0];
    const bool known = std::ranges::all_of(
        candidates, [&](std::size_t chunk) { return chunks_[chunk].known_place; });
    if (!known) {
      std::set<std::string> keys;
      for (const std::size_t chunk : candidates)
        keys.insert(reader_.metadata().tensors[chunks_[chunk].tensor].key);
      refuse_guess(keys);
    }
    const std::size_t next = next_in_order(candidates);
    alike_.insert(chunks_[next].tensor);
    return next;
  }

  /// Leaves those of several whose elements are all equal to the parameters, rounded.
  void keep_equal(std::vector<std::size_t>& candidates, ParameterValues& values,
                  std::int64_t begin) {
    std::map<std::pair<std::int64_t, DType>, Fingerprint> rounded;  // by length
    std::erase_if(candidates, [&](std::size_t chunk) {
      const std::int64_t elements = chunks_[chunk].elements;
      if (elements <= 3 * kWindow) return false;  // has_values() has compared them all
      const auto [found, added] = rounded.try_emplace({elements, dtype(chunk)});
      if (added) found->second = fingerprint_of_rounded(values, begin, elements, dtype(chunk));
      return fingerprint_of_chunk(chunk) != found->second;
    });
  }

  static Fingerprint fingerprint_of_rounded(ParameterValues& values, std::int64_t begin,
                                            std::int64_t elements, DType dtype) {
    Fingerprinter fingerprint;
    Bytes rounded;
    for (std::int64_t from = 0; from < elements; from += kBlock) {
      const auto count = static_cast<std::size_t>(std::min(kBlock, elements - from));
      rounded.resize(count * item_size(dtype));
      cast_elements(DType::kFloat32,
                    values.read(begin + from, begin + from + static_cast<std::int64_t>(count)),
                    dtype, rounded.data(), count);
      fingerprint.update(rounded);
    }
    return fingerprint.value();
  }

  const Fingerprint& fingerprint_of_chunk(std::size_t chunk) {
    const auto [found, added] = whole_.try_emplace(chunk);
    if (!added) return found->second;
    Fingerprinter fingerprint;
    for (std::int64_t from = 0; from < chunks_[chunk].elements; from += kBlock) {
      const std::int64_t to = std::min(from + kBlock, chunks_[chunk].elements);
      const Tensor model = Tensor::empty(dtype(chunk), {to - from});
      const WantedShard wanted{chunks_[chunk].tensor, 0, chunks_[chunk].box,
                               WantedShard::Range{from, to}};
      read_tensors(reader_, plan_reads(reader_.metadata(), {&wanted, 1}), {&model, 1}, options_);
      fingerprint.update(model.bytes());
    }
    found->second = fingerprint.value();
    return found->second;
  }

  /// Returns, of several chunks with the same values, the one that comes next: in the layer of the
  /// previous one, from the end of Megatron's order. Parts of one tensor in one layer (experts)
  /// come from the last to the first, whatever lies between them.
  std::size_t next_in_order(const std::vector<std::size_t>& candidates) const {
    const std::size_t nearest = *std::ranges::min_element(candidates, {}, [&](std::size_t chunk) {
      const bool other_layer =
          previous_ < chunks_.size() && chunks_[chunk].layer != chunks_[previous_].layer;
      const bool before = chunk > previous_;
      return std::tuple(other_layer, before, before ? chunk - previous_ : previous_ - chunk);
    });
    std::size_t last = nearest;
    for (const std::size_t chunk : candidates) {
      if (chunks_[chunk].tensor == chunks_[nearest].tensor &&
          chunks_[chunk].layer == chunks_[nearest].layer)
        last = std::max(last, chunk);
    }
    return last;
  }

  /// Returns whether the parameters from `begin` on, rounded to the chunk's dtype, are the chunk.
  bool has_values(std::size_t chunk, ParameterValues& values, std::int64_t begin) const {
    std::array<std::byte, 3 * kWindow * sizeof(double)> rounded;
    const Bytes& sample = chunks_[chunk].sample;
    const std::byte* expected = sample.data();
    for (const auto& [from, to] : windows(chunks_[chunk].elements)) {
      const auto count = static_cast<std::size_t>(to - from);
      const std::size_t bytes = count * item_size(dtype(chunk));
      cast_elements(DType::kFloat32, values.read(begin + from, begin + to), dtype(chunk),
                    rounded.data(), count);
      if (std::memcmp(rounded.data(), expected, bytes) != 0) return false;
      expected += bytes;
    }
    return true;
  }

  void claim(std::size_t chunk, std::uint32_t bucket, std::int64_t begin, ParameterValues& values) {
    Bytes main;
    for (const auto& [from, to] : windows(chunks_[chunk].elements)) {
      const std::byte* const at = values.read(begin + from, begin + to);
      main.insert(main.end(), at, at + static_cast<std::size_t>(to - from) * sizeof(float));
    }
    const Fingerprint hash = fingerprint_of(main);
    if (!found_[chunk])
      found_[chunk] = Found{bucket, begin, hash};
    else if (found_[chunk]->main != hash)
      ++drifted_;
    used_[chunk] = true;
    previous_ = chunk;
  }

  const CheckpointReader& reader_;
  std::span<const StoredBucket> buckets_;
  const ReadOptions& options_;
  const std::function<void()>& go_on_;
  std::vector<ModelChunk> chunks_;  // in Megatron's order
  std::map<FirstElement, std::vector<std::size_t>> by_first_element_;
  std::set<DType> dtypes_;
  std::map<std::size_t, Fingerprint> whole_;  // chunks that look like others
  std::vector<std::optional<Found>> found_;   // beside the chunks
  std::vector<bool> used_;                    // chunks used in this buffer
  std::size_t previous_ = 0;                  // the previous chunk
  std::set<std::uint32_t> alike_;  // tensors of chunks that are told apart by their order
  std::uint64_t drifted_ = 0;
};

/// Returns the elements that Megatron counts as used in every bucket of a buffer; empty if it does
/// not say.
std::vector<std::int64_t> used_elements(const CheckpointReader& reader,
                                        const StoredBucket& bucket) {
  const std::string prefix =
      str_format("{}optimizer.distributed.dp_group_idx_{}.per_bucket_numel_unpadded/", bucket.chain,
                 bucket.group);
  const std::vector<BytesStorageMetadata>& objects = reader.metadata().objects;
  const auto found = std::ranges::find_if(
      objects, [&](const BytesStorageMetadata& object) { return object.key.starts_with(prefix); });
  if (found == objects.end()) return {};
  const Value value = reader.object(static_cast<std::size_t>(found - objects.begin()));
  const auto buffer = static_cast<std::size_t>(bucket.buffer_index);
  if (!value.is_list() || value.items().size() <= buffer || !value.items()[buffer].is_dict())
    return {};
  const Dict& by_dtype = value.items()[buffer].as_dict();
  if (by_dtype.size() != 1 || !by_dtype.items()[0].second.is_list()) return {};
  std::vector<std::int64_t> counts;
  for (const Value& count : by_dtype.items()[0].second.items())
    counts.push_back(count.is_int() ? count.as_int() : -1);
  return counts;
}

}  // namespace

bool is_bucket_key(std::string_view key) {
  return parse_bucket_key(key).has_value();
}

std::vector<StoredBucket> optimizer_buckets(const CheckpointReader& reader) {
  const Metadata& metadata = reader.metadata();
  std::map<std::tuple<std::string, std::int64_t, std::int64_t, std::string, std::int64_t>,
           StoredBucket>
      ordered;
  ProblemList problems;
  for (std::size_t i = 0; i < metadata.tensors.size(); ++i) {
    auto parsed = parse_bucket_key(metadata.tensors[i].key);
    if (!parsed) {
      if (is_optimizer_key(metadata.tensors[i].key) &&
          metadata.tensors[i].key.find(kDistributed) != std::string::npos)
        problems.add(
            quote(metadata.tensors[i].key) +
            " is no key of a bucket, …dp_group_idx_I.gbuf_idx_G.dtype_(D).bucket_idx_B.NAME");
      continue;
    }
    StoredBucket& key = parsed->bucket;
    StoredBucket& bucket = ordered[{key.chain, key.group, key.buffer_index, key.buffer, key.index}];
    auto state = std::move(bucket.state);
    state[parsed->name] = static_cast<std::uint32_t>(i);
    bucket = std::move(key);
    bucket.state = std::move(state);
  }
  std::vector<StoredBucket> buckets;
  std::vector<std::int64_t> used;
  for (auto& [order, bucket] : ordered) {
    if (buckets.empty() || buckets.back().buffer != bucket.buffer)
      used = used_elements(reader, bucket);
    const auto param = bucket.state.find(kParam);
    if (param == bucket.state.end()) {
      problems.add(str_format("bucket {} of {} has no main parameters (\"param\")", bucket.index,
                              quote(bucket.buffer)));
      continue;
    }
    const TensorStorageMetadata& main = metadata.tensors[param->second];
    for (const auto& [name, position] : bucket.state) {
      const TensorStorageMetadata& tensor = metadata.tensors[position];
      if (tensor.global_shape().size() != 1 || tensor.global_shape() != main.global_shape() ||
          tensor.properties.dtype != DType::kFloat32)
        problems.add(str_format("{} is {} {}, expected float32 of one axis, as long as \"param\"",
                                quote(tensor.key), to_string(tensor.properties.dtype),
                                to_string(tensor.global_shape())));
    }
    const std::int64_t size = numel(main.global_shape());
    const auto index = static_cast<std::size_t>(bucket.index);
    bucket.used = !bucket.joined && index < used.size() ? used[index] : size;
    if (bucket.used < 0 || bucket.used > size)
      problems.add(str_format("{} has {} elements, but its metadata declare {} of them as used",
                              quote(main.key), size, bucket.used));
    buckets.push_back(std::move(bucket));
  }
  problems.raise_if_any(ErrorCode::kMismatch,
                        "the buckets of the optimizer are not as Megatron writes them:");
  return buckets;
}

FoundInBuckets find_in_buckets(const CheckpointReader& reader,
                               std::span<const StoredBucket> buckets, const ReadOptions& options,
                               const std::function<void()>& go_on) {
  return BucketSearch(reader, buckets, options, go_on).run();
}

}  // namespace dckpt
