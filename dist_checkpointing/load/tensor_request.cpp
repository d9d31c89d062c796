#include "dist_checkpointing/load/tensor_request.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "dist_checkpointing/load/misfit.h"
#include "dist_checkpointing/planner/shard_spec.h"
#include "mapping/base/error.h"
#include "mapping/planning/validate.h"
#include "mapping/state/destination.h"
#include "strategies/device/registry.h"
#include "strategies/tensor_io/lost_data.h"

namespace dckpt {
namespace {

/// Returns the strides of a destination in the space of its box, in which prepended axes have
/// extent 1.
Shape destination_strides(const Tensor& data, std::size_t prepended) {
  Shape strides(prepended, 0);
  strides.insert(strides.end(), data.strides().begin(), data.strides().end());
  return strides;
}

/// Checks that every file a plan reads from exists and is long enough, before the first byte moves.
void check_files(const CheckpointReader& reader, std::span<const ReadItem> items) {
  const Metadata& metadata = reader.metadata();
  std::map<std::uint32_t, std::uint64_t> needed;  // file → end of the last chunk
  for (const ReadItem& item : items) {
    const StorageInfo& place = metadata.tensors[item.tensor].places[item.chunk];
    auto& end = needed[place.file];
    end = std::max(end, place.offset + place.length);
  }
  ProblemList problems;
  for (const auto& [file, end] : needed) {
    const auto info = reader.storage().stat(metadata.files[file]);
    const std::string name = quote(reader.storage().display_path(metadata.files[file]));
    if (!info) {
      problems.add(name + " is missing");
    } else if (info->kind == FileInfo::Kind::kRegular && info->size < end) {
      problems.add(str_format("{} has {} bytes, but {} are needed: it is truncated", name,
                              grouped(info->size), grouped(end)));
    }
  }
  if (problems.empty()) return;
  std::set<std::uint32_t> wanted;
  for (const ReadItem& item : items) wanted.insert(item.tensor);
  LostData lost = find_lost_data(reader, metadata);
  lost.objects.clear();
  std::erase_if(lost.tensors, [&](const auto& tensor) { return !wanted.contains(tensor.number); });
  for (std::string& line : describe_lost_keys(lost, metadata)) problems.add(std::move(line));
  problems.raise_if_any(
      ErrorCode::kIncomplete,
      "data files of the checkpoint are incomplete (copy it again, or choose another iteration):");
}

}  // namespace

Tensor TensorRequestBuilder::add(const ShardedTensor& shard) {
  shard.validate();
  const auto nothing = [&] { return Tensor::meta(shard.dtype, shard.data_shape()); };
  const auto stored = keys_.tensor(shard.key);
  if (!stored) {
    problems_.add(str_format("there is no tensor {}{}", quote(shard.key),
                             keys_.contains(shard.key) ? "; an object has this name" : ""));
    return nothing();
  }
  const TensorStorageMetadata& tensor = reader_.metadata().tensors[*stored];
  const bool clip = shape_mismatch_allowed(shard, options_);
  const std::vector<Misfit> misfits =
      misfits_of_shard(shard, tensor, options_, reader_.info().conventions.keys_are_paths);
  for (const Misfit& misfit : misfits) problems_.add(to_string(misfit));
  if (!misfits.empty()) return nothing();
  if (!is_covered(*stored)) return nothing();
  Tensor data = shard.data && shard.data->has_data()
                    ? *shard.data
                    : Tensor::empty(shard.dtype, shard.data_shape());
  std::string reason = unreachable(data.device());
  if (reason.empty()) reason = unfit_to_load_into(data);
  if (!reason.empty()) {
    problems_.add(str_format("the destination of {} {}", quote(shard.key), reason));
    return nothing();
  }
  if (tensor.properties.dtype != shard.dtype)
    request_.casts.push_back({shard.key, tensor.properties.dtype, shard.dtype});
  WantedShard wanted = wanted_shard(shard);
  wanted.tensor = *stored;
  wanted.clip = clip;
  wanted.strides = destination_strides(
      data, shard.flattened_range ? 0 : static_cast<std::size_t>(shard.prepend_axis_num));
  if (clip && !equal(shard.global_shape, tensor.global_shape())) {
    request_padded(std::move(wanted), data, shard, tensor.global_shape());
  } else {
    request(std::move(wanted), data, shard.key);
  }
  return data;
}

void TensorRequestBuilder::request(WantedShard wanted, const Tensor& data, const std::string& key) {
  wanted.destination = static_cast<std::uint32_t>(request_.destinations.size());
  request_.wanted.push_back(std::move(wanted));
  request_.destinations.push_back(data);
  if (with_keys_) request_.keys.push_back(key);
}

/// Requests a shard that may extend beyond the stored tensor.
void TensorRequestBuilder::request_padded(WantedShard wanted, const Tensor& data,
                                          const ShardedTensor& shard, ShapeView stored_shape) {
  const auto nearest = nearest_stored(wanted.box, stored_shape);
  if (options_.padding == Padding::kZero || !nearest) {
    request_.to_zero.push_back(data);
    return request(std::move(wanted), data, shard.key);
  }
  if (data.device().kind != Device::Kind::kCpu) {
    problems_.add(str_format("{} is padded with its edge, which needs a destination in CPU memory",
                             quote(shard.key)));
    return;
  }
  EdgePadding padding{.tensor = data, .sizes = wanted.box.sizes, .filled = nearest->sizes};
  if (shard.flattened_range) {
    padding.tensor = Tensor::empty(shard.dtype, shard.local_shape);
    padding.range = EdgePadding::Range{data, shard.flattened_range->begin};
    wanted.range.reset();
    wanted.strides =
        destination_strides(padding.tensor, static_cast<std::size_t>(shard.prepend_axis_num));
  }
  padding.strides = *wanted.strides;
  wanted.box = *nearest;
  wanted.clip = false;
  request(std::move(wanted), padding.tensor, shard.key);
  request_.to_pad.push_back(std::move(padding));
}

/// Returns whether the chunks cover the tensor; records the problem if not. Called before memory
/// for a tensor of that size is allocated.
bool TensorRequestBuilder::is_covered(std::uint32_t stored) {
  const auto [known, is_new] = covered_.try_emplace(stored, true);
  if (!is_new) return known->second;
  for (const CoverageProblem& problem : validate_coverage(reader_.metadata().tensors[stored])) {
    damaged_.add(str_format("{}: {}", quote(problem.keys.front()), problem.message));
    known->second = false;
  }
  return known->second;
}

TensorRequest TensorRequestBuilder::finish() {
  problems_.raise_if_any(ErrorCode::kMismatch, "the request does not fit what is stored:");
  damaged_.raise_if_any(ErrorCode::kCorrupt, "the stored chunks do not make up the tensors:");
  request_.items = plan_reads(reader_.metadata(), request_.wanted);
  check_files(reader_, request_.items);
  return std::move(request_);
}

}  // namespace dckpt
