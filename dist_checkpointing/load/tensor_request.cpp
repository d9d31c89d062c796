#include "dist_checkpointing/load/tensor_request.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "mapping/planning/validate.h"
#include "strategies/describe.h"

namespace dckpt {
namespace {

/// Strides of a destination in the space of its box, in which prepended axes have extent 1.
Shape destination_strides(const Tensor& data, std::size_t prepended) {
  Shape strides(prepended, 0);
  strides.insert(strides.end(), data.strides().begin(), data.strides().end());
  return strides;
}

void check_coverage(const Metadata& metadata, std::span<const WantedShard> wanted) {
  ProblemList problems;
  std::set<std::uint32_t> checked;
  for (const WantedShard& shard : wanted) {
    if (!checked.insert(shard.tensor).second) continue;
    for (const Problem& problem : validate_coverage(metadata.tensors[shard.tensor])) problems.add(quoted(problem.key) + ": " + problem.message);
  }
  problems.raise_if_any(ErrorCode::kCorrupt, "the stored chunks do not make up the tensors:");
}

/// That every file a plan reads from is there and long enough: before the first byte moves, not in the middle.
void check_files(const CheckpointReader& reader, std::span<const ReadItem> items) {
  const Metadata& metadata = reader.metadata();
  std::map<std::uint32_t, std::uint64_t> needed;  // file → end of the last chunk
  for (const ReadItem& item : items) {
    const Place& place = metadata.tensors[item.tensor].places[item.chunk];
    auto& end = needed[place.file];
    end = std::max(end, place.offset + place.length);
  }
  ProblemList problems;
  for (const auto& [file, end] : needed) {
    const auto info = reader.storage().stat(metadata.files[file]);
    const std::string name = quoted(reader.storage().describe(metadata.files[file]));
    if (!info) {
      problems.add(name + " is missing");
    } else if (info->kind == FileInfo::Kind::kRegular && info->size < end) {
      problems.add(name + " has " + grouped(info->size) + " bytes, but " + grouped(end) + " are needed: it is truncated");
    }
  }
  problems.raise_if_any(ErrorCode::kIncomplete, "data files of the checkpoint are incomplete (copy it again, or choose another iteration):");
}

}  // namespace

Tensor TensorRequestBuilder::add(const ShardedTensor& shard) {
  shard.validate();
  Tensor data = shard.data && shard.data->has_data() ? *shard.data : Tensor::empty(shard.dtype, shard.data_shape());
  const auto stored = keys_.tensor(shard.key);
  if (!stored) {
    problems_.add("there is no tensor " + quoted(shard.key) + (keys_.contains(shard.key) ? "; an object has this name" : ""));
    return data;
  }
  const TensorMetadata& tensor = reader_.metadata().tensors[*stored];
  const bool clip = shard.allow_shape_mismatch || mismatch_allowed(shard.key);
  if (!fits(shard, tensor, clip)) return data;
  if (data.device().kind != Device::Kind::kCpu) {
    problems_.add("the destination of " + quoted(shard.key) + " is not in CPU memory; load into CPU memory and copy from there");
    return data;
  }
  WantedShard wanted = describe_wanted(shard);
  wanted.tensor = *stored;
  wanted.clip = clip;
  wanted.strides = destination_strides(data, shard.flattened_range ? 0 : static_cast<std::size_t>(shard.prepend_axis_num));
  wanted.destination = static_cast<std::uint32_t>(request_.destinations.size());
  request_.wanted.push_back(std::move(wanted));
  request_.destinations.push_back(data);
  if (clip && !equal(shard.global_shape, tensor.global_shape())) request_.to_zero.push_back(data);
  return data;
}

bool TensorRequestBuilder::mismatch_allowed(const std::string& key) const {
  return std::any_of(options_.allow_shape_mismatch.begin(), options_.allow_shape_mismatch.end(), [&](const std::string& pattern) { return glob_match(pattern, key); });
}

/// Whether what is stored is of the wanted kind; notes why not, about shapes in the words of those who save such checkpoints.
bool TensorRequestBuilder::fits(const ShardedTensor& shard, const TensorMetadata& stored, bool clip) {
  const Shape& shape = stored.global_shape();
  const DType dtype = stored.properties.dtype;
  if (dtype != shard.dtype) {
    problems_.add("dtype mismatch for loaded (" + std::string(to_string(dtype)) + ") and expected (" + std::string(to_string(shard.dtype)) + ") tensor for key " + quoted(shard.key) +
                  "; convert the destination, nothing is cast silently");
    return false;
  }
  if (equal(shape, shard.global_shape) || (clip && shape.size() == shard.global_shape.size())) return true;
  if (reader_.info().format == "dcp") {
    problems_.add("Size mismatch between saved " + to_string(shape) + " and current: " + to_string(shard.global_shape) + " for " + quoted(shard.key));
  } else {
    problems_.add("Global shape mismatch for loaded (" + to_string(shape) + ") and expected (" + to_string(shard.global_shape) + ") tensor for key " + quoted(shard.key));
  }
  return false;
}

TensorRequest TensorRequestBuilder::finish() {
  problems_.raise_if_any(ErrorCode::kMismatch, "the request does not fit what is stored:");
  check_coverage(reader_.metadata(), request_.wanted);
  request_.items = plan_reads(reader_.metadata(), request_.wanted);
  check_files(reader_, request_.items);
  return std::move(request_);
}

}  // namespace dckpt
