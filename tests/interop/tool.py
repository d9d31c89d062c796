"""The built command line tool, as the interop tests use it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "data" / "checkpoints"
TOOL = os.environ["DCKPT_TOOL"]     # set by CMake for every test here
READABLE = {"torch_dist", "dcp", "zarr", "torch"}


def run(*words: str | os.PathLike) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([TOOL, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"dckpt {' '.join(map(str, words))}: exit {done.returncode}: {done.stderr.decode(errors='replace')[:2000]}")
    return done.stdout.decode()


def digests(path: os.PathLike) -> dict[str, dict]:
    """Key → {"dtype", "shape", "sha256"} of all tensors."""
    return json.loads(run("digest", path, "--json"))["tensors"]


def objects(path: os.PathLike) -> dict:
    return json.loads(run("extract", path, "--objects"))


def common(path: os.PathLike):
    return json.loads(run("extract", path, "--common"))


def goldens(*kinds: str) -> list[str]:
    """Names of the goldens of these kinds: mcore (torch_dist), dcp, zarr, legacy, safetensors, local, tc (torch_checkpointing)."""
    return sorted(path.name for path in GOLDENS.iterdir() if path.is_dir() and kind(path.name) in kinds)


def kind(name: str) -> str:
    if "-hf-" in name:
        return "safetensors"
    if "zarr" in name:
        return "zarr"
    if "nvrx" in name:
        return "local"
    return name.split("-")[0]


def expected(name: str) -> dict:
    return json.loads((GOLDENS / name / "expected.json").read_text())


def wanted_digests(expectations: dict) -> dict[str, dict]:
    """The same as digests(), from an expected.json."""
    return {key: {"dtype": t["dtype"], "shape": t["global_shape"], "sha256": t["sha256"]} for key, t in expectations["tensors"].items()}
