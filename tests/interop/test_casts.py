"""The digests that tests/mapping/geometry/cast_test.cpp expects of our casts are those of torch's Tensor.to()."""

from __future__ import annotations

import hashlib
import pathlib
import re
import unittest

import numpy
import torch

TABLE = pathlib.Path(__file__).resolve().parents[1] / "mapping/geometry/cast_test.cpp"
LOW = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
LOW_OF_DOUBLE = [0, 1, 0x0FFFFFFF, 0x10000000, 0x10000001, 0x1000000000, 0x800000000001]


def samples(dtype: torch.dtype) -> torch.Tensor:
    """All values of a type of 8 or 16 bits. Of the others, all signs and exponents with mantissas that are, just miss, or are next to, halfway cases of the narrower types."""
    if dtype.itemsize == 1:
        bits = numpy.arange(256, dtype=numpy.uint8)
    elif dtype.itemsize == 2:
        bits = numpy.arange(65536, dtype=numpy.uint16)
    else:
        low = LOW if dtype.itemsize == 4 else LOW_OF_DOUBLE
        word = numpy.uint32 if dtype.itemsize == 4 else numpy.uint64
        high = numpy.arange(65536, dtype=word) << word(8 * dtype.itemsize - 16)
        bits = (high[:, None] | numpy.array(low, dtype=word)[None, :]).reshape(-1)
    return torch.from_numpy(bits.view(numpy.uint8)).view(dtype)


def digest(tensor: torch.Tensor) -> str:
    """Of the bytes, each NaN as ones."""
    data = tensor.view(torch.uint8).numpy().reshape(-1, tensor.dtype.itemsize).copy()
    data[torch.isnan(tensor.double()).numpy()] = 0xFF
    return hashlib.sha256(data.tobytes()).hexdigest()[:16]


class Casts(unittest.TestCase):
    def test_the_digests_of_the_table(self):
        rows = re.findall(r'\{"(\w+)", "(\w+)", "([0-9a-f]{16})"\}', TABLE.read_text())
        self.assertEqual(len(set(rows)), 8 * 7)
        for stored, loaded, expected in rows:
            cast = samples(getattr(torch, stored)).to(getattr(torch, loaded))
            self.assertEqual(digest(cast), expected, f"{stored} to {loaded}")


if __name__ == "__main__":
    unittest.main()
