#include "operations/convert/model/common_form.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/renamed_path.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/tree.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxCommonBytes = std::uint64_t{16} << 30;

/// Returns the unchanged bytes of a torch file, or of a record in a data file.
Bytes carried(const CheckpointReader& reader, const std::string& name,
              const std::optional<StorageInfo>& place, bool check) {
  const auto file = reader.storage().open(name);
  const std::uint64_t offset = place ? place->offset : 0;
  const std::uint64_t length = place ? place->length : file->size();
  return with_context({.file = file->name(), .offset = offset}, [&] {
    if (length > kMaxCommonBytes || !range_fits(offset, length, file->size())) {
      throw_error(ErrorCode::kCorrupt,
                  "the common state should have {} bytes here, but the file has {}",
                  grouped(length), grouped(file->size()));
    }
    if (check) check_torch_file(*file, offset, length);
    Bytes bytes(length);
    file->read(offset, bytes);
    return bytes;
  });
}

/// Moves plain objects into the common state, which is returned; empty if there are none.
std::optional<Value> move_plain_objects(CopyContents& contents, const CheckpointReader& reader) {
  Metadata& metadata = contents.metadata;
  std::unordered_map<std::string, KeyPath> paths(metadata.paths.begin(), metadata.paths.end());
  std::vector<BytesStorageMetadata> objects;
  std::vector<ObjectSource> sources;
  std::vector<std::pair<KeyPath, Value>> leaves;
  std::unordered_set<std::string> moved;
  for (std::size_t i = 0; i < metadata.objects.size(); ++i) {
    const std::string& key = metadata.objects[i].key;
    if (ShardedObject::is_unique_key(key)) {
      objects.push_back(metadata.objects[i]);
      sources.push_back(contents.object_of[i]);
      continue;
    }
    const auto path = paths.find(key);
    leaves.emplace_back(path == paths.end() ? KeyPath{key} : path->second,
                        reader.object(contents.object_of[i].position));
    metadata.common_paths.emplace_back(key, leaves.back().first);
    moved.insert(key);
  }
  if (leaves.empty()) return std::nullopt;
  std::erase_if(metadata.paths, [&](const auto& entry) { return moved.contains(entry.first); });
  metadata.objects = std::move(objects);
  contents.object_of = std::move(sources);
  contents.findings.push_back(
      {FindingCode::kFormChanged,
       grouped(leaves.size()) + " plain values of the DCP directory became the common state"});
  Value common = reader.common_state();
  if (common.is_none()) common = Value::dict();
  return merge(std::move(common), unflatten_state_dict(leaves));
}

/// Removes an element from a nested dict, with the dicts and lists that become empty. Positions in
/// lists stay: the removed item becomes none.
void remove_element(Value& tree, std::span<const PathElement> path) {
  const auto is_empty = [](const Value& value) {
    return value.is_dict()
               ? value.size() == 0
               : value.is_list() && std::ranges::all_of(value.items(), [](const Value& item) {
                   return item.is_none();
                 });
  };
  const auto* const name = std::get_if<std::string>(&path.front());
  Value* const inner =
      name != nullptr
          ? tree.mutable_dict().find(Value(*name))
          : &tree.mutable_items()[static_cast<std::size_t>(std::get<std::int64_t>(path.front()))];
  if (path.size() > 1) {
    remove_element(*inner, path.subspan(1));
    if (!is_empty(*inner)) return;
  }
  if (name != nullptr)
    tree.mutable_dict().erase(Value(*name));
  else
    *inner = Value();
}

/// Inverts move_plain_objects(): values that a conversion moved into the common state become
/// objects again, and `common` keeps the rest. Returns whether anything was moved.
bool restore_plain_objects(CopyContents& contents, const CheckpointReader& reader,
                           const Conventions& conventions, Value& common) {
  Metadata& metadata = contents.metadata;
  if (reader.metadata().common_paths.empty()) return false;
  const std::size_t before = metadata.objects.size();
  for (const auto& [key, path] : std::exchange(metadata.common_paths, {})) {
    const Value* const found = find_element(common, path);
    if (found == nullptr) continue;
    Bytes bytes = stored_object(*found, conventions);
    metadata.objects.push_back({key, {.length = bytes.size()}});
    if (path.size() > 1 || !metadata.paths.empty())
      metadata.paths.emplace_back(key, dotted_name(path) == key ? path : renamed_path(path, key));
    contents.object_of.push_back({.bytes = std::move(bytes)});
  }
  for (const auto& [key, path] : reader.metadata().common_paths) {
    if (find_element(common, path) != nullptr) remove_element(common, path);
  }
  contents.findings.push_back(
      {FindingCode::kFormChanged,
       grouped(metadata.objects.size() - before) +
           " values of the common state are objects of the DCP directory again"});
  if (common.size() == 0) common = Value();
  return true;
}

/// Returns the path of a tensor in a nested state dict, of which `rest` is the part without
/// tensors. Keys may contain dots.
KeyPath place_in(const Value& rest, std::string_view key) {
  KeyPath path;
  const Value* at = &rest;
  while (at != nullptr) {
    const Value* inner = nullptr;
    if (const auto* const items = mapping_items(*at)) {
      for (const auto& [name, item] : *items) {
        const std::optional<std::string> text = key_text(name);
        if (!text || !key.starts_with(*text + ".") ||
            (mapping_items(item) == nullptr && !item.is_list()))
          continue;
        path.emplace_back(*text);
        key.remove_prefix(text->size() + 1);
        inner = &item;
        break;
      }
    } else if (const auto position = parse_u64(key.substr(0, key.find('.')))) {
      path.emplace_back(static_cast<std::int64_t>(*position));
      if (key.find('.') == key.npos) return path;
      key.remove_prefix(key.find('.') + 1);
      if (*position < at->size()) inner = &at->items()[static_cast<std::size_t>(*position)];
    }
    at = inner;
  }
  path.emplace_back(std::string(key));
  return path;
}

/// The values of a common state that can be objects under their paths, and the entries of its top
/// level that cannot, with the reason for the first.
struct SpreadCommon {
  std::vector<FlatLeaf> values;
  std::vector<std::string> left_out;
  std::string why;
};

/// Finds values for names that are not taken. In a list of tensors and values, each value is
/// separate.
SpreadCommon values_by_path(const Value& common, const Metadata& metadata) {
  std::unordered_set<std::string> taken;  // keys, and the names of their containers
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    for (std::size_t dot = tensor.key.find('.'); dot != std::string::npos;
         dot = tensor.key.find('.', dot + 1))
      taken.insert(tensor.key.substr(0, dot));
    taken.insert(tensor.key);
  }
  for (const BytesStorageMetadata& object : metadata.objects) taken.insert(object.key);
  std::unordered_set<std::string> names;
  const auto values_of = [&](const Value& key, const Value& item) {
    std::vector<FlatLeaf> values;
    for (FlatLeaf& leaf : flatten_state_dict(Value::dict({{key, item}}), FlattenRule::kKeepEmpty)) {
      if (!names.insert(leaf.name).second)
        throw_error(ErrorCode::kMismatch, "two values have this name");
      if (!taken.contains(leaf.name)) {
        values.push_back(std::move(leaf));
      } else if (leaf.value.is_list()) {
        for (std::size_t i = 0; i < leaf.value.size(); ++i) {
          FlatLeaf part{str_format("{}.{}", leaf.name, i), leaf.path, leaf.value.items()[i]};
          part.path.emplace_back(static_cast<std::int64_t>(i));
          if (!part.value.is_none()) values.push_back(std::move(part));
        }
      } else if (!leaf.value.is_none() && mapping_items(leaf.value) == nullptr) {
        throw_error(ErrorCode::kMismatch, "a tensor has this name, too");
      }
    }
    return values;
  };
  SpreadCommon spread;
  for (const auto& [key, item] : common.as_dict()) {
    try {
      std::ranges::move(values_of(key, item), std::back_inserter(spread.values));
    } catch (const CheckpointError& error) {
      if (spread.left_out.empty()) spread.why = error.message();
      spread.left_out.push_back(key_text(key).value_or(to_string(key.kind())));
    }
  }
  return spread;
}

/// Stores the common state in DCP's form: values become objects under their paths. In a torch.save
/// file of a training loop other than Megatron's, values were stored beside its tensors and become
/// ordinary objects; `common` is none afterwards. Otherwise they are copies, since paths preserve
/// neither kinds of keys nor sharing between values. Returns whether `common` has changed.
bool spread_common(CopyContents& contents, const CheckpointReader& reader,
                   const Conventions& conventions, Value& common) {
  if (!common.is_dict() || common.size() == 0) return false;
  Metadata& metadata = contents.metadata;
  SpreadCommon spread = values_by_path(common, metadata);
  const bool copies =
      !reader.info().single_file || common.find("args") != nullptr || !spread.left_out.empty();
  std::unordered_set<std::string> placed;
  for (const auto& [key, path] : metadata.paths) placed.insert(key);
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (!placed.contains(tensor.key))
      metadata.paths.emplace_back(tensor.key, place_in(common, tensor.key));
  }
  for (FlatLeaf& leaf : spread.values) {
    Bytes bytes = stored_object(leaf.value, conventions);
    metadata.objects.push_back({leaf.name, {.length = bytes.size()}});
    if (copies) metadata.common_paths.emplace_back(leaf.name, leaf.path);
    metadata.paths.emplace_back(std::move(leaf.name), std::move(leaf.path));
    contents.object_of.push_back({.bytes = std::move(bytes)});
  }
  if (!spread.values.empty())
    contents.findings.push_back(
        {FindingCode::kFormChanged,
         str_format("{} of the common state {} {}under {} in the DCP directory",
                    counted(spread.values.size(), "value"),
                    spread.values.size() == 1 ? "is" : "are", copies ? "also " : "",
                    spread.values.size() == 1 ? "its path" : "their paths")});
  if (!spread.left_out.empty())
    contents.findings.push_back(
        {FindingCode::kFormKept, str_format("PyTorch finds {} only inside the common state: {}",
                                            quoted_list(spread.left_out), spread.why)});
  if (!copies) common = Value();
  return !copies;
}

/// Removes the entries of a nested dict whose paths match, and adds the paths to `gone`.
void drop_entries(Value& tree, const std::string& prefix, const std::string& pattern,
                  std::vector<std::string>& gone) {
  const Value before = tree;
  for (const auto& [key, item] : before.as_dict()) {
    const std::optional<std::string> name = key_text(key);
    if (!name) continue;
    const std::string path = prefix + *name;
    if (glob_match(pattern, path)) {
      tree.mutable_dict().erase(key);
      gone.push_back(path);
    } else if (item.is_dict()) {
      Value inner = item;
      const std::size_t count = gone.size();
      drop_entries(inner, path + ".", pattern, gone);
      if (gone.size() > count) tree[key] = std::move(inner);
    }
  }
}

/// Shows another reader's checkpoint with another common state.
class WithCommonState final : public ForwardingReader {
 public:
  WithCommonState(std::shared_ptr<const CheckpointReader> source, Value common)
      : ForwardingReader(std::move(source)), info_(source_->info()), common_(std::move(common)) {
    info_.common_file.reset();  // so that its bytes are not copied
    info_.common_places.clear();
  }
  const CheckpointInfo& info() const noexcept override { return info_; }
  Value common_state() const override { return common_; }

 private:
  CheckpointInfo info_;
  Value common_;
};

void add_object(CopyContents& contents, Bytes bytes) {
  contents.common_object = contents.object_of.size();
  contents.object_of.push_back({.bytes = std::move(bytes)});
}

}  // namespace

CopyContents with_common_state(CopyContents contents, const CheckpointReader& reader,
                               const ChosenTarget& target, bool check) {
  const CheckpointInfo& info = reader.info();
  const Conventions& conventions = target.format->conventions;
  const bool from_paths = info.conventions.keys_are_paths;
  const bool to_paths = conventions.keys_are_paths;
  std::optional<Value> changed;
  if (from_paths && !to_paths) changed = move_plain_objects(contents, reader);
  if (to_paths && !(from_paths && info.common_places.size() == 1)) {
    Value common = reader.common_state();
    const bool restored = restore_plain_objects(contents, reader, conventions, common);
    if (spread_common(contents, reader, conventions, common) || restored)
      changed = std::move(common);
  }

  const bool as_object = common_form(target.save.compat) == CommonForm::kObject;
  if (!changed && !as_object && info.common_file) {
    Bytes archive = carried(reader, *info.common_file, {}, check);
    contents.common = reader.common_state();
    contents.common_file.emplace(contents.common, std::move(archive));
    return contents;
  }
  if (!changed && as_object && !info.common_places.empty() && to_paths == from_paths) {
    const StorageInfo& place = info.common_places.front();
    add_object(contents, carried(reader, reader.metadata().files[place.file], place, check));
    contents.common = reader.common_state();
    return contents;
  }
  contents.common = changed ? *std::move(changed) : reader.common_state();
  if (contents.common.is_none() && to_paths) return contents;
  const Value common = contents.common.is_none() ? Value::dict() : contents.common;
  if (as_object) {
    add_object(contents, stored_object(common, conventions));
    if (info.common_file)
      contents.findings.push_back({FindingCode::kFormChanged,
                                   str_format("the common state moved from {} into the object {}",
                                              kCommonFile, kCommonStateKey)});
    return contents;
  }
  contents.common_file.emplace(common);
  if (!info.common_places.empty() && target.format->capabilities.common_state)
    contents.findings.push_back(
        {FindingCode::kFormChanged,
         str_format("the common state moved from an object into {}, which every Megatron reads",
                    kCommonFile)});
  return contents;
}

View without_common_entries(std::unique_ptr<CheckpointReader> reader,
                            std::vector<std::string>& exclude) {
  const Metadata& metadata = reader->metadata();
  const auto matches_a_key = [&](const std::string& pattern) {
    const KeyFilter filter{.include = {pattern}};
    return std::ranges::any_of(metadata.tensors, filter, &TensorStorageMetadata::key) ||
           std::ranges::any_of(metadata.objects, [&](const BytesStorageMetadata& object) {
             return filter.object(object.key);
           });
  };
  std::vector<std::string> gone;
  Value common;
  std::erase_if(exclude, [&](const std::string& pattern) {
    if (matches_a_key(pattern)) return false;
    if (common.is_none()) common = reader->common_state();
    const std::size_t count = gone.size();
    if (common.is_dict()) drop_entries(common, "", pattern, gone);
    return gone.size() > count;
  });
  if (gone.empty()) return {std::move(reader)};
  Finding left_out{FindingCode::kKeysLeftOut, "left out of the common state: " + quoted_list(gone),
                   gone};
  return {std::make_unique<WithCommonState>(std::move(reader), std::move(common)),
          {std::move(left_out)}};
}

}  // namespace dckpt
