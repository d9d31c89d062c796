#include "strategies/formats/dcp/metadata_graph.h"

#include "mapping/base/format.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"

namespace dckpt::dcp {

void ObjectGraph::expected(std::string_view what, std::string_view wanted, Id found) const {
  throw_error(ErrorCode::kCorrupt, "{} is {} (expected: {})", what, describe(found), wanted);
}

GlobalName ObjectGraph::global(Id id) const noexcept {
  if (id == kAbsent || kind(id) != Kind::kGlobal) return {};
  const auto parts = graph_.children(id);
  return {graph_.text(parts[0]), graph_.text(parts[1])};
}

bool ObjectGraph::is_named(Id id, const KnownGlobal& known) const noexcept {
  if (!global(id).is(known.module, known.name)) return false;
  known.node = id;
  return true;
}

GlobalName ObjectGraph::called(Id id) const noexcept {
  if (id == kAbsent || kind(id) != Kind::kCall) return {};
  return global(graph_.children(id)[0]);
}

void ObjectGraph::refuse_changed(Id object) const {
  throw_error(
      ErrorCode::kCorrupt,
      describe(object) + " was changed after it was made, which no writer of metadata does");
}

void ObjectGraph::refuse_state(Id object, Id given) const {
  expected("the state of " + describe(object), "a dict", given);
}

std::uint32_t ObjectGraph::position(std::span<const Id> items, std::string_view name) const {
  std::uint32_t found = 0;
  for (std::uint32_t i = 0; i + 1 < items.size(); i += 2) {
    if (kind(items[i]) != Kind::kStr || graph_.text(items[i]) != name) continue;
    if (found != 0)
      throw_error(ErrorCode::kCorrupt, "the field {} occurs twice in one object", quote(name));
    found = i + 1;
  }
  return found;
}

ObjectGraph::Id ObjectGraph::find(std::span<const Id> items, std::string_view name) const {
  const std::uint32_t found = position(items, name);
  return found == 0 ? kAbsent : items[found];
}

std::span<const MetadataGraph::Id> MetadataGraph::dict(Id id, std::string_view what) const {
  if (id == kAbsent) throw_error(ErrorCode::kCorrupt, std::string(what) + " is missing");
  if (kind(id) == Kind::kDict) return graph_.children(id);
  if (!called(id).is("collections", "OrderedDict") || !arguments(id).empty())
    expected(what, "a dict", id);
  return graph_.extras(id).dict_items;
}

std::span<const MetadataGraph::Id> MetadataGraph::list_or_tuple(Id id,
                                                                std::string_view what) const {
  if (id == kAbsent) throw_error(ErrorCode::kCorrupt, std::string(what) + " is missing");
  if (kind(id) != Kind::kList && kind(id) != Kind::kTuple) expected(what, "a list", id);
  return graph_.children(id);
}

std::string_view MetadataGraph::text(Id id, std::string_view what) const {
  if (id == kAbsent) throw_error(ErrorCode::kCorrupt, std::string(what) + " is missing");
  if (kind(id) != Kind::kStr) expected(what, "a str", id);
  return graph_.text(id);
}

bool MetadataGraph::boolean(Id id, std::string_view what) const {
  if (id == kAbsent) throw_error(ErrorCode::kCorrupt, std::string(what) + " is missing");
  if (kind(id) != Kind::kTrue && kind(id) != Kind::kFalse) expected(what, "a bool", id);
  return kind(id) == Kind::kTrue;
}

void MetadataGraph::refuse_count(Id id, std::string_view what) const {
  if (id == kAbsent) throw_error(ErrorCode::kCorrupt, std::string(what) + " is missing");
  expected(what, "an int from 0 to 2^63 - 1", id);
}

void MetadataGraph::refuse_axes(std::string_view what, std::size_t axes) {
  throw_error(ErrorCode::kCorrupt, "{} has {} axes, more than the limit of {}", what, grouped(axes),
              kMaxDims);
}

void MetadataGraph::shape(Id id, std::string_view what, Shape& out) const {
  if (id == kAbsent) throw_error(ErrorCode::kCorrupt, std::string(what) + " is missing");
  if (kind(id) == Kind::kRow) return row_shape(id, what, out);
  Id numbers = id;
  if (is_call_of(id, torch_size_) && arguments(id).size() == 1) numbers = arguments(id)[0];
  if (kind(numbers) != Kind::kTuple) expected(what, "a torch.Size", id);
  const auto members = graph_.children(numbers);
  if (members.size() > kMaxDims) refuse_axes(what, members.size());
  out.resize(members.size());
  for (std::size_t axis = 0; axis < members.size(); ++axis) out[axis] = count(members[axis], what);
}

void MetadataGraph::row_shape(Id id, std::string_view what, Shape& out) const {
  const Id cell = is_row(id, pickle::Graph::kCountsRow) ? graph_.cells(id)[0] : id;
  if (!pickle::Graph::is_in_pickle(cell) || !graph_.has_counts(cell))
    expected(what, "a torch.Size", id);
  std::array<std::int64_t, kMaxDims> counts;
  const std::size_t dims = graph_.counts(cell, counts);
  if (dims > kMaxDims) refuse_axes(what, dims);
  out.assign(counts.begin(), counts.begin() + dims);
}

bool MetadataGraph::is_pathlib(Id id) const noexcept {
  const GlobalName type = called(id);
  return (type.module == "pathlib" || type.module == "pathlib._local") &&
         (type.name == "PosixPath" || type.name == "Path" || type.name == "PurePosixPath" ||
          type.name == "PurePath");
}

std::string MetadataGraph::path(Id id, std::string_view what) const {
  if (!is_pathlib(id)) return std::string(text(id, what));
  std::string joined;
  for (const Id part : arguments(id)) {
    const std::string_view next = text(part, what);
    if (joined.size() + next.size() > kMaxNameBytes)
      throw_error(ErrorCode::kCorrupt, "{} is longer than {} bytes", what, kMaxNameBytes);
    if (next.starts_with('/')) joined.clear();  // as pathlib joins
    if (!joined.empty() && !joined.ends_with('/')) joined += '/';
    joined += next;
  }
  return joined;
}

std::string ObjectGraph::describe(Id id) const {
  if (id == kAbsent) return "missing";
  const auto named = [](const GlobalName& global) {
    return quote(str_format("{}.{}", global.module, global.name));
  };
  if (const GlobalName type = class_of(id)) return "an object of class " + named(type);
  switch (kind(id)) {
    case Kind::kNone: return "None";
    case Kind::kFalse: return "False";
    case Kind::kTrue: return "True";
    case Kind::kInt: return "the int " + std::to_string(graph_.integer(id));
    case Kind::kLong: return "an int of more than 64 bits";
    case Kind::kFloat: return "a float";
    case Kind::kStr: return "the str " + quote(graph_.text(id), 60);
    case Kind::kBytes: return "bytes";
    case Kind::kByteArray: return "a bytearray";
    case Kind::kRow: return "a part of the metadata of a chunk";
    case Kind::kList: return "a list";
    case Kind::kTuple: return "a tuple";
    case Kind::kSet: return "a set";
    case Kind::kFrozenSet: return "a frozenset";
    case Kind::kDict: return "a dict";
    case Kind::kGlobal: return "the name " + named(global(id));
    case Kind::kCall: {
      const GlobalName function = called(id);
      return function ? "the result of a call of " + named(function) : "the result of a call";
    }
    case Kind::kNew: return "an object made with arguments";
    case Kind::kPersistent: return "a persistent id";
  }
  return "of an unknown kind";
}

}  // namespace dckpt::dcp
