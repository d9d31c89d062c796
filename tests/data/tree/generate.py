"""Records what Megatron-Core and PyTorch DCP make of trees and shards, as JSON that the tests of mapping/state compare with.

    PYTHONPATH=<megatron-core 0.14.0> python generate.py        (torch 2.11.0, numpy; no GPU)

The cases are random but seeded; the answers are those of the libraries named in "producer". Values are written as
  scalars, lists                      themselves
  {"dict": [[key, value], ...]}       keys keep their kind
  {"tuple": [...]}, {"set": [...]}, {"frozenset": [...]}, {"bytes": hex}, {"bytearray": hex}
  {"int": [hex, decimal]}             little-endian two's complement; integers beyond 64 bits
  {"float": hex}, {"complex": [hex, hex]}
  {"tensor": n}                       a float32 tensor of n elements
  {"sharded": key}, {"empty": key}    a ShardedTensor of one element; of a flattened range without elements
  {"object": key}, {"factory": key}, {"local": value}
"""

import json
import pathlib
import random

import numpy
import torch
from torch.distributed.checkpoint import _nested_dict, _traverse, _version

numpy.product = getattr(numpy, "product", numpy.prod)  # removed in numpy 2

from megatron.core.dist_checkpointing import dict_utils, state_dict_utils, utils
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import (
    LocalNonpersistentObject,
    ShardedBase,
    ShardedObject,
    ShardedTensor,
    ShardedTensorFactory,
    apply_factory_merges,
)

HERE = pathlib.Path(__file__).parent
PRODUCER = {"megatron-core": "0.14.0", "torch": torch.__version__.split("+")[0]}


def sharded(key, n=1):
    return ShardedTensor.from_rank_offsets(key, torch.zeros(n))


def empty_range(key):
    return ShardedTensor.from_rank_offsets_flat(key, torch.zeros(0), (4,), flattened_range=slice(2, 2))


def factory(key):
    def build(name, data, replica_id, flattened_range):
        return {"w": sharded(name + "_w"), "v": [sharded(name + "_v")]}

    return ShardedTensorFactory(key, torch.zeros(1), build, lambda tree: ["merged", key, tree])


def encode(x):
    if isinstance(x, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in x.items()]}
    if isinstance(x, list):
        return [encode(v) for v in x]
    if isinstance(x, tuple):
        return {"tuple": [encode(v) for v in x]}
    if isinstance(x, (set, frozenset)):
        return {type(x).__name__: [encode(v) for v in x]}
    if isinstance(x, (bytes, bytearray)):
        return {type(x).__name__: bytes(x).hex()}
    if isinstance(x, torch.Tensor):
        return {"tensor": x.numel()}
    if isinstance(x, ShardedTensor):
        return {"empty" if x.flattened_range else "sharded": x.key}
    if isinstance(x, ShardedObject):
        return {"object": x.key}
    if isinstance(x, ShardedTensorFactory):
        return {"factory": x.key}
    if isinstance(x, LocalNonpersistentObject):
        return {"local": encode(x.obj)}
    if isinstance(x, bool) or x is None or isinstance(x, str):
        return x
    if isinstance(x, int):
        if -(2**63) <= x < 2**63:
            return x
        return {"int": [x.to_bytes(x.bit_length() // 8 + 1, "little", signed=True).hex(), str(x)]}
    if isinstance(x, float):
        return {"float": x.hex()}
    if isinstance(x, complex):
        return {"complex": [x.real.hex(), x.imag.hex()]}
    raise TypeError(type(x))


def decode(x):
    """Fresh objects each time: Megatron changes trees in place."""
    if isinstance(x, list):
        return [decode(v) for v in x]
    if not isinstance(x, dict):
        return x
    ((kind, content),) = x.items()
    if kind == "dict":
        return {decode(k): decode(v) for k, v in content}
    if kind == "tuple":
        return tuple(decode(v) for v in content)
    make = {
        "tensor": torch.zeros,
        "sharded": sharded,
        "empty": empty_range,
        "object": lambda key: ShardedObject(key, 1, (1,), (0,)),
        "factory": factory,
        "local": lambda value: LocalNonpersistentObject(decode(value)),
        "float": float.fromhex,
    }
    return make[kind](content)


class Trees:
    def __init__(self, seed, leaves):
        self.random = random.Random(seed)
        self.leaves = leaves
        self.count = 0

    def leaf(self):
        self.count += 1
        kind = self.random.choice(self.leaves)
        if kind == "plain":
            return self.random.choice([self.count, f"text {self.count}", None, True, {"tuple": [1, {"tuple": []}]}])
        if kind == "tuple of a tensor":
            return {"tuple": [{"tensor": 1}]}
        if kind == "tensor":
            return {"tensor": self.count % 5}
        if kind == "local":
            return {"local": self.random.choice([[0, 1], 7, {"dict": []}])}
        return {kind: self.random.choice(["a.", "b.", "a.b."]) + str(self.count)}

    def tree(self, depth, container=None):
        what = container or self.random.choice(["dict", "dict", "list", "leaf", "leaf", "leaf"])
        if depth == 0 or what == "leaf":
            return self.leaf()
        size = self.random.choice([0, 1, 1, 2, 2, 3])
        if what == "list":
            return [self.tree(depth - 1) for _ in range(size)]
        keys = self.random.sample(["a", "b", "c", 0, 1, -1, "d.e"], size)
        return {"dict": [[key, self.tree(depth - 1)] for key in keys]}


def attempt(function):
    try:
        return {"result": function()}
    except (ValueError, AssertionError, CheckpointingException) as error:
        return {"error": type(error).__name__, "message": str(error)}


def save(name, content):
    cases = {key: "[\n" + ",\n".join(json.dumps(case) for case in value) + "\n]" for key, value in content.items()}
    body = ",\n".join(f"{json.dumps(key)}: {text}" for key, text in cases.items())
    (HERE / name).write_text(f'{{"producer": {json.dumps(PRODUCER)},\n{body}}}\n')


def megatron_trees():
    every = Trees(1, ["plain", "plain", "sharded", "object", "factory", "local", "empty"])
    extract, split, prefixes = [], [], []
    is_sharded = lambda v: isinstance(v, ShardedBase)
    for _ in range(150):
        tree = every.tree(4, every.random.choice(["dict", "dict", "list"]))
        lists = dict_utils.extract_matching_values(decode(tree), is_sharded)
        dicts = dict_utils.extract_matching_values(decode(tree), is_sharded, return_lists_as_dicts=True)
        extract.append({"tree": tree, "list": [encode(x) for x in lists], "dict": [encode(x) for x in dicts]})
    for _ in range(150):
        tree = every.tree(4, "dict")
        common_of = lambda: state_dict_utils.save_preprocess(decode(tree), validate_access_integrity=False)
        rest, local, factories = state_dict_utils.load_preprocess(decode(tree))
        request = [dict_utils.extract_matching_values(rest, is_sharded)[0], local, factories]
        split.append({"tree": tree, "save": [encode(x) for x in common_of()], "load": [encode(x) for x in request]})
    for _ in range(40):
        tree = every.tree(3, "dict")
        case = {"tree": tree}
        for operation, arguments in (("add", ("p.",)), ("replace", ("a.", "z.")), ("map", ({"a.b.": "first.", "a.": "second."},))):
            function = {"add": utils.add_prefix_for_sharding, "replace": utils.replace_prefix_for_sharding, "map": utils.apply_prefix_mapping}[operation]
            state = decode(tree)
            case[operation] = attempt(lambda: [function(state, *arguments), encode(state)][1])
        prefixes.append(case)

    plain = Trees(2, ["plain"])
    merge = []
    for _ in range(150):
        left, right = plain.tree(3, "dict"), plain.tree(3, "dict")
        merge.append({"into": left, "from": right, **attempt(lambda: encode(dict_utils.merge(decode(left), decode(right))))})
    merges = []
    made = Trees(3, ["plain", "plain", "factory"])
    for _ in range(150):
        tree = made.tree(3, "dict")
        loaded = decode(tree)
        factories = dict_utils.extract_matching_values(loaded, lambda v: isinstance(v, ShardedTensorFactory), return_lists_as_dicts=True)[0]
        target = tree if made.random.random() < 0.7 else made.tree(3, "dict")
        built = dict_utils.dict_list_map_outplace(lambda v: v.key if isinstance(v, ShardedTensorFactory) else v, decode(target))
        merges.append({"into": encode(built), "factories": encode(factories), **attempt(lambda: encode(apply_factory_merges(built, factories)))})
    save("megatron_trees.json", {"extract": extract, "split": split, "prefixes": prefixes, "merge": merge, "factory_merge": merges})


def fields(shard):
    flat = shard.flattened_range
    return {
        "local_shape": list(shard.local_shape),
        "global_shape": list(shard.global_shape),
        "global_offset": list(shard.global_offset),
        "axis_fragmentations": list(shard.axis_fragmentations),
        "range": None if flat is None else [int(flat.start), int(flat.stop)],
        "data": [float(x) for x in shard.data.flatten().tolist()],
        "chunk": None if 0 in shard.local_shape else [int(x) for x in shard.local_chunk_offset_in_global()],
    }


def sharded_tensors():
    dice = random.Random(4)
    cases = []
    for _ in range(200):
        dims, prepended = dice.randint(0, 3), dice.randint(0, 2)
        shape = [dice.choice([0, 1, 2, 3, 4, 6]) if dice.random() < 0.05 else dice.randint(1, 5) for _ in range(dims)]
        offsets = []
        for axis in range(dims + prepended):
            if dice.random() < 0.6:
                count = dice.randint(1, 4)
                offsets.append([axis, dice.randrange(count) + (count if dice.random() < 0.04 else 0), count])
        numel = int(numpy.prod(shape, dtype=int))
        flat = sorted([dice.randint(0, numel), dice.randint(0, numel)]) if dims and dice.random() < 0.5 else None
        data = torch.arange(numel, dtype=torch.float32)

        def make():
            if flat is None:
                return ShardedTensor.from_rank_offsets("key", data.reshape(shape), *map(tuple, offsets), prepend_axis_num=prepended)
            return ShardedTensor.from_rank_offsets_flat(
                "key", data[flat[0] : flat[1]], tuple(shape), *map(tuple, offsets), prepend_axis_num=prepended, flattened_range=slice(*flat)
            )

        case = {"shape": shape, "prepended": prepended, "offsets": offsets, "range": flat, "made": attempt(lambda: fields(make()))}
        case["narrowed"] = []
        if "result" in case["made"]:
            for _ in range(3 if dims else 0):
                axis = 0 if flat is not None and dice.random() < 0.8 else dice.randrange(dims)
                if shape[axis] == 0:
                    continue
                start = dice.randint(0, shape[axis])
                length = dice.randint(0, shape[axis] - start)
                case["narrowed"].append({"arguments": [axis, start, length], **attempt(lambda: [fields(x) for x in make().narrow(axis, start, length)])})
        cases.append(case)
    keys = []
    for key, offset, shape in (("a.b", (0, 3), (1, 8)), ("rng", (0,), (1,)), ("obj with spaces.ключ", (1, 0, 2), (2, 1, 3))):
        keys.append({"key": key, "offset": offset, "shape": shape, "unique": ShardedObject(key, None, shape, offset).unique_key})
    for text in ("a/shard_0_1", "a/shard_0.1_2", "a", "a/shard_0", "a/shard_x_1", "a/piece_0_1", "a/shard_0.1_8.8.8"):
        made = attempt(lambda: ShardedObject.empty_from_unique_key(text))
        found = made.get("result")
        keys.append({"text": text, **({"key": found.key, "offset": found.global_offset, "shape": found.global_shape} if found else {"error": made["error"]})})
    save("sharded.json", {"tensors": cases, "unique_keys": keys})


def dcp_trees():
    trees = Trees(5, ["plain", "plain", "tensor", "tuple of a tensor"])
    flatten, elements = [], []

    def flat(tree):
        flattened, paths = _nested_dict.flatten_state_dict(decode(tree))
        nested = _nested_dict.unflatten_state_dict(flattened, paths)
        return {
            "names": list(flattened),
            "paths": [list(paths[name]) for name in flattened],
            "values": [encode(value) for value in flattened.values()],
            "unflattened": encode(nested),
        }

    def either(tree):
        outcome = attempt(lambda: flat(tree))
        return outcome.get("result", outcome)

    for tree in [trees.tree(4, "dict") for _ in range(150)] + [{"dict": [["a.b", 1], ["a", {"dict": [["b", 2]]}]]}]:
        case = {"tree": tree, "current": either(tree)}
        _version._derived_version = "2_3"
        case["torch23"] = either(tree)
        _version._derived_version = None
        flatten.append(case)
    dice = random.Random(6)
    for _ in range(60):
        whole = trees.tree(4, "dict")
        flattened, paths = _nested_dict.flatten_state_dict(decode(whole))
        names = list(flattened)
        dice.shuffle(names)
        names = names[: dice.randint(0, len(names))]
        root = {}
        for name in names:
            _traverse.set_element(root, paths[name], flattened[name])
        elements.append({"set": [[list(paths[name]), encode(flattened[name])] for name in names], "result": encode(root)})
    save("dcp_trees.json", {"flatten": flatten, "set_element": elements})


def python_values():
    values = [
        None, True, False, 0, 1, -1, 2, 1.0, -0.0, 1.5, 0.1, 2**53, 2.0**53, 2**53 + 1, 2**63 - 1, 2**63, 2.0**63, -(2**63), -(2.0**63), -(2**63) - 1, 2**64, 2.0**64,
        10**18, 10**25, 1e25, int(1e25), -(10**40), 2**200, 2.0**200, -(2**200), -(2.0**200), 3 * 2**100, 3 * 2.0**100, 2**1023, 2.0**1023, float("inf"), float("-inf"),
        1 + 0j, 1 + 1j, complex(0, 1), complex(2.0**63, 0), "", "1", "a", b"", b"a", bytearray(b"a"), [], (), [1], (1,), (True,), (1.0, "a"), [1, 2], [2, 1],
        {}, {1: "a"}, {1.0: "a"}, {1: "a", 2: "b"}, {2: "b", True: "a"}, {1: {"x": [1.0]}}, {1: {"x": [1]}}, set(), {1, 2}, {2.0, 1}, frozenset(), frozenset({1, 2}),
        frozenset({frozenset({1}), (1, 2)}), frozenset({(True, 2.0), frozenset({1.0})}), (frozenset({1, 2}), "x"), (frozenset({2, 1}), "x"), ((1, (2, (3,))),), ((1.0, (2, (3,))),),
    ]  # fmt: skip
    equal = [[1 if a == b else 0 for b in values] for a in values]
    save("python_values.json", {"values": [encode(v) for v in values], "equal": equal, "numbers": [[encode(n), str(n)] for n in
        (2**63, -(2**63) - 1, 2**64 - 1, 2**64, 10**30, -(10**30), 2**127, -(2**127), 2**1000, -(3**500), 10**4000)]})


if __name__ == "__main__":
    megatron_trees()
    sharded_tensors()
    dcp_trees()
    python_values()
