#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mapping/geometry/shape.h"
#include "strategies/formats/pickle/graph.h"

namespace dckpt::dcp {

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";
inline constexpr std::string_view kMegatronModule = "megatron.core.dist_checkpointing.strategies.torch";

struct GlobalName {
  std::string_view module;
  std::string_view name;
  bool is(std::string_view wanted_module, std::string_view wanted_name) const noexcept { return name == wanted_name && module == wanted_module; }
  explicit operator bool() const noexcept { return !name.empty(); }
};

/// Reads the few kinds of Python values that DCP metadata are made of, straight from the nodes of the pickle. `what` names a value in messages.
/// Everything throws CheckpointError (corrupt) without key and file for a value of another kind; the reader adds those.
class MetadataGraph {
 public:
  using Id = pickle::Graph::Id;
  using Kind = pickle::Graph::Kind;
  static constexpr Id kAbsent = pickle::Graph::kNil;

  explicit MetadataGraph(const pickle::Graph& graph) : graph_(graph) {}

  const pickle::Graph& nodes() const noexcept { return graph_; }
  Kind kind(Id id) const noexcept { return graph_.kind(id); }
  bool is_none(Id id) const noexcept { return id == kAbsent || kind(id) == Kind::kNone; }
  bool is_text(Id id) const noexcept { return id != kAbsent && kind(id) == Kind::kStr; }
  bool is_path(Id id) const noexcept { return is_text(id) || is_pathlib(id); }

  /// Whether the node names a class or function, and which; empty names if it does not.
  GlobalName global(Id id) const noexcept;
  /// The class of a plain object: made by NEWOBJ without arguments, or by copyreg._reconstructor in protocols 0 and 1. Empty for anything else.
  GlobalName class_of(Id id) const noexcept;
  /// The function of a call and its arguments; an empty name for anything else.
  GlobalName called(Id id) const noexcept;
  std::span<const Id> arguments(Id call) const noexcept;

  /// The one state that an object was given, or kAbsent.
  Id state(Id object) const;
  /// The attributes of an object: key, value, … of the dict it was given as state; none if it was given none.
  std::span<const Id> attributes(Id object) const;
  /// The value of a name among attributes or items, or kAbsent. Throws if it occurs twice.
  Id find(std::span<const Id> items, std::string_view name) const;

  /// key, value, … of a dict or OrderedDict.
  std::span<const Id> dict(Id id, std::string_view what) const;
  std::span<const Id> list_or_tuple(Id id, std::string_view what) const;
  std::string_view text(Id id, std::string_view what) const;
  bool boolean(Id id, std::string_view what) const;
  /// An int from 0 to 2^63 - 1; True and False are none.
  std::int64_t count(Id id, std::string_view what) const;
  /// A torch.Size or tuple of counts, at most kMaxDims of them, into `out`.
  void shape(Id id, std::string_view what, Shape& out) const;
  /// A str, or a pathlib path joined from its parts.
  std::string path(Id id, std::string_view what) const;

  /// What a node is, for messages: "a list", "an object of class 'a.B'", "the result of a call of 'os.system'".
  std::string describe(Id id) const;

 private:
  bool is_pathlib(Id id) const noexcept;
  [[noreturn]] void expected(std::string_view what, std::string_view wanted, Id found) const;

  const pickle::Graph& graph_;
};

[[noreturn]] void throw_corrupt(std::string message);

}  // namespace dckpt::dcp
