"""Writes the pickles of this folder with Python's own pickler: NAME.pPROTOCOL.pkl. Needs numpy 2 for `numpy`, nothing else.

    python make_pickles.py [OUTDIR]

The tests never run it; README.md says what wrote the committed files.
"""
import argparse
import collections
import datetime
import enum
import io
import pickle
import sys
from pathlib import Path


class Colour(enum.Enum):
    RED = 1


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    class Inner:
        pass


class Keyword:
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __getnewargs_ex__(self):
        return (1, "two"), {"three": 3}


class Items(list):
    pass


class Table(dict):
    pass


def plain():
    return {
        "none": None,
        "bools": [True, False],
        "ints": [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**63 - 1, -2**63],
        "big ints": [2**63, -2**63 - 1, 10**30, -10**30, 2**2047],
        "floats": [0.0, -0.0, 1.5, -2.5e-300, 1e308, float("inf"), float("-inf")],
        "complex": 1.5 - 2j,
        "texts": ["", "plain", "é", "日本", "𝄞", "back\\slash", "line\nbreak", "nul\0", "\ud800 lone"],
        "long text": "x" * 300,
        "bytes": [b"", b"abc", bytes(range(256))],
        "bytearrays": [bytearray(), bytearray(b"ab\x80\xff")],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((),)],
        "sets": [set(), {1}, {"a", 1, (2, 3)}],
        "frozensets": [frozenset(), frozenset({1, "b"})],
        "dicts": [{}, {1: "int", "1": "str", (1, 2): "tuple", None: "none", b"b": "bytes"}],
    }


def objects():
    inner = collections.OrderedDict([("b", 1), ("a", 2)])
    items = Items([1, 2])
    items.note = "state and items"
    table = Table(k="v")
    table.note = "state and items"
    return {
        "ordered": inner,
        "default": collections.defaultdict(list, {"k": [1]}),
        "namespace": argparse.Namespace(lr=0.1, name="x"),
        "point": Point(1, [2]),
        "items": items,
        "table": table,
        "enum": Colour.RED,
        "date": datetime.date(2024, 2, 29),
        "class": collections.OrderedDict,
        "exception": ValueError("wrong"),
    }


def sharing():
    shared = [1, 2]
    text = "a text that is used twice"
    return {"first": shared, "second": shared, "nested": (shared, {"again": shared}), "texts": [text, text]}


def batches():
    """More items than go into one APPENDS or SETITEMS, with containers between them."""
    return {"list": [[i] if i % 3 == 0 else i for i in range(2500)], "dict": {f"k{i}": {"i": i} for i in range(1500)},
            "ordered": collections.OrderedDict((i, (i,)) for i in range(1200)), "set": set(range(1100))}


def cycle_list():
    value = [1]
    value.append(value)
    return value


def cycle_dict():
    value = {}
    value["me"] = value
    return value


def cycle_object():
    value = argparse.Namespace()
    value.me = value
    return value


class PersistentPickler(pickle.Pickler):
    def persistent_id(self, obj):
        return ("storage", obj.x, obj.y) if isinstance(obj, Point) else None


def dumps(pickler, obj, protocol):
    out = io.BytesIO()
    pickler(out, protocol).dump(obj)
    return out.getvalue()


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    sys.modules["make_pickles"] = sys.modules[__name__]  # the module that the pickles name
    for cls in (Colour, Point, Point.Inner, Keyword, Items, Table):
        cls.__module__ = "make_pickles"

    (out / "refused").mkdir(exist_ok=True)

    def write(name, protocol, data):
        (out / f"{name}.p{protocol}.pkl").write_bytes(data)

    for protocol in (0, 1):
        write("refused/plain", protocol, pickle.dumps(plain(), protocol))
    for protocol in range(2, 6):
        for make in (plain, objects, sharing):
            write(make.__name__, protocol, pickle.dumps(make(), protocol))
        point = Point(7, "key")
        write("persistent", protocol, dumps(PersistentPickler, [point, {"again": point}], protocol))
    for protocol in (2, 4):
        write("batches", protocol, pickle.dumps(batches(), protocol))
        for make in (cycle_list, cycle_dict, cycle_object):
            write(make.__name__, protocol, pickle.dumps(make(), protocol))
        write("stateful", protocol, pickle.dumps({"keyword": Keyword(), "nested class": Point.Inner, "nested object": Point.Inner(),
                                                  "buffer": io.BytesIO(b"\0\xff")}, protocol))
    import numpy
    for protocol in (2, 4, 5):
        write("numpy", protocol, pickle.dumps({"array": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "scalar": numpy.int64(-3)}, protocol))


if __name__ == "__main__":
    main()
