#pragma once

#include <optional>

#include "mapping/base/bytes.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Converts a value to one that JSON can represent (none, bool, int, float, str, list, dict with
/// str keys), for to_json. Types of JSON stay unchanged; others become a dict with one tag:
///
///     (1, "a")                    {"__tuple__": [1, "a"]}
///     {1: "a"}                    {"__dict__": [[1, "a"]]}   only if not all keys are str;
///                                 OrderedDict and defaultdict always, with their names
///     {1, 2}                      {"__set__": [1, 2]}                sorted; also __frozenset__
///     2**60, nan, 1j              {"__int__": "1152921504606846976"} from 2**53 on; {"__float__":
///                                 "nan"}; {"__complex__": [0.0, 1.0]}
///     b"\0"                       {"__bytes__": {"len": 1, "sha256": "…", "hex": "00"}}   hex up
///                                 to 64 bytes; also __bytearray__, __BytesIO__
///     a tensor, a Parameter       {"__tensor__": {"dtype": "float32", "shape": [2], "sha256": "…",
///                                 "first": [0.0, 1.0]}}
///     a numpy array, scalar       {"__ndarray__": {"dtype": "<f4", "shape": [2], "sha256": "…"}};
///                                 {"__npscalar__": "float64", "value": 2.5}
///     torch.Size, dtype, device   {"__torch.Size__": [2, 3]}; {"__torch.dtype__": "bfloat16"};
///                                 {"__torch.device__": "cuda:0"}
///     Namespace, SimpleNamespace  {"__namespace__": {"lr": 0.1}}
///     a member of a known enum    {"__enum__": "signal.Signals", "name": "SIGTERM", "value": 15}
///     more than 64 numbers        {"__long__": "tuple", "len": 625, "sha256": "…", "first": […]}
///                                 hash of the comma-joined Python reprs
///     slice(1, 2)                 {"__repr__": "slice(1, 2, None)", "class": "builtins.slice"}
///     a class or function         {"__global__": "package.module.name"}
///     any other object            {"__opaque__": {"class": "package.module.Name", "args": […],
///                                 "state": …}}   and kwargs, items if it has any
///     an object that contains     {"__reference__": 3}   the value 3 levels out; null if it
///     this place                  is not around this one
///
/// Digests are over little-endian elements in C order. Nothing is imported or executed. Throws
/// CheckpointError: (unsupported) for values nested deeper than kMaxRenderDepth, (invalid argument)
/// for tensors that are not in CPU memory.
Value render(const Value& value);

/// Returns the bytes of a value that holds nothing else, such as Transformer Engine's
/// `_extra_state`: a bytes, bytearray, io.BytesIO or a tensor of bytes (uint8). Empty for any other
/// value. Throws CheckpointError (invalid argument) for a tensor that is not in CPU memory.
std::optional<Bytes> content_bytes(const Value& value);

/// Levels of the result, including tags. Common JSON readers accept more.
inline constexpr int kMaxRenderDepth = 900;

/// Returns repr() of a Python float.
std::string python_repr(double value);

}  // namespace dckpt
