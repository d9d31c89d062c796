#include "operations/convert/copy_contents.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/renamed_path.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/planning/chunk_geometry.h"
#include "mapping/planning/validate.h"
#include "mapping/state/sharded_object.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/torch_archive/lazy_tensor.h"
#include "strategies/views/rearranged_reader.h"

namespace dckpt {

CopyContents select_contents(const CheckpointReader& reader, const KeyFilter& keys) {
  const Metadata& source = reader.metadata();
  keys.check({&source});
  CopyContents contents;
  Metadata& metadata = contents.metadata;
  metadata.files = source.files;
  metadata.storage_meta = source.storage_meta;
  metadata.version = source.version;
  const auto leave_out = [&](const std::string& key) {
    ++contents.left_out;
    if (is_optimizer_key(key)) ++contents.state_left_out;
  };
  for (std::size_t i = 0; i < source.tensors.size(); ++i) {
    if (!keys(source.tensors[i].key)) {
      leave_out(source.tensors[i].key);
      continue;
    }
    metadata.tensors.push_back(source.tensors[i]);
    contents.tensor_of.push_back(i);
  }
  for (std::size_t i = 0; i < source.objects.size(); ++i) {
    if (!keys.object(source.objects[i].key)) {
      leave_out(source.objects[i].key);
      continue;
    }
    metadata.objects.push_back(source.objects[i]);
    contents.object_of.push_back({i});
  }
  if (reader.info().conventions.keys_are_paths) {
    if (const auto problem = problem_of_paths(source)) throw *problem;
  }
  std::unordered_set<std::string_view> kept;
  for (const TensorStorageMetadata& tensor : metadata.tensors) kept.insert(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) kept.insert(object.key);
  for (const auto& path : source.paths) {
    if (kept.contains(path.first)) metadata.paths.push_back(path);
  }
  for (const auto& path : source.common_paths) {
    if (keys.object(path.first)) metadata.common_paths.push_back(path);
  }
  return contents;
}

void require_coverage(const CopyContents& contents, const std::string& source) {
  std::string message;
  std::size_t count = 0;
  for (const TensorStorageMetadata& tensor : contents.metadata.tensors) {
    for (const CoverageProblem& problem : validate_coverage(tensor)) {
      if (++count <= 10) message += str_format("\n  {}: {}", quote(tensor.key), problem.message);
    }
  }
  if (count == 0) return;
  if (count > 10) message += str_format("\n  … and {} more", grouped(count - 10));
  throw_error(ErrorCode::kCorrupt, {.file = source},
              "the stored chunks do not make up the tensors:{}\n(leave these "
              "tensors out to convert the rest)",
              message);
}

CopyContents rename_contents(CopyContents contents, std::span<const RenameRule> rules) {
  if (rules.empty()) return contents;
  const KeyRenamer renamer(rules);
  std::unordered_map<std::string, std::string> stored_as{{kCommonStateKey, kCommonStateKey}};
  ProblemList ambiguous;
  const auto renamed = [&](const std::string& key, bool object) {
    std::string name = object ? renamed_object(renamer, key) : renamer(key);
    const auto [first, inserted] = stored_as.try_emplace(name, key);
    if (!inserted)
      ambiguous.add(
          str_format("{} and {} both become {}", quote(first->second), quote(key), quote(name)));
    return name;
  };
  Metadata& metadata = contents.metadata;
  std::unordered_map<std::string, std::string> names;
  for (TensorStorageMetadata& tensor : metadata.tensors) {
    std::string name = renamed(tensor.key, false);
    names.emplace(std::exchange(tensor.key, name), name);
  }
  for (BytesStorageMetadata& object : metadata.objects) {
    std::string name = renamed(object.key, true);
    names.emplace(std::exchange(object.key, name), name);
  }
  for (auto& [key, path] : metadata.paths) {
    const std::string& name = names.at(key);
    if (name != key) path = renamed_path(path, name);
    key = name;
  }
  for (auto& [key, path] : metadata.common_paths) {
    std::string name = renamed(key, true);
    names.emplace(std::exchange(key, name), name);
  }
  ambiguous.raise_if_any(ErrorCode::kMismatch,
                         "the rules for renaming give several stored keys the same name:");
  const auto changed =
      std::ranges::count_if(names, [](const auto& entry) { return entry.first != entry.second; });
  contents.findings.push_back(
      {FindingCode::kKeysRenamed,
       grouped(static_cast<std::uint64_t>(changed)) + " keys were renamed"});
  return contents;
}

namespace {

constexpr std::size_t kNamed = 5;

bool has_elements(const Value& value) {
  bool found = false;
  replace_tensors(value, [&](const Tensor& tensor) {
    found |= tensor.numel() > 0;
    return tensor;
  });
  return found;
}

/// Returns whether a key is state of the run besides the model. Tensors in it are not weights.
bool is_state_of_run(const std::string& key) {
  constexpr std::array<std::string_view, 3> kStates{"rng_state", "rerun_state_machine_state",
                                                    "opt_param_scheduler"};
  return is_optimizer_key(key) || std::ranges::find(kStates, key) != kStates.end();
}

/// Returns some of the objects with tensors that a format of tensors would lose. Sharded objects
/// are Megatron's, which stores its tensors elsewhere.
std::vector<std::string> objects_with_tensors(const CopyContents& contents,
                                              const CheckpointReader& source) {
  std::vector<std::string> found;
  for (std::size_t i = 0; i < contents.object_of.size() && found.size() < kNamed; ++i) {
    const std::string& key = contents.metadata.objects[i].key;
    if (!ShardedObject::is_unique_key(key) && !is_state_of_run(key) &&
        has_elements(source.object(contents.object_of[i].position)))
      found.push_back(key);
  }
  return found;
}

}  // namespace

CopyContents tensors_only(CopyContents contents, const CheckpointReader& source, bool chosen) {
  Metadata& metadata = contents.metadata;
  const auto refuse = [](const std::string& what, const std::vector<std::string>& keys,
                         const std::string& way) {
    throw_error(ErrorCode::kInvalidArgument,
                "the format holds tensors only, and would lose {}: {}; {}", what,
                quoted_list(keys, kNamed), way);
  };
  if (const auto lost = objects_with_tensors(contents, source); !lost.empty())
    refuse("tensors that are stored as objects", lost,
           "leave them out (--exclude), or write a format that holds objects, such as dcp");
  std::vector<std::string> objects;
  for (const BytesStorageMetadata& object : metadata.objects) objects.push_back(object.key);
  std::vector<std::string> values, with_tensors;
  if (const Value common = source.common_state(); common.is_dict()) {
    for (const auto& [key, value] : common.as_dict()) {
      values.push_back(key.is_str() ? key.as_str() : to_string(key.kind()));
      if (!is_state_of_run(values.back()) && has_elements(value))
        with_tensors.push_back(values.back());
    }
  }
  if (!with_tensors.empty() && !chosen)
    refuse("tensors of the common state", with_tensors,
           "say which keys are wanted (--include '*' takes all other tensors), or write a format "
           "that holds a common state, such as torch_dist");
  if (!objects.empty())
    contents.findings.push_back(
        {FindingCode::kKeysDropped,
         str_format("left out, as the format holds tensors only: {}, {}",
                    counted(objects.size(), "object"), quoted_list(objects)),
         objects});
  if (!values.empty())
    contents.findings.push_back(
        {FindingCode::kCommonStateLeftOut,
         "left out, as the format holds tensors only: the common state with " +
             quoted_list(values, 10)});
  if (metadata.tensors.empty())
    throw_error(ErrorCode::kInvalidArgument,
                "of the keys that are to be copied, none is a tensor, and the "
                "format holds nothing else: {}",
                objects.empty() ? "there are none" : quoted_list(objects));
  contents.left_out += objects.size();
  metadata.objects.clear();
  metadata.common_paths.clear();
  contents.object_of.clear();
  return contents;
}

std::unique_ptr<CheckpointReader> reader_of(const CopyContents& contents,
                                            std::unique_ptr<CheckpointReader> source) {
  const Metadata& stored = source->metadata();
  RearrangedContents made{.tensors = {}, .common = contents.common};
  for (std::size_t i = 0; i < contents.tensor_of.size(); ++i) {
    const auto position = static_cast<std::uint32_t>(contents.tensor_of[i]);
    const TensorStorageMetadata& tensor = stored.tensors[position];
    made.tensors.push_back({.key = contents.metadata.tensors[i].key,
                            .properties = tensor.properties,
                            .size = tensor.global_shape(),
                            .parts = {{.target = whole(tensor.global_shape()),
                                       .tensor = position,
                                       .source = whole(tensor.global_shape())}}});
  }
  for (std::size_t i = 0; i < contents.object_of.size(); ++i)
    made.objects.push_back(
        {.key = contents.metadata.objects[i].key, .position = contents.object_of[i].position});
  return rearranged_reader(std::move(source), std::move(made));
}

namespace {

constexpr std::size_t kManyChunks = 64;  // limit per matrix
constexpr std::uint64_t kSmallChunk = std::uint64_t{64} << 10;

/// Returns the number of leading axes with extent 1 in all chunks (layers, experts). A matrix has
/// none.
std::size_t stacked_axes(const TensorStorageMetadata& tensor) {
  std::size_t axes = tensor.size.size() < 2 ? 0 : tensor.size.size() - 2;
  for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
    const ShapeView sizes = tensor.chunks.sizes(chunk);
    axes = std::min(axes, static_cast<std::size_t>(
                              std::ranges::find_if(sizes, [](auto size) { return size != 1; }) -
                              sizes.begin()));
  }
  return axes;
}

/// Cuts a tensor along its first `axes` axes. A chunk made from several files has no single place:
/// the first place stands for all.
void cut_along(TensorStorageMetadata& tensor, std::size_t axes) {
  const StorageInfo place = tensor.places.front();
  Box box = whole(tensor.size);
  std::fill_n(box.sizes.begin(), axes, 1);
  tensor.chunks = BoxList(tensor.size.size());
  tensor.places.clear();
  while (true) {
    tensor.chunks.push_back(box);
    tensor.places.push_back(place);
    std::size_t axis = axes;
    while (axis > 0 && ++box.offsets[axis - 1] == tensor.size[axis - 1]) box.offsets[--axis] = 0;
    if (axis == 0) return;
  }
}

}  // namespace

void join_small_chunks(Metadata& metadata) {
  for (TensorStorageMetadata& tensor : metadata.tensors) {
    const std::size_t chunks = tensor.chunks.size();
    if (tensor.flattened_shape || chunks <= kManyChunks || tensor.nbytes() == 0 ||
        tensor.nbytes() / chunks >= kSmallChunk)
      continue;
    const std::size_t axes = stacked_axes(tensor);
    const std::int64_t matrices =
        numel(Shape(tensor.size.begin(), tensor.size.begin() + static_cast<std::ptrdiff_t>(axes)));
    if (chunks / static_cast<std::size_t>(matrices) > kManyChunks) cut_along(tensor, axes);
  }
}

void make_chunks_equal(Metadata& metadata) {
  for (TensorStorageMetadata& tensor : metadata.tensors) {
    const Shape size = tensor.global_shape();
    if (numel(size) == 0 || (!tensor.flattened_shape && regular_chunk(tensor))) continue;
    std::int64_t step = size.empty() ? 1 : size[0];
    if (size.size() > 2 && !tensor.flattened_shape) {
      for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk)
        step = std::gcd(step,
                        std::gcd(tensor.chunks.offsets(chunk)[0], tensor.chunks.sizes(chunk)[0]));
    }
    // There are never more chunks than before: axes without layers may have no step other than 1.
    if (!size.empty() && static_cast<std::uint64_t>(size[0] / step) > tensor.chunks.size())
      step = size[0];
    const StorageInfo place = tensor.places.front();
    tensor.flattened_shape.reset();
    tensor.size = size;
    tensor.chunks = BoxList(size.size());
    tensor.places.clear();
    Box box = whole(size);
    if (!size.empty()) box.sizes[0] = step;
    for (std::int64_t begin = 0; begin < (size.empty() ? 1 : size[0]); begin += step) {
      if (!size.empty()) box.offsets[0] = begin;
      tensor.chunks.push_back(box);
      tensor.places.push_back(place);
    }
  }
}

}  // namespace dckpt
