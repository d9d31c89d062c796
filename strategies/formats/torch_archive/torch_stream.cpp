#include <algorithm>
#include <optional>
#include <unordered_map>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "strategies/formats/pickle/graph.h"
#include "strategies/formats/torch_archive/storage_table.h"

// The form of torch.save before 1.6 (and with _use_new_zipfile_serialization=False), one after the
// other:
//
//     pickle  0x1950a86a20f9469cfc6c
//     pickle  1001: the protocol
//     pickle  {'protocol_version', 'little_endian', 'type_sizes'}
//     pickle  the object; storages are persistent ids as in the zip form, but with a sixth field:
//             None or a slice (key, offset, numel), which only the first releases of torch used.
//             ('module', class, file, source) is a class with its source text
//     pickle  [key, …]: the storages in the order in which they follow
//     for each storage: int64 count of elements, then the elements
//
// Where a pickle ends is known only when it has been read, so a growing window is tried: files may
// have many gigabytes of storages.

namespace dckpt {
namespace {

constexpr std::int64_t kProtocol = 1001;
constexpr std::uint64_t kFirstWindow = std::uint64_t{64} << 10;
constexpr std::uint64_t kMaxPickles = std::uint64_t{512} << 20;  // all five together
constexpr std::uint64_t kWindowGrowth = 8;

/// Returns 'storage' or 'module'; empty for anything else.
std::string_view id_kind(const Value& id) {
  return id.is(Value::Kind::kTuple) && id.size() > 0 && id.items()[0].is_str()
             ? std::string_view(id.items()[0].as_str())
             : std::string_view();
}

/// Returns the id without its sixth field.
Value storage_id(const Value& id) {
  if (id.size() != 6)
    throw_error(ErrorCode::kCorrupt, "a storage id of the torch stream has {}, expected 6",
                counted(id.size(), "field"));
  return Value::tuple(ValueList(id.items().begin(), id.items().end() - 1));
}

TorchStorage slice(const TorchStorage& storage, const Value& view) {
  const auto is_count = [](const Value& value) { return value.is_int() && value.as_int() >= 0; };
  const bool sound = view.is(Value::Kind::kTuple) && view.size() == 3 &&
                     is_count(view.items()[1]) && is_count(view.items()[2]);
  const std::int64_t numel = storage.elements.numel();
  if (!sound || view.items()[1].as_int() > numel ||
      view.items()[2].as_int() > numel - view.items()[1].as_int()) {
    throw_error(ErrorCode::kCorrupt, "a view lies outside its storage of {}",
                counted(numel, "element"));
  }
  TorchStorage part = storage;
  part.elements =
      slice_storage(storage.elements, storage.elements.dtype(), view.items()[1].as_int(),
                    Shape(1, view.items()[2].as_int()), Shape(1, 1));
  return part;
}

struct Pickles {
  Bytes bytes;  // the graphs point into these bytes
  pickle::Graph object;
  pickle::Graph keys;
  std::size_t end = 0;  // end of the last pickle
};

Pickles read_pickles(Bytes window, const std::string& what) {
  Pickles result;
  result.bytes = std::move(window);
  const ByteView view = result.bytes;
  std::size_t at = 0;
  const auto next = [&] {
    std::size_t consumed = 0;
    pickle::Graph graph = pickle::read_graph(view.subspan(at), what, {}, &consumed);
    at += consumed;
    return graph;
  };
  next();  // the magic number, which was checked when the form was detected
  const pickle::Graph protocol = next();
  if (protocol.kind(protocol.root()) != pickle::Graph::Kind::kInt ||
      protocol.integer(protocol.root()) != kProtocol) {
    throw_error(ErrorCode::kUnsupported,
                "the file is not a torch stream of protocol 1001; load it with the torch "
                "that wrote it, and save it with a newer one");
  }
  const pickle::Graph system = next();
  const Value properties = pickle::value_from_graph(system);
  const Value* little = properties.find("little_endian");
  if (little == nullptr || !little->is(Value::Kind::kBool))
    throw_error(ErrorCode::kCorrupt, "the torch stream does not say its byte order");
  if (!little->as_bool()) {
    throw_error(
        ErrorCode::kUnsupported,
        "the tensors were written on a big-endian machine; load and save them with torch first");
  }
  result.object = next();
  result.keys = next();
  result.end = at;
  return result;
}

Pickles read_pickles(const ReadableFile& file, std::uint64_t base, std::uint64_t length) {
  for (std::uint64_t size = std::min(length, kFirstWindow);;
       size = std::min({length, size * kWindowGrowth, kMaxPickles})) {
    Bytes window(size);
    file.read(base, window);
    try {
      return read_pickles(std::move(window), file.name());
    } catch (const CheckpointError& error) {
      const bool may_be_cut =
          error.code() == ErrorCode::kCorrupt && size < length && size < kMaxPickles;
      if (!may_be_cut) throw;
    }
  }
}

/// Returns the storages by key, with their element sizes, from all persistent ids of the object.
std::unordered_map<std::string, StorageId> storage_ids(const pickle::Graph& object) {
  std::unordered_map<std::string, StorageId> ids;
  pickle::GraphValues values(object);
  for (const pickle::Graph::Id id : object.persistent()) {
    const Value persistent_id = values.value(object.children(id)[0]);
    if (id_kind(persistent_id) != "storage") continue;
    StorageId storage = parse_storage_id(storage_id(persistent_id));
    std::string key = storage.key;
    ids.try_emplace(std::move(key), std::move(storage));
  }
  return ids;
}

/// Returns the offsets of the storages' elements in the file.
std::unordered_map<std::string, std::uint64_t> locate_storages(
    const ReadableFile& file, std::uint64_t begin, std::uint64_t end, const Value& keys,
    const std::unordered_map<std::string, StorageId>& ids) {
  if (!keys.is_sequence())
    throw_error(ErrorCode::kCorrupt, "the torch stream has no list of storages");
  std::unordered_map<std::string, std::uint64_t> offsets;
  std::uint64_t at = begin;
  for (const Value& key : keys.items()) {
    const auto id = key.is_str() ? ids.find(key.as_str()) : ids.end();
    if (id == ids.end())
      throw_error(ErrorCode::kCorrupt, "the torch stream lists a storage that nothing refers to");
    const std::string which = "storage " + quote(id->first);
    std::int64_t count = 0;
    if (!range_fits(at, sizeof count, end))
      throw_error(ErrorCode::kCorrupt,
                  "the torch stream ends before {}; it may have been truncated", which);
    file.read(at, std::as_writable_bytes(std::span(&count, 1)));
    at += sizeof count;
    if (count != id->second.numel) {
      throw_error(ErrorCode::kCorrupt, {.offset = at - sizeof count},
                  "{} has {} elements, but the pickle says {}", which, count, id->second.numel);
    }
    if (!range_fits(at, id->second.nbytes(), end))
      throw_error(ErrorCode::kCorrupt,
                  "the torch stream ends inside {}; it may have been truncated", which);
    if (!offsets.try_emplace(id->first, at).second)
      throw_error(ErrorCode::kCorrupt, "the torch stream lists {} twice", which);
    at += id->second.nbytes();
  }
  if (at != end)
    throw_error(ErrorCode::kCorrupt, {.offset = at},
                "the torch stream has {} bytes after its last storage", end - at);
  return offsets;
}

}  // namespace

Value load_torch_stream(const ReadableFile& file, std::uint64_t base, std::uint64_t length,
                        const TorchFileOptions& options) {
  const Pickles pickles = read_pickles(file, base, length);
  const auto offsets =
      locate_storages(file, base + pickles.end, base + length,
                      pickle::value_from_graph(pickles.keys), storage_ids(pickles.object));
  StorageTable table(file, options, [&offsets](const StorageId& id) {
    const auto found = offsets.find(id.key);
    if (found == offsets.end())
      throw_error(ErrorCode::kCorrupt, "storage {} is missing from the torch stream",
                  quote(id.key));
    return StorageTable::Located{found->second};
  });
  pickle::ValueHooks hooks = table.hooks();
  hooks.persistent = [whole = hooks.persistent](const Value& id) -> Value {
    if (id_kind(id) == "module" && id.size() == 4) return id.items()[1];
    if (id_kind(id) != "storage")
      throw_error(ErrorCode::kCorrupt,
                  "a persistent id of the torch stream is neither a storage nor a module");
    Value storage = whole(storage_id(id));
    const Value& part = id.items()[5];
    return part.is_none() ? storage : Value(slice(storage.as_storage(), part));
  };
  return pickle::value_from_graph(pickles.object, std::move(hooks));
}

}  // namespace dckpt
