#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "configs/policy/options.h"
#include "mapping/base/finding.h"
#include "migration/maps/arrangement/apply_key_map.h"
#include "migration/maps/findings/map_report.h"
#include "migration/maps/sides/map_rule.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A caller may know more than the options of a map say.
struct MapContext {
  const Storage* model_files = nullptr;  ///< the folder with config.json if the checkpoint has none
  const KeyMap* map = nullptr;  ///< the map of KeyMapOptions::name, if it has been read already
  /// Keys of tensors that the source lacks on request; rows that need only these are not made.
  std::vector<std::string> left_out{};
  /// The naming scheme that readers of the result expect. A source whose keys are those of both
  /// sides is presumed to have the other one.
  std::optional<KeyNames> to{};
  /// Whether the result is written as a folder of a Hugging Face model; empty if that is not known.
  /// Readers of other results expect the keys of the trainer that a map names.
  std::optional<bool> to_model_folder{};
};

/// Returns the checkpoint `source` under the keys that a map gives it, as a reader like any other.
///
/// Numbers of the model come from `options.set`, the common state's args, run_config.yaml or
/// config.json beside the checkpoint. These settings in `options.set` are not numbers:
///
///   from=megatron|left|hf       naming scheme of the source; by default as its keys tell
///   keys=megatron|left|hf       naming scheme of the result; by default the other one
///   layout=homogeneous|non-homogeneous|singleton     of Megatron's keys
///   names=te|local              of Megatron's norms
///   extra_state=none|leave_out  whether Megatron's _extra_state objects are made, without content
///   parts=all|text              drop what a model of text and images has beside its language model
///   experts=fused|single        Hugging Face's form of experts: one tensor of all, or one of each
///   prefix=language_model.|model.language_model.     of the result's keys
///   dequantize=bfloat16|float16|float32   dtype of weights with scales after dequantization
///   quantize=fp8                          codes and scales of linear layers, for Hugging Face
///   dtype=bfloat16|float16|float32        dtype of all floats, except those that have to stay
///
/// Throws CheckpointError, as apply_key_map() does, and (invalid argument) for unknown settings and
/// names.
std::unique_ptr<CheckpointReader> mapped_reader(std::unique_ptr<CheckpointReader> source,
                                                const KeyMapOptions& options,
                                                MapReport* report = nullptr,
                                                MapContext context = {});

/// Returns the setting dtype, if it is given. Throws as mapped_reader() does.
std::optional<DType> wanted_dtype(const KeyMapOptions& options);

/// Returns whether the setting quantize is given. Throws as mapped_reader() does.
bool wants_fp8(const KeyMapOptions& options);

/// Returns the rule for `key`, which is a tensor's key in the checkpoint or one that the map makes;
/// empty for other keys.
std::optional<MapRule> rule_for(std::unique_ptr<CheckpointReader> source,
                                const KeyMapOptions& options, const std::string& key);

/// Returns the shipped maps that convert all of Megatron's keys in `source` to Hugging Face's: the
/// one named by config.json, in `model_files` or beside the checkpoint, or else the closest ones.
std::vector<std::string> fitting_maps(const CheckpointReader& source, const Storage* model_files);

/// A checkpoint before and after a conversion by a map and back. Both have the tensors that the map
/// keeps, no objects, and zeros in rows that pad a vocabulary.
struct RoundTrip {
  std::unique_ptr<CheckpointReader> before;
  std::unique_ptr<CheckpointReader> after;
};
/// Opens the source twice. Throws as mapped_reader() does.
RoundTrip round_trip(const std::function<std::unique_ptr<CheckpointReader>()>& open,
                     const KeyMapOptions& options, MapContext context = {});

}  // namespace dckpt
