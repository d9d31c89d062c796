#include "strategies/legacy_torch/writer.h"

#include <map>
#include <string_view>
#include <utility>

#include "configs/policy/strategy_options.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/storage_name.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/buffered_file.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kTensorOverhead = 450;  // bytes per tensor in a file: pickle and archive

/// A file, and the items of the plan that go into it: first the state of the rank, then its
/// tensors.
struct DataFile {
  std::string name;
  std::vector<std::size_t> items;
};

std::vector<DataFile> plan_files(const SavePlan& plan) {
  std::vector<DataFile> files;
  std::map<std::string, std::size_t, std::less<>> by_folder;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (plan[i].kind != WriteItem::Kind::kObject) continue;
    by_folder.emplace(parent_name(plan[i].key), files.size());
    files.push_back({plan[i].key, {i}});
  }
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const WriteItem& item = plan[i];
    if (item.kind != WriteItem::Kind::kTensor) continue;
    const auto folder = by_folder.find(item.key.substr(0, item.key.find('/')));
    if (folder == by_folder.end() || !equal(item.chunk.sizes, item.size))
      throw_error(ErrorCode::kInvalidArgument, {.key = item.key},
                  "the tensor is not one that a rank's file holds");
    files[folder->second].items.push_back(i);
  }
  return files;
}

/// Splits a key after its folder: "mp_rank_00/model.decoder.…" → "model" and "decoder.…".
std::pair<std::string, std::string> path_of(const std::string& key) {
  const std::size_t slash = key.find('/');
  const std::size_t dot = key.find('.', slash);
  return {key.substr(slash + 1, dot - slash - 1), key.substr(dot + 1)};
}

std::uint64_t size_of(const DataFile& file, const SavePlan& plan) {
  std::uint64_t size = 0;
  for (const std::size_t item : file.items) size += plan[item].nbytes + kTensorOverhead;
  return size;
}

/// Checks the places that this writer passed to wrote(); only damaged notes have others.
void require_places(const std::vector<StorageInfo>& places, const DataFile& file) {
  if (places.size() == file.items.size()) return;
  throw_error(ErrorCode::kCorrupt, {.file = file.name},
              "the interrupted attempt put {} into the file, not {}; convert without "
              "--resume",
              counted(places.size(), "item"), file.items.size());
}

/// Puts a tensor without elements into the place of each tensor. Returns the items of these, in the
/// order of the state.
std::vector<std::size_t> insert_tensors(Value& state, const SavePlan& plan, const DataFile& file) {
  std::map<std::string, std::map<std::string, std::size_t>> models;
  for (std::size_t k = 1; k < file.items.size(); ++k) {
    auto [model, path] = path_of(plan[file.items[k]].key);
    models[std::move(model)].emplace(std::move(path), file.items[k]);
  }
  std::vector<std::size_t> order;
  Dict& entries = state.mutable_dict();
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    const Value& name = entries.items()[entry].first;
    const auto found = models.find(name.is_str() ? name.as_str() : "");
    if (found == models.end()) continue;
    Dict& model = entries.value_at(entry).mutable_dict();
    for (std::size_t i = 0; i < model.size(); ++i) {
      const auto node = found->second.extract(model.items()[i].first.as_str());
      if (node.empty()) continue;
      const WriteItem& item = plan[node.mapped()];
      model.value_at(i) = Tensor::meta(item.properties.dtype, item.size);
      if (item.nbytes > 0) order.push_back(node.mapped());
    }
  }
  for (const auto& [name, left] : models) {
    if (!left.empty())
      throw_error(ErrorCode::kInternal, {.key = plan[left.begin()->second].key},
                  "the rank's state has no place for this tensor");
  }
  return order;
}

class RankFolderStrategy final : public SaveStrategy {
 public:
  explicit RankFolderStrategy(const SaveOptions& options) : io_(options.io) {
    refuse_file_options(io_, "a rank's folder has one file, as torch.save writes it");
  }

  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
    const std::vector<DataFile> files = plan_files(plan);
    WrittenItems written;
    written.places.resize(plan.size());
    for (const DataFile& file : files) {
      written.files.push_back(file.name);
      storage.make_directory(join_name(directory, parent_name(file.name)));
    }
    parallel_for(files.size(), io_.threads, [&](std::size_t index) {
      const DataFile& file = files[index];
      const PlannedFile planned{file.name, plan, file.items};
      const auto kept = source.written(planned);
      const std::vector<StorageInfo> places =
          kept ? *kept : with_context({.key = file.name, .rank = rank}, [&] {
            return write_file(storage, directory, file, plan, source);
          });
      require_places(places, file);
      for (std::size_t k = 0; k < places.size(); ++k) {
        written.places[file.items[k]] = places[k];
        written.places[file.items[k]].file = static_cast<std::uint32_t>(index);
      }
      if (!kept) source.wrote(planned, places);
    });
    return written;
  }

  std::optional<MarkerFile> marker(const Storage&, const Metadata&,
                                   const CommonState*) const override {
    return std::nullopt;
  }

 private:
  /// Returns the places of the file's items.
  std::vector<StorageInfo> write_file(Storage& storage, const std::string& directory,
                                      const DataFile& planned, const SavePlan& plan,
                                      ItemSource& source) const {
    const WriteItem& rest = plan[planned.items.front()];
    Value state = load_torch_bytes(source.object(rest), planned.name);
    const std::vector<std::size_t> tensors = insert_tensors(state, plan, planned);
    BufferedFile file(storage.create(
        join_name(directory, planned.name),
        {.size_hint = size_of(planned, plan), .durable = io_.fsync, .engine = io_.engine}));
    std::map<std::size_t, StorageInfo> places;
    const auto append = [&](ByteView part) { file.append(part); };
    const auto elements = [&](std::size_t number, const std::function<void(ByteView)>& sink) {
      const WriteItem& item = plan[tensors[number]];
      places[tensors[number]] = {0, file.position(), item.nbytes};
      with_context({.key = item.key}, [&] { source.tensor(item, sink); });
    };
    const std::string name = base_name(planned.name);
    save_torch_file(state, elements, append,
                    {.prefix = name.substr(0, name.rfind('.')), .crc = io_.checksums});
    places[planned.items.front()] = {0, 0, file.position()};
    file.finish(io_.fsync);
    std::vector<StorageInfo> in_order;
    for (const std::size_t item : planned.items) in_order.push_back(places[item]);
    return in_order;
  }

  WriteOptions io_;
};

}  // namespace

std::unique_ptr<SaveStrategy> make_rank_folder_strategy(const SaveOptions& options) {
  return std::make_unique<RankFolderStrategy>(options);
}

WrittenItems measure_rank_folders(const SaveOptions&, int, const SavePlan& plan) {
  WrittenItems written;
  written.places.resize(plan.size());
  for (const DataFile& file : plan_files(plan)) {
    for (const std::size_t item : file.items)
      written.places[item] = {static_cast<std::uint32_t>(written.files.size()), 0,
                              plan[item].nbytes + kTensorOverhead};
    written.files.push_back(file.name);
  }
  return written;
}

}  // namespace dckpt
