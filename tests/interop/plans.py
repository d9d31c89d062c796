"""What the planner tests share: the library's own plans, and random ways to cut a tensor."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess

SEED = int(os.environ.get("DCKPT_TEST_SEED", "20240229"))

Box = tuple[tuple[int, ...], tuple[int, ...]]     # offsets, sizes


def our_answers(jobs: list[dict]) -> list[dict]:
    """One answer per job; plan_oracle.cpp says what both look like."""
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run([os.environ["DCKPT_PLAN_ORACLE"]], input=lines, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def random_shape(rng: random.Random, axes: int | None = None, largest: int = 9) -> tuple[int, ...]:
    """Of 0 to 3 axes; one in twenty has an axis without elements."""
    axes = rng.randint(0, 3) if axes is None else axes
    shape = [rng.randint(1, largest) for _ in range(axes)]
    if axes and rng.random() < 0.05:
        shape[rng.randrange(axes)] = 0
    return tuple(shape)


def cut(rng: random.Random, shape: tuple[int, ...], pieces: int) -> list[Box]:
    """Boxes that tile a tensor: up to `pieces` of them, cut one after the other anywhere, in any order. A few are empty."""
    boxes = [((0,) * len(shape), shape)]
    for _ in range(pieces - 1 if shape else 0):
        at, axis = rng.randrange(len(boxes)), rng.randrange(len(shape))
        offsets, sizes = boxes[at]
        first = rng.randint(0, sizes[axis])
        if 0 < first < sizes[axis] or rng.random() < 0.04:
            boxes[at] = (offsets, replaced(sizes, axis, first))
            boxes.append((replaced(offsets, axis, offsets[axis] + first), replaced(sizes, axis, sizes[axis] - first)))
    rng.shuffle(boxes)
    return boxes


def replaced(numbers: tuple[int, ...], axis: int, number: int) -> tuple[int, ...]:
    return (*numbers[:axis], number, *numbers[axis + 1:])


def tiles(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    """Whether each element of a tensor lies in exactly one of the boxes, and no box reaches beyond it."""
    held = set()
    for offsets, sizes in boxes:
        if any(begin < 0 or begin + size > extent for begin, size, extent in zip(offsets, sizes, shape)):
            return False
        elements = elements_of(offsets, sizes)
        if not held.isdisjoint(elements):
            return False
        held |= elements
    return len(held) == math.prod(shape)


def elements_of(offsets, sizes) -> set[tuple[int, ...]]:
    elements = [()]
    for begin, size in zip(offsets, sizes):
        elements = [(*element, at) for element in elements for at in range(begin, begin + size)]
    return set(elements)
