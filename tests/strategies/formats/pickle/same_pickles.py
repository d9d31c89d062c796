"""Loads pairs of pickles with Python's unpickler and compares what they describe: ORIGINALS/NAME.pkl with REWRITTEN/NAME.*.pkl.

Classes are not imported: each object becomes a record of how it was made and filled, so that numpy and unknown classes compare, too. Shared objects
have to be shared in the same places.
"""
import _compat_pickle
import builtins
import copyreg
import pickle
import sys
from pathlib import Path

PLAIN = {"set", "frozenset", "bytes", "bytearray", "complex"}


class Record:
    def __new__(cls, *args, **kwargs):
        self = object.__new__(cls)
        self.made = [args, kwargs]
        self.items, self.pairs, self.states = [], [], []
        return self

    def append(self, item):
        self.items.append(item)

    def extend(self, items):
        self.items.extend(items)

    def __setitem__(self, key, value):
        self.pairs.append((key, value))

    def __setstate__(self, state):
        self.states.append(state)

    def __hash__(self):
        return 0

    def parts(self):
        return type(self).path, self.made, self.items, self.pairs, self.states


def record_class(path):
    return type("Record", (Record,), {"path": path})


class Unpickler(pickle.Unpickler):
    def __init__(self, file):
        super().__init__(file)
        self.classes = {}

    def find_class(self, module, name):
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (_compat_pickle.IMPORT_MAPPING.get(module, module), name))
        if module == "builtins" and name in PLAIN:
            return getattr(builtins, name)
        if (module, name) == ("_codecs", "encode"):
            return lambda text, encoding: text.encode(encoding)
        if (module, name) == ("builtins", "getattr"):
            return lambda obj, attribute: self.find_class(obj.module, f"{obj.name}.{attribute}") if isinstance(obj, type) else Record(obj, attribute)
        if module == "copyreg" and name in ("__newobj__", "__newobj_ex__"):
            return getattr(copyreg, name)
        if (module, name) == ("functools", "partial"):  # how protocol 2 spells NEWOBJ_EX
            return Partial
        cls = self.classes.setdefault((module, name), record_class(f"{module}.{name}"))
        cls.module, cls.name = module, name
        return cls

    def persistent_load(self, pid):
        record = record_class("persistent")()
        record.items.append(pid)
        return record


class Partial:
    """functools.partial(class.__new__, class, *args, **kwargs)(), which makes the same object as NEWOBJ_EX."""

    def __init__(self, function):
        pass

    def __setstate__(self, state):
        _, (self.cls, *self.args), self.kwargs, _ = state

    def __call__(self):
        return self.cls.__new__(self.cls, *self.args, **self.kwargs)


def same(a, b, seen):
    """Equal kinds, equal content, and the same objects shared."""
    if isinstance(a, type) and isinstance(b, type):
        return a.path == b.path
    if type(a) is not type(b) and not (isinstance(a, Record) and isinstance(b, Record)):
        return False
    if isinstance(a, (list, dict, set, bytearray, Record)):
        if id(a) in seen:
            return seen[id(a)] == id(b)
        seen[id(a)] = id(b)
    if isinstance(a, Record):
        return same(a.parts(), b.parts(), seen)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, seen) for x, y in zip(a, b))
    if isinstance(a, dict):
        return same(tuple(a.items()), tuple(b.items()), seen)
    return repr(a) == repr(b) if isinstance(a, float) else a == b


def load(path):
    with open(path, "rb") as file:
        return Unpickler(file).load()


def main():
    originals, rewritten = map(Path, sys.argv[1:3])
    files = sorted(rewritten.glob("*.pkl"))
    for file in files:
        name = file.name.split(".w")[0] + ".pkl"
        if not same(load(originals / name), load(file), {}):
            sys.exit(f"{file.name} does not load as {name} does")
    if not files:
        sys.exit("nothing to compare")
    print(f"{len(files)} pickles load alike")


if __name__ == "__main__":
    main()
