"""PyTorch's own reader of distributed checkpoints, and its unpickler."""

from __future__ import annotations

import logging
import os

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from rendering import digest

logging.disable(logging.WARNING)


def read_metadata(path: os.PathLike) -> Metadata:
    return dcp.FileSystemReader(str(path)).read_metadata()


def load_all(path: os.PathLike) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """All tensors, whole, and all objects, as torch.distributed.checkpoint.load delivers them."""
    entries = read_metadata(path).state_dict_metadata
    tensors = {key: torch.zeros(entry.size, dtype=torch.uint8).to(entry.properties.dtype) if entry.size else torch.empty((), dtype=entry.properties.dtype)
               for key, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}
    state = {key: tensors.get(key, "to be replaced") for key in entries}
    dcp.load(state, storage_reader=dcp.FileSystemReader(str(path)), no_dist=True)
    return tensors, {key: value for key, value in state.items() if key not in tensors}


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, dict]:
    return {key: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "sha256": digest(t)} for key, t in tensors.items()}


def unpickle(path: os.PathLike):
    return torch.load(path, map_location="cpu", weights_only=False)
