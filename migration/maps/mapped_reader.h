#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "configs/key_map.h"
#include "configs/options.h"
#include "mapping/base/finding.h"
#include "migration/maps/apply_key_map.h"
#include "migration/maps/map_rule.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// The name that stands for the shipped map that config.json asks for.
inline constexpr const char* kAutoMap = "auto";

/// The name that stands for no map, of those who insist on having none.
inline constexpr const char* kNoMap = "none";

/// What a map did, for people.
struct MapReport {
  std::string map;  ///< its family
  MappedKeys keys;  ///< without tensors
  std::uint64_t tensors = 0;
  std::uint64_t dequantized = 0;     ///< weights with scales
  std::vector<DroppedKeys> dropped;  ///< of tensors and objects
  Findings findings{};               ///< all of this, for people too
};

/// The checkpoint `source` under the keys that a map gives it: a reader like any other.
///
/// Numbers of the model come from `options.set`, the common state's args, run_config.yaml or
/// config.json beside the checkpoint. These settings in `options.set` are not numbers:
///
///   keys=megatron|hf            whose names to give; by default the other ones
///   layout=homogeneous|non-homogeneous|singleton     of Megatron's keys
///   names=te|local              of Megatron's norms
///   extra_state=none|leave_out  whether Megatron's _extra_state objects are made, without content
///   parts=all|text              drop what a model of text and images has beside its language model
///   prefix=language_model.|model.language_model.     of the result's keys
///   dequantize=bfloat16|float16|float32   what weights with scales become
///   dtype=bfloat16|float16|float32        what all floats become but those that have to stay
///
/// `model_files` is the folder with config.json if the checkpoint has none. Throws CheckpointError,
/// as apply_key_map() does, and (invalid argument) for settings and names that do not exist. `map`
/// is that of `options.name`, for those who have read it before. `left_out`: keys of tensors that
/// the source lacks on request, so that rows which need only these are not made.
std::unique_ptr<CheckpointReader> mapped_reader(std::unique_ptr<CheckpointReader> source,
                                                const KeyMapOptions& options,
                                                MapReport* report = nullptr,
                                                const Storage* model_files = nullptr,
                                                const KeyMap* map = nullptr,
                                                std::vector<std::string> left_out = {});

/// The setting dtype, if it is there. Throws as mapped_reader() does.
std::optional<DType> wanted_dtype(const KeyMapOptions& options);

/// `key`: of a tensor in the checkpoint, or of one that the map makes. Empty for other keys.
std::optional<MapRule> rule_for(std::unique_ptr<CheckpointReader> source,
                                const KeyMapOptions& options, const std::string& key);

/// The shipped maps that take all of Megatron's keys in `source` to Hugging Face's: that which
/// config.json asks for, in `model_files` or beside the checkpoint, or else the closest ones.
std::vector<std::string> fitting_maps(const CheckpointReader& source, const Storage* model_files);

/// A checkpoint, and the same after a map and back. Both have the tensors that the map keeps, no
/// objects, and zeros in rows that pad a vocabulary.
struct RoundTrip {
  std::unique_ptr<CheckpointReader> before;
  std::unique_ptr<CheckpointReader> after;
};
/// Opens the source twice. `left_out`: as for mapped_reader().
RoundTrip round_trip(const std::function<std::unique_ptr<CheckpointReader>()>& open,
                     const KeyMapOptions& options, const Storage* model_files = nullptr,
                     std::vector<std::string> left_out = {});

}  // namespace dckpt
