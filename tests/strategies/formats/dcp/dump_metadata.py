"""Loads `.metadata` files with the classes of torch and prints lines of JSON.

    dump_metadata.py FILE…             what each says, field by field
    dump_metadata.py --load DIR DIR …  loads pairs of DCP directories with torch's own reader; for each pair, whether their contents are equal
"""
import json
import pickle
import sys

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict


class Unpickler(pickle.Unpickler):
    """Megatron's classes as empty ones."""

    def find_class(self, module, name):
        if name == "MCoreMetadata":
            return Metadata
        return type(name, (), {}) if module.startswith("megatron.") else super().find_class(module, name)


def path(value):
    return None if value is None else str(value)


def dump(file):
    md = Unpickler(open(file, "rb")).load()
    assert type(md) is Metadata, type(md)
    tensors, objects, places = {}, [], {}
    for key, entry in md.state_dict_metadata.items():
        if isinstance(entry, BytesStorageMetadata):
            objects.append(key)
            indices = [MetadataIndex(key)]
        else:
            p = entry.properties
            assert type(p) is TensorProperties and all(type(c.offsets) is torch.Size and type(c.sizes) is torch.Size for c in entry.chunks)
            tensors[key] = {
                "properties": [str(p.dtype), str(p.layout), p.requires_grad, str(p.memory_format), p.pin_memory],
                "size": list(entry.size),
                "chunks": [[list(c.offsets), list(c.sizes)] for c in entry.chunks],
            }
            # as torch's planner looks records up: once with the chunk's position, once without
            indices = [MetadataIndex(key, c.offsets, i) for i, c in enumerate(entry.chunks)]
            assert all(md.storage_data[i] is md.storage_data[MetadataIndex(i.fqn, i.offset)] for i in indices)
        places[key] = [[str(s.relative_path), s.offset, s.length, s.transform_descriptors] for s in (md.storage_data[i] for i in indices)]
    assert sum(map(len, places.values())) == len(md.storage_data)
    meta = md.storage_meta
    return {
        "tensors": tensors,
        "objects": sorted(objects),
        "places": places,
        "planner_data": {k: list(v) for k, v in md.planner_data.items()} if md.planner_data else None,
        "storage_meta": meta and [path(meta.checkpoint_id), meta.save_id, meta.load_id, list(meta.modules)],
        "version": getattr(md, "version", None),
        # keys without an original shape need no entry
        "mcore_data": {k: {n: list(s) for n, s in v.items()} for k, v in md.mcore_data.items() if v} if hasattr(md, "mcore_data") else None,
    }


def load(directory):
    state = {}
    _load_state_dict(state, storage_reader=FileSystemReader(directory), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return pickle.dumps(a) == pickle.dumps(b)  # also of arrays and objects that cannot be compared


if sys.argv[1] == "--load":
    for pair in zip(sys.argv[2::2], sys.argv[3::2]):
        first, second = map(load, pair)
        print(json.dumps(bool(first) and equal(first, second)))
else:
    for name in sys.argv[1:]:
        print(json.dumps(dump(name)))
