#include "strategies/safetensors/writer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/storage_name.h"
#include "strategies/formats/safetensors/header.h"
#include "strategies/formats/safetensors/index.h"
#include "strategies/storage/buffered_file.h"

namespace dckpt {
namespace {

SafetensorsTensor tensor_of(const WriteItem& item) {
  return {item.key, item.properties.dtype, item.size};
}

const std::vector<std::pair<std::string, std::string>> kFileMetadata = {
    {kSafetensorsFramework, "pt"}};

struct ModelFile {
  std::string name;
  std::vector<std::size_t> items;  ///< positions in the plan, in the order of the file
  Bytes header{};
  std::uint64_t size = 0;  ///< size of the file
};

/// Returns a number with at least five digits: "00012".
std::string padded(std::size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

std::string_view stem_of(SafetensorsNames names) {
  return names == SafetensorsNames::kAdapter ? "adapter_model" : "model";
}

std::string final_name(std::string_view stem, std::size_t number, std::size_t count) {
  return count == 1
             ? str_format("{}.safetensors", stem)
             : str_format("{}-{}-of-{}.safetensors", stem, padded(number + 1), padded(count));
}

void require_tensor(const WriteItem& item) {
  if (item.kind == WriteItem::Kind::kTensor && equal(item.chunk.sizes, item.size)) return;
  throw_error(ErrorCode::kUnsupported, {.key = item.key},
              item.kind == WriteItem::Kind::kObject
                  ? "safetensors files hold tensors only, but this is an object"
                  : "safetensors files hold whole tensors only, but this is a part");
}

std::vector<ModelFile> plan_files(int rank, const SavePlan& plan,
                                  const SafetensorsOptions& options) {
  std::vector<ModelFile> files;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    require_tensor(plan[i]);
    if (files.empty() || bytes > options.max_file_size ||
        plan[i].nbytes > options.max_file_size - bytes) {
      files.push_back(
          {.name = str_format("rank{}-{}.safetensors", rank, files.size()), .items = {}});
      bytes = 0;
    }
    files.back().items.push_back(i);
    bytes += plan[i].nbytes;
  }
  for (ModelFile& file : files) {
    std::ranges::sort(file.items, [&](std::size_t a, std::size_t b) {
      return precedes_in_safetensors(tensor_of(plan[a]), tensor_of(plan[b]));
    });
    SafetensorsHeader header{.tensors = {}, .metadata = kFileMetadata};
    header.metadata.insert(header.metadata.end(), options.metadata.begin(), options.metadata.end());
    for (const std::size_t i : file.items) header.tensors.push_back(tensor_of(plan[i]));
    file.header = write_safetensors_header(header);
    file.size = file.header.size();
    for (const std::size_t i : file.items) file.size += plan[i].nbytes;
  }
  return files;
}

WrittenItems places_of(const std::vector<ModelFile>& files, const SavePlan& plan) {
  WrittenItems written;
  written.places.resize(plan.size());
  for (const ModelFile& file : files) {
    std::uint64_t position = file.header.size();
    for (const std::size_t i : file.items) {
      written.places[i] = {static_cast<std::uint32_t>(written.files.size()), position,
                           plan[i].nbytes};
      position += plan[i].nbytes;
    }
    written.files.push_back(file.name);
  }
  return written;
}

void write_tensor(BufferedFile& file, const WriteItem& item, ItemSource& source) {
  const std::uint64_t begin = file.position();
  source.tensor(item, [&](ByteView part) { file.append(part); });
  if (const std::uint64_t delivered = file.position() - begin; delivered != item.nbytes)
    throw_error(ErrorCode::kInvalidArgument, "the source delivered {} bytes instead of {}",
                delivered, item.nbytes);
}

}  // namespace

WrittenItems write_safetensors(Storage& storage, const std::string& directory, int rank,
                               const SavePlan& plan, ItemSource& source,
                               const SafetensorsOptions& options) {
  const WriteOptions& io = options.io;
  const std::vector<ModelFile> files = plan_files(rank, plan, options);
  parallel_for(files.size(), io.threads, [&](std::size_t index) {
    const ModelFile& planned = files[index];
    const PlannedFile file_of_plan{planned.name, plan, planned.items};
    if (source.written(file_of_plan)) return;
    BufferedFile file(
        storage.create(join_name(directory, planned.name),
                       {.size_hint = planned.size, .durable = io.fsync, .engine = io.engine}));
    file.append(planned.header);
    const auto in_order = source.in_order(plan, planned.items);
    for (const std::size_t i : planned.items)
      with_context({.key = plan[i].key, .rank = rank},
                   [&] { write_tensor(file, plan[i], in_order ? *in_order : source); });
    file.finish(io.fsync);
    source.wrote(file_of_plan, {});
  });
  return places_of(files, plan);
}

WrittenItems measure_safetensors_files(int rank, const SavePlan& plan,
                                       const SafetensorsOptions& options) {
  return places_of(plan_files(rank, plan, options), plan);
}

void name_safetensors(Storage& storage, const std::string& directory, const Metadata& metadata,
                      SafetensorsNames names) {
  const std::size_t count = metadata.files.size();
  for (std::size_t i = 0; i < count; ++i)
    storage.rename(join_name(directory, metadata.files[i]),
                   join_name(directory, final_name(stem_of(names), i, count)));
}

std::optional<MarkerFile> safetensors_marker(const Metadata& metadata, bool renamed,
                                             SafetensorsNames names) {
  const std::string_view stem = stem_of(names);
  const std::size_t count = metadata.files.size();
  if (count == 0) {  // even a checkpoint without tensors has a file
    return MarkerFile{final_name(stem, 0, 1),
                      write_safetensors_header({.tensors = {}, .metadata = kFileMetadata})};
  }
  if (count == 1 && renamed) return std::nullopt;
  SafetensorsIndex index;
  std::uint64_t total = 0;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    const std::uint32_t file = tensor.places.front().file;
    index.weight_map.emplace_back(tensor.key,
                                  renamed ? final_name(stem, file, count) : metadata.files[file]);
    total += tensor.nbytes();
  }
  return MarkerFile{str_format("{}.safetensors.index.json", stem),
                    to_bytes(write_safetensors_index(index, total))};
}

}  // namespace dckpt
