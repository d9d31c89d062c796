#pragma once

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The ways in which a format stores anything but tensor bytes. Code that reads, converts or checks
/// a checkpoint looks at these, never at a format's name.
struct Conventions {
  /// Every leaf of the tree is stored under its path, and nothing is common state (plain DCP);
  /// otherwise sharded leaves are stored under their keys, and the rest is common state (Megatron).
  bool keys_are_paths = false;
  /// An object is stored in a list of one element (Megatron), not as it is.
  bool objects_in_lists = true;
  /// Data files are sequences of records that share no bytes, and keys can be removed in place
  /// (torch_dist, dcp).
  bool records = false;
  /// The format does not record which tensors were flattened ranges (zarr).
  bool fragments_lost = false;
  /// The part of each rank is stored as it was, under keys that no other layout finds (legacy rank
  /// folders).
  bool per_rank = false;
  /// The folder is a model's: config.json, the tokenizer and other files are located beside the
  /// tensors and belong to them (safetensors).
  bool model_folder = false;
  /// Readers of the format look for Megatron-Core's keys, so convert translates Megatron-FSDP's
  /// keys to them (torch_dist, zarr, legacy rank folders).
  bool megatron_keys = false;
  /// Keys and the optimizer's state have Megatron-FSDP's form (fsdp_dtensor).
  bool megatron_fsdp = false;

  friend bool operator==(const Conventions&, const Conventions&) = default;
};

}  // namespace dckpt
