// How ranks load together: each reads what it wants by itself. Everything that can be wrong with names, shapes and files is found out and
// agreed upon before the first tensor byte moves; what the ranks exchange is errors, and the keys they ask for when the strict mode needs them.

#include "dist_checkpointing/load.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <unordered_map>

#include "configs/rename.h"
#include "dist_checkpointing/open.h"
#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"
#include "mapping/planning/validate.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_tree.h"
#include "strategies/comm/agree.h"
#include "strategies/describe.h"
#include "strategies/read_tensors.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

constexpr std::size_t kShownProblems = 20;

bool checks_unexpected(Strict strict) { return strict != Strict::kAssumeOkUnexpected; }
bool raises(Strict strict) { return strict == Strict::kRaiseUnexpected || strict == Strict::kRaiseAll; }
bool logs(Strict strict) { return strict == Strict::kLogUnexpected || strict == Strict::kLogAll; }
bool returns(Strict strict) { return strict == Strict::kReturnUnexpected || strict == Strict::kReturnAll; }
bool reports_missing(Strict strict) { return strict == Strict::kLogAll || strict == Strict::kRaiseAll || strict == Strict::kReturnAll; }

/// Many things that are wrong, in one error.
class Problems {
 public:
  void add(std::string line) {
    if (lines_.size() < kShownProblems) lines_.push_back(std::move(line));
    ++count_;
  }
  void raise_if_any(ErrorCode code, const std::string& what) const {
    if (count_ == 0) return;
    std::string message = what;
    for (const std::string& line : lines_) message += "\n  " + line;
    if (count_ > lines_.size()) message += "\n  … and " + grouped(count_ - lines_.size()) + " more";
    throw CheckpointError(code, message);
  }

 private:
  std::vector<std::string> lines_;
  std::size_t count_ = 0;
};

/// Names of what is stored, as the rules rename them, with positions, and suggestions for what is not.
class StoredKeys {
 public:
  StoredKeys(const Metadata& metadata, std::span<const RenameRule> rules) {
    const KeyRenamer renamed(rules);
    for (std::uint32_t i = 0; i < metadata.tensors.size(); ++i) add(tensors_, renamed(metadata.tensors[i].key), i, metadata.tensors);
    for (std::uint32_t i = 0; i < metadata.objects.size(); ++i) {
      const std::string& stored = metadata.objects[i].key;
      const std::size_t suffix = std::min(stored.rfind("/shard_"), stored.size());
      const std::string key = renamed(stored.substr(0, suffix));
      add(objects_, key + stored.substr(suffix), i, metadata.objects);
      object_keys_.insert(key);
    }
    ambiguous_.raise_if_any(ErrorCode::kMismatch, "the rules of load.rename give several stored keys the same name:");
  }

  std::optional<std::uint32_t> tensor(const std::string& key) const { return position(tensors_, key); }
  std::optional<std::uint32_t> object(const std::string& unique_key) const { return position(objects_, unique_key); }

  /// Keys as Megatron compares them: of tensors, and of objects without their grid.
  std::set<std::string> all() const {
    std::set<std::string> keys = object_keys_;
    for (const auto& [key, index] : tensors_) keys.insert(key);
    return keys;
  }

  std::string describe_unknown(const std::string& key) const {
    if (names_.empty()) {
      for (const auto& [name, index] : tensors_) names_.push_back(name);
      for (const auto& [name, index] : objects_) names_.push_back(name);
    }
    const auto close = nearest(key, names_);
    return dckpt::quoted(key) + (close ? " (the checkpoint has " + dckpt::quoted(*close) + ")" : "");
  }

 private:
  using Index = std::unordered_map<std::string, std::uint32_t>;

  template <typename Entries>
  void add(Index& index, std::string key, std::uint32_t i, const Entries& entries) {
    const auto [found, inserted] = index.try_emplace(std::move(key), i);
    if (!inserted && entries[found->second].key != entries[i].key) {
      ambiguous_.add(dckpt::quoted(entries[found->second].key) + " and " + dckpt::quoted(entries[i].key) + " both become " + dckpt::quoted(found->first));
    }
  }

  static std::optional<std::uint32_t> position(const Index& index, const std::string& key) {
    const auto found = index.find(key);
    if (found == index.end()) return std::nullopt;
    return found->second;
  }
  Index tensors_;
  Index objects_;
  std::set<std::string> object_keys_;
  Problems ambiguous_;
  mutable std::vector<std::string> names_;
};

/// What is to be read, collected from the leaves.
struct Request {
  std::vector<WantedShard> wanted;
  std::vector<Tensor> destinations;
};

/// That every file a plan reads from is there and long enough: before the first byte moves, not in the middle.
void check_files(const CheckpointReader& reader, std::span<const ReadItem> items) {
  const Metadata& metadata = reader.metadata();
  std::map<std::uint32_t, std::uint64_t> needed;  // file → end of the last chunk
  for (const ReadItem& item : items) {
    const Place& place = metadata.tensors[item.tensor].places[item.chunk];
    auto& end = needed[place.file];
    end = std::max(end, place.offset + place.length);
  }
  Problems problems;
  for (const auto& [file, end] : needed) {
    const auto info = reader.storage().stat(metadata.files[file]);
    const std::string name = dckpt::quoted(reader.storage().describe(metadata.files[file]));
    if (!info) {
      problems.add(name + " is missing");
    } else if (info->kind == FileInfo::Kind::kRegular && info->size < end) {
      problems.add(name + " has " + grouped(info->size) + " bytes, but " + grouped(end) + " are needed: it is truncated");
    }
  }
  problems.raise_if_any(ErrorCode::kIncomplete, "data files of the checkpoint are incomplete (copy it again, or choose another iteration):");
}

class Loading {
 public:
  Loading(StateDict& state, const std::filesystem::path& path, const LoadOptions& options, Communicator& comm) : state_(state), path_(path), options_(options), comm_(comm) {}

  LoadReport run() {
    agree(comm_, "opening the checkpoint", [&] {
      reader_ = open_checkpoint(path_);
      if (options_.strategy != "auto" && options_.strategy != reader_->info().format) {
        throw CheckpointError(ErrorCode::kMismatch, "the checkpoint has the format '" + reader_->info().format + "', but load.strategy asks for " + dckpt::quoted(options_.strategy) +
                                                        "; 'auto' takes what is there", {.file = path_.string()});
      }
      keys_.emplace(reader_->metadata(), options_.rename);
      common_ = reader_->common_state();
    });
    reader_->info().format == "dcp" && common_.is_none() ? load_dcp() : load_megatron();
    return std::move(report_);
  }

 private:
  /// Common state, sharded leaves by key, local leaves, factories.
  void load_megatron() {
    LoadRequest request;
    agree(comm_, "reading the request", [&] { request = split_for_load(state_); });
    check_keys(request.sharded);
    agree(comm_, "checking the request against the checkpoint", [&] {
      request.sharded = map_leaves(std::move(request.sharded), [&](Value leaf) { return prepare_leaf(std::move(leaf)); });
      finish_preparation();
    });
    agree(comm_, "reading tensors", [&] { read(); });
    agree(comm_, "reading objects", [&] {
      Value loaded = map_leaves(std::move(request.sharded), [&](Value leaf) { return leaf.is(Value::Kind::kShardedObject) ? read_object(leaf.as_sharded_object()) : leaf; });
      Value base = common_.is_none() ? Value::dict() : common_;
      if (!request.local.is_none()) base = merge(std::move(base), std::move(request.local));
      if (!loaded.is_none()) base = merge(std::move(base), std::move(loaded));
      state_ = merge_factories(std::move(base), request.factories);
    });
  }

  /// Finds out which keys are asked for but not stored, and the other way round, and does with them what the strict mode says.
  void check_keys(Value& sharded) {
    const ShardedLeaves leaves = collect_sharded(sharded);
    std::set<std::string> asked;
    std::set<std::string> unexpected;
    const std::set<std::string> stored = keys_->all();
    for (const ShardedTensor* const tensor : leaves.tensors) asked.insert(tensor->key);
    for (const ShardedObject* const object : leaves.objects) asked.insert(object->key);
    std::set_difference(asked.begin(), asked.end(), stored.begin(), stored.end(), std::inserter(unexpected, unexpected.end()));
    std::set<std::string> missing;
    if (reports_missing(options_.strict)) missing = find_missing(asked, stored);
    if (!checks_unexpected(options_.strict)) return;
    agree(comm_, "comparing keys", [&] {
      if (raises(options_.strict) && !(unexpected.empty() && missing.empty())) throw CheckpointError(ErrorCode::kMismatch, mismatch_message(missing, unexpected));
    });
    if (logs(options_.strict) && !(unexpected.empty() && missing.empty())) log_warning(mismatch_message(missing, unexpected));
    if (returns(options_.strict)) {
      report_.missing.assign(missing.begin(), missing.end());
      report_.unexpected.assign(unexpected.begin(), unexpected.end());
    }
    if (unexpected.empty()) return;
    sharded = extract_matching(sharded, [&](const Value& leaf) {
                const std::string& key = leaf.is(Value::Kind::kShardedTensor) ? leaf.as_sharded_tensor().key : leaf.as_sharded_object().key;
                return !unexpected.contains(key);
              }).matching;
  }

  std::set<std::string> find_missing(const std::set<std::string>& asked, const std::set<std::string>& stored) {
    Bytes mine;
    WireWriter writer(mine);
    writer.number(asked.size());
    for (const std::string& key : asked) writer.text(key);
    const std::vector<Bytes> all = comm_.all_gather(mine);
    std::set<std::string> missing = stored;
    agree(comm_, "collecting the keys of all ranks", [&] {
      for (const Bytes& bytes : all) {
        WireReader reader(bytes, "a rank's list of keys");
        for (std::size_t count = reader.count(); count > 0; --count) missing.erase(reader.text());
        reader.finish();
      }
    });
    return missing;
  }

  static std::string mismatch_message(const std::set<std::string>& missing, const std::set<std::string>& unexpected) {
    const auto braced = [](const std::set<std::string>& keys) {
      const std::vector<std::string> list(keys.begin(), keys.end());
      return "{" + quoted_list(list, kShownProblems) + "}. ";
    };
    std::string message;
    if (!missing.empty()) message += "Some keys found in the checkpoint are missing in the provided sharded state dict. ";
    if (!unexpected.empty()) message += "Unexpected keys (not found in the checkpoint) encountered in the provided sharded state dict. ";
    message += "\n";
    if (!missing.empty()) message += "Missing keys (for all ranks): " + braced(missing);
    if (!unexpected.empty()) message += "Unexpected keys (for this rank): " + braced(unexpected);
    return message;
  }

  /// Replaces a ShardedTensor by the tensor that will be filled. Objects stay until they are read.
  Value prepare_leaf(Value leaf) {
    if (leaf.is(Value::Kind::kShardedObject)) {
      const ShardedObject& object = leaf.as_sharded_object();
      if (!keys_->object(object.unique_key())) unknown_.add(keys_->describe_unknown(object.unique_key()));
      return leaf;
    }
    const ShardedTensor& shard = leaf.as_sharded_tensor();
    shard.validate();
    const auto stored = keys_->tensor(shard.key);
    if (!stored) {
      unknown_.add(keys_->describe_unknown(shard.key));
      return leaf;
    }
    WantedShard wanted = describe_wanted(shard);
    wanted.tensor = *stored;
    const bool clip = shard.allow_shape_mismatch || mismatch_allowed(shard.key);
    if (!compare(shard.key, shard.global_shape, shard.dtype, *stored, clip)) return leaf;
    Tensor data = shard.data && shard.data->has_data() ? *shard.data : Tensor::empty(shard.dtype, shard.data_shape());
    wanted.clip = clip;
    wanted.strides = destination_strides(data, shard.flattened_range ? 0 : static_cast<std::size_t>(shard.prepend_axis_num));
    if (clip && !equal(shard.global_shape, reader_->metadata().tensors[*stored].global_shape())) to_zero_.push_back(data);
    return add_destination(std::move(wanted), std::move(data));
  }

  static Shape destination_strides(const Tensor& data, std::size_t prepended) {
    Shape strides(prepended, 0);
    strides.insert(strides.end(), data.strides().begin(), data.strides().end());
    return strides;
  }

  bool mismatch_allowed(const std::string& key) const {
    return std::any_of(options_.allow_shape_mismatch.begin(), options_.allow_shape_mismatch.end(), [&](const std::string& pattern) { return glob_match(pattern, key); });
  }

  /// Whether what is stored is of the wanted kind; notes why not.
  bool compare(const std::string& key, ShapeView shape, DType dtype, std::uint32_t stored, bool clip) {
    const TensorMetadata& tensor = reader_->metadata().tensors[stored];
    if (tensor.properties.dtype != dtype) {
      different_.add("dtype mismatch for loaded (" + std::string(to_string(tensor.properties.dtype)) + ") and expected (" + std::string(to_string(dtype)) + ") tensor for key " + dckpt::quoted(key) +
                     "; convert the destination, nothing is cast silently");
      return false;
    }
    if (equal(tensor.global_shape(), shape) || (clip && tensor.global_shape().size() == shape.size())) return true;
    different_.add("Global shape mismatch for loaded (" + to_string(tensor.global_shape()) + ") and expected (" + to_string(shape) + ") tensor for key " + dckpt::quoted(key));
    return false;
  }

  Value add_destination(WantedShard wanted, Tensor data) {
    if (data.device().kind != Device::Kind::kCpu) {
      different_.add("the destination of " + dckpt::quoted(reader_->metadata().tensors[wanted.tensor].key) + " is not in CPU memory; load into CPU memory and copy from there");
    }
    wanted.destination = static_cast<std::uint32_t>(request_.destinations.size());
    request_.wanted.push_back(std::move(wanted));
    request_.destinations.push_back(data);
    return Value(std::move(data));
  }

  void finish_preparation() {
    unknown_.raise_if_any(ErrorCode::kMismatch, "keys are asked for that the checkpoint does not have:");
    different_.raise_if_any(ErrorCode::kMismatch, "the request does not fit what is stored:");
    Problems uncovered;
    std::set<std::uint32_t> checked;
    for (const WantedShard& wanted : request_.wanted) {
      if (!checked.insert(wanted.tensor).second) continue;
      for (const Problem& problem : validate_coverage(reader_->metadata().tensors[wanted.tensor])) uncovered.add(dckpt::quoted(problem.key) + ": " + problem.message);
    }
    uncovered.raise_if_any(ErrorCode::kCorrupt, "the stored chunks do not make up the tensors:");
    items_ = plan_reads(reader_->metadata(), request_.wanted);
    check_files(*reader_, items_);
  }

  void read() {
    for (const Tensor& tensor : to_zero_) fill_zero(tensor);
    const ReadStats stats = read_tensors(*reader_, items_, request_.destinations, {.threads = options_.threads, .staging = options_.staging});
    report_.bytes_wanted = stats.bytes_wanted;
    report_.bytes_read = stats.bytes_read;
  }

  static void fill_zero(const Tensor& tensor) {
    if (tensor.numel() == 0) return;
    const Tensor zeros = Tensor::zeros(tensor.dtype(), tensor.shape());
    strided_copy(tensor.shape(), item_size(tensor.dtype()), zeros.data(), {0, zeros.strides()}, tensor.data(), {0, tensor.strides()});
  }

  Value read_object(const ShardedObject& object) const { return reader_->object(*keys_->object(object.unique_key())); }

  /// A plain DCP directory: every leaf under its path.
  void load_dcp() {
    std::vector<FlatLeaf> leaves;
    std::vector<std::pair<KeyPath, Value>> loaded;
    const bool partial = options_.strict != Strict::kAssumeOkUnexpected && !raises(options_.strict);
    agree(comm_, "checking the request against the checkpoint", [&] {
      leaves = flatten_state_dict(state_);
      for (FlatLeaf& leaf : leaves) loaded.emplace_back(leaf.path, prepare_flat(leaf, partial));
      finish_preparation();
    });
    agree(comm_, "reading tensors", [&] { read(); });
    agree(comm_, "reading objects", [&] {
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        if (loaded[i].second.is_tensor()) continue;
        if (const auto object = keys_->object(leaves[i].name)) loaded[i].second = reader_->object(*object);
      }
      for (auto& [path, value] : loaded) set_element(state_, path, std::move(value));
    });
  }

  Value prepare_flat(const FlatLeaf& leaf, bool partial) {
    if (leaf.value.is(Value::Kind::kShardedTensor)) {
      if (partial && !keys_->tensor(leaf.value.as_sharded_tensor().key)) return leaf.value;
      return prepare_leaf(leaf.value);
    }
    const auto tensor = keys_->tensor(leaf.name);
    if (!tensor) {
      if (!keys_->object(leaf.name)) {
        if (!partial) unknown_.add(keys_->describe_unknown(leaf.name));
        if (partial) report_.unexpected.push_back(leaf.name);
      }
      return leaf.value;
    }
    const TensorMetadata& stored = reader_->metadata().tensors[*tensor];
    WantedShard wanted;
    wanted.tensor = *tensor;
    wanted.box = whole(stored.global_shape());
    if (!leaf.value.is_tensor()) return add_destination(std::move(wanted), Tensor::empty(stored.properties.dtype, stored.global_shape()));
    const Tensor& data = leaf.value.as_tensor();
    if (!compare(leaf.name, data.shape(), data.dtype(), *tensor, false)) return leaf.value;
    wanted.strides = data.strides();
    return add_destination(std::move(wanted), data.has_data() ? data : Tensor::empty(data.dtype(), data.shape()));
  }

  StateDict& state_;
  const std::filesystem::path& path_;
  const LoadOptions& options_;
  Communicator& comm_;
  std::unique_ptr<CheckpointReader> reader_;
  std::optional<StoredKeys> keys_;
  Value common_;
  Request request_;
  std::vector<Tensor> to_zero_;
  std::vector<ReadItem> items_;
  Problems unknown_;
  Problems different_;
  LoadReport report_;
};

}  // namespace

LoadReport load(StateDict& state, const std::filesystem::path& path, const LoadOptions& options, Communicator& comm) { return Loading(state, path, options, comm).run(); }

LoadReport load(StateDict& state, const std::filesystem::path& path, const LoadOptions& options) {
  const auto alone = single_rank();
  return load(state, path, options, *alone);
}

StateDict load_common_state(const std::filesystem::path& path) { return open_checkpoint(path)->common_state(); }

StateDict load_sharded_metadata(const std::filesystem::path& path) {
  const auto reader = open_checkpoint(path);
  Value state = Value::dict();
  for (const TensorMetadata& tensor : reader->metadata().tensors) {
    state[tensor.key] = ShardedTensor::whole(tensor.key, Tensor::described(tensor.properties.dtype, tensor.global_shape()));
  }
  for (const ObjectMetadata& object : reader->metadata().objects) state[object.key] = ShardedObject::from_unique_key(object.key);
  return state;
}

StateDict load_plain_tensors(const std::filesystem::path& path, const LoadOptions& options) {
  const auto reader = open_checkpoint(path);
  const Metadata& metadata = reader->metadata();
  Value state = Value::dict();
  Request request;
  for (std::uint32_t i = 0; i < metadata.tensors.size(); ++i) {
    const TensorMetadata& tensor = metadata.tensors[i];
    const auto problems = validate_coverage(tensor);
    if (!problems.empty()) throw CheckpointError(ErrorCode::kCorrupt, "the stored chunks do not make up the tensor: " + problems.front().message, {.key = tensor.key});
    request.destinations.push_back(Tensor::empty(tensor.properties.dtype, tensor.global_shape()));
    request.wanted.push_back({i, i, whole(tensor.global_shape()), std::nullopt, std::nullopt, false});
    state[tensor.key] = request.destinations.back();
  }
  const auto items = plan_reads(metadata, request.wanted);
  check_files(*reader, items);
  read_tensors(*reader, items, request.destinations, {.threads = options.threads, .staging = options.staging});
  return state;
}

}  // namespace dckpt
