#include "migration/rank_folders/joined_optimizer.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/megatron/run_args.h"
#include "migration/rank_folders/gradient_buffer.h"

namespace dckpt {
namespace {

/// The location of a parameter's elements in its gradient buffer's state.
struct BufferRange {
  std::uint32_t tensor = 0;
  std::int64_t begin = 0;
};

/// The state tensors of one buffer of one rank: name → its buckets, in order.
using BufferState = std::map<std::string, std::vector<std::uint32_t>>;

class OptimizerJoin {
 public:
  OptimizerJoin(const RankFiles& files, const JoinedModel& model)
      : files_(files), model_(model), metadata_(files.metadata()) {}

  std::vector<RearrangedTensor> run() {
    std::map<std::pair<ModelParallelRank, BufferKey>, BufferState> buffers;
    std::set<std::int64_t> chains;
    for (std::uint32_t i = 0; i < metadata_.tensors.size(); ++i) {
      const RankFiles::File& file = files_.file_of(i);
      if (file.stem != "distrib_optim") continue;
      const auto key = parse_buffer_key(files_.path_in_file(i));
      if (!key || metadata_.tensors[i].size.size() != 1)
        fail(ErrorCode::kUnsupported, "this is not state of a gradient buffer", i);
      BufferKey buffer = *key;
      buffer.name.clear();
      buffer.bucket = 0;
      buffers[{file.rank, buffer}][key->name].push_back(i);
      chains.insert(key->chain);
    }
    if (buffers.empty()) return {};
    const bool experts = std::ranges::any_of(
        model_.parameters(),
        [](const LocalParameter& parameter) { return parameter.key.expert.has_value(); });
    if (chains.size() > 2 || (experts && chains.size() != 2))
      throw_error(ErrorCode::kUnsupported,
                  "the state of a chain of optimizers other than one for dense and one "
                  "for expert parameters cannot be joined");
    for (const auto& [place, state] : buffers) {
      const auto& [rank, buffer] = place;
      // The buffers of one dtype are those of the chunks, in order.
      std::int64_t chunk = 0;
      for (const auto& [other, unused] : buffers) {
        const BufferKey& key = other.second;
        if (other.first == rank && key.chain == buffer.chain && key.dtypes == buffer.dtypes &&
            key.buffer < buffer.buffer)
          ++chunk;
      }
      std::vector<const LocalParameter*> parameters;
      for (const LocalParameter& parameter : model_.parameters()) {
        if (parameter.rank == rank &&
            in_buffer(parameter, buffer, chunk, experts && buffer.chain == *chains.rbegin()))
          parameters.push_back(&parameter);
      }
      for (const auto& [name, buckets] : state) place_parameters(parameters, name, buckets);
    }
    std::vector<std::string> names;
    for (const auto& [name, ranges] : ranges_) names.push_back(name);
    for (const std::string& name : names) add_optimizer_state(name);
    return std::move(tensors_);
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& message, std::uint32_t tensor) const {
    throw_error(code, {.key = metadata_.tensors[tensor].key}, message);
  }

  /// Returns whether the parameter, of an expert or not, has its state in the buffer.
  bool in_buffer(const LocalParameter& parameter, const BufferKey& buffer, std::int64_t chunk,
                 bool experts) const {
    const std::string_view dtype = to_string(metadata_.tensors[parameter.tensor].properties.dtype);
    const std::string torch_dtype = "torch." + std::string(dtype);
    // Before 2024 the key is the dtype of gradients alone.
    const bool same =
        buffer.dtypes.front() != '(' || buffer.dtypes.substr(1).starts_with(torch_dtype + ",");
    return same && parameter.key.expert.has_value() == experts && parameter.chunk == chunk;
  }

  void place_parameters(const std::vector<const LocalParameter*>& parameters,
                        const std::string& name, const std::vector<std::uint32_t>& buckets) {
    std::vector<std::int64_t> sizes;
    for (const LocalParameter* const parameter : parameters)
      sizes.push_back(numel(model_.shape(*parameter)));
    std::vector<std::int64_t> lengths;
    for (const std::uint32_t bucket : buckets) lengths.push_back(length(bucket));
    const std::vector<BufferPosition> places = with_context(
        {.key = metadata_.tensors[buckets.back()].key},
        [&] { return place_in_buffer(sizes, lengths, most_padding(buckets.front())); });
    for (std::size_t i = 0; i < parameters.size(); ++i)
      ranges_[name][parameters[i]] = {buckets[places[i].bucket], places[i].begin};
  }

  /// Returns the padding at the end of a bucket: none where buckets were joined (since April 2024),
  /// else up to what makes them divisible by the data-parallel ranks.
  std::int64_t most_padding(std::uint32_t bucket) const {
    const Value& file = files_.state(metadata_.tensors[bucket].places.front().file);
    if (file.is_dict() && file.find("buckets_coalesced") != nullptr) return 0;
    const std::int64_t ranks = run_arg(files_.args(), "data_parallel_size").value_or(1);
    return std::clamp<std::int64_t>(ranks, 1, std::int64_t{1} << 20) * 128 - 1;
  }

  std::int64_t length(std::uint32_t tensor) const { return metadata_.tensors[tensor].size.front(); }

  void add_optimizer_state(const std::string& name) {
    const auto& ranges = ranges_.at(name);
    model_.for_each_tensor(
        [&](const std::string& key, const JoinedModel::Parts& parts, bool stack) {
          if (std::ranges::none_of(parts, [&](const auto* part) { return ranges.contains(part); }))
            return;
          tensors_.push_back(model_.joined(
              optimizer_state_key(name == "param" ? "fp32_param" : name, key), parts, stack,
              [&](const LocalParameter& part, Box target, Box source, std::size_t) {
                const auto found = ranges.find(&part);
                if (found == ranges.end())
                  fail(ErrorCode::kCorrupt,
                       str_format("the rank has no optimizer state {} of it", name), part.tensor);
                const BufferRange& range = found->second;
                std::int64_t begin = range.begin;
                if (source.dims() > 0)
                  begin += source.offsets[0] * (numel(model_.shape(part)) /
                                                std::max<std::int64_t>(model_.shape(part)[0], 1));
                const std::int64_t count = numel(source.sizes);
                return TensorPart{.elements = TensorPart::Elements::kInOrder,
                                  .target = std::move(target),
                                  .tensor = range.tensor,
                                  .source = {{begin}, {count}}};
              }));
        });
  }

  const RankFiles& files_;
  const JoinedModel& model_;
  const Metadata& metadata_;
  std::map<std::string, std::map<const LocalParameter*, BufferRange>> ranges_;  // by state's name
  std::vector<RearrangedTensor> tensors_;
};

}  // namespace

std::vector<RearrangedTensor> joined_optimizer(const RankFiles& files, const JoinedModel& model) {
  return OptimizerJoin(files, model).run();
}

}  // namespace dckpt
