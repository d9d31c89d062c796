#pragma once

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// How a format stores what is not tensor bytes. Whoever reads, converts or checks a checkpoint
/// asks these, never a format's name.
struct Conventions {
  /// Every leaf of the tree is stored under its path, and nothing is common state (plain DCP);
  /// otherwise sharded leaves are stored under their keys, and the rest is common state (Megatron).
  bool keys_are_paths = false;
  /// An object is stored in a list of one element (Megatron), not as it is.
  bool objects_in_lists = true;
  /// Data files are records one after the other, which share no bytes, and keys can be taken out in
  /// place (torch_dist, dcp).
  bool records = false;
  /// It does not say which tensors were flattened ranges (zarr).
  bool fragments_lost = false;
  /// What a rank held is stored as it was, under keys that no other layout finds (legacy rank
  /// folders).
  bool per_rank = false;
  /// The folder is a model's: config.json, the tokenizer and others lie beside the tensors and
  /// belong to them (safetensors).
  bool model_folder = false;
  /// Readers of the format look for Megatron-Core's keys, so convert makes them of Megatron-FSDP's
  /// (torch_dist, zarr, legacy rank folders).
  bool megatron_keys = false;
  /// Keys and the optimizer's state are as Megatron-FSDP has them (fsdp_dtensor).
  bool megatron_fsdp = false;

  friend bool operator==(const Conventions&, const Conventions&) = default;
};

}  // namespace dckpt
