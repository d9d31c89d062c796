#!/usr/bin/env python3
"""convert-2g: conversions of 2 GiB of bfloat16 by `dckpt convert`, and by Python where it has torch and safetensors.

    benchmarks/convert_2g.py build/release/bin/dckpt [--dir FOLDER] [--repeats N] [--gib N] [--json FILE]

Prints a line per conversion with its share of the limit: the slower of reading the source and of writing as many bytes durably, both from two
threads, measured in the same round. Every conversion is a process of its own; results are durable, and the source is in the page cache.
"""

import argparse, concurrent.futures, importlib.util, json, os, pathlib, shutil, statistics, subprocess, sys, time

STEP = 8 << 20

# What each of these does is what its documentation shows; a second argument names the result.
TORCH_DIST_TO_HF = """
import sys, torch, torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
reader = dcp.FileSystemReader(sys.argv[1])
state = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in reader.read_metadata().state_dict_metadata.items()
         if isinstance(v, TensorStorageMetadata)}
dcp.load(state, storage_reader=reader, no_dist=True)
save_file(state, sys.argv[2], metadata={"format": "pt"})
import os; os.fsync(os.open(sys.argv[2], os.O_RDONLY))
"""
HF_TO_TORCH_DIST = """
import sys, torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
dcp.save(load_file(sys.argv[1] + "/model.safetensors"), storage_writer=dcp.FileSystemWriter(sys.argv[2], single_file_per_rank=True), no_dist=True)
"""
FORMAT_UTILS = """
import sys
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
dcp_to_torch_save(sys.argv[1], sys.argv[2] + ".pt")
torch_save_to_dcp(sys.argv[2] + ".pt", sys.argv[2])
"""


def write_model(path, size):
    """32 tensors (rows, 1024) in one safetensors file."""
    rows = size // 32 // 2048
    header = {"__metadata__": {"format": "pt"}}
    for i in range(32):
        header[f"layers.{i:02}.weight"] = {"dtype": "BF16", "shape": [rows, 1024], "data_offsets": [i * rows * 2048, (i + 1) * rows * 2048]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        block = bytes(j % 251 for j in range(2048))
        for _ in range(32):
            file.write(block * rows)


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def read_files(paths):
    def read(path, part):
        buffer = bytearray(STEP)
        with open(path, "rb", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size
            for at in range(part * STEP, end, 2 * STEP):
                file.seek(at)
                file.readinto(memoryview(buffer)[: min(STEP, end - at)])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: read(*job), [(path, part) for path in paths for part in (0, 1)]))


def write_files(directory, size):
    directory.mkdir()
    block = os.urandom(STEP)
    def write(name):
        with open(directory / name, "wb", buffering=0) as file:
            for _ in range(size // 2 // STEP):
                file.write(block)
            os.fsync(file.fileno())
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(write, "ab"))



def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dckpt")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path(os.environ.get("TMPDIR", "/tmp")))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    size = int(options.gib * (1 << 30)) >> 16 << 16
    root = options.dir / f"convert-2g-{os.getpid()}"
    root.mkdir(parents=True)
    hf, torch_dist, out = root / "hf", root / "torch_dist", root / "out"

    def dckpt(*words):
        return lambda: subprocess.run([options.dckpt, "convert", *map(str, words)], check=True, stdout=subprocess.DEVNULL)

    def python(script, source, target):
        return lambda: subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(source), str(target)], check=True)

    try:
        write_model(hf / "model.safetensors", size)
        dckpt(hf, torch_dist, "--to", "torch_dist", "--ranks", 2)()
        cases = {
            ("torch_dist to hf", "dckpt"): (torch_dist, dckpt(torch_dist, out, "--to", "hf")),
            ("hf to torch_dist", "dckpt"): (hf, dckpt(hf, out, "--to", "torch_dist")),
            ("torch_dist to 3 ranks", "dckpt"): (torch_dist, dckpt(torch_dist, out, "--ranks", 3)),
        }
        if importlib.util.find_spec("torch") and importlib.util.find_spec("safetensors"):
            cases |= {
                ("torch_dist to hf", "a script with safetensors"): (torch_dist, python(TORCH_DIST_TO_HF, torch_dist, out)),
                ("hf to torch_dist", "a script with safetensors"): (hf, python(HF_TO_TORCH_DIST, hf, out)),
                ("torch_dist to 3 ranks", "format_utils, to one rank"): (torch_dist, python(FORMAT_UTILS, torch_dist, out)),
            }
        times = {case: [] for case in cases}
        shares = {case: [] for case in cases}
        for _ in range(options.repeats):
            for case, (source, convert) in cases.items():
                os.sync()
                files = [path for path in source.iterdir() if path.is_file()]
                read_files(files)
                limit = seconds(lambda: read_files(files))
                limit = max(limit, seconds(lambda: write_files(root / "limit", size)))
                shutil.rmtree(root / "limit")
                os.sync()
                times[case].append(seconds(convert))
                shares[case].append(limit / times[case][-1])
                for left in root.glob("out*"):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        print(f"{'conversion':24}{'by':28}{'seconds':>9}{'of the limit':>14}")
        for case in cases:
            print(f"{case[0]:24}{case[1]:28}{statistics.median(times[case]):9.2f}{statistics.median(shares[case]):14.2f}")
            if options.json:
                with open(options.json, "a") as file:
                    print(json.dumps({"peer": case[1], "workload": "convert-2g:" + case[0].replace(" ", "-"), "metric": "convert_s", "unit": "s",
                                      "value": statistics.median(times[case]), "share_of_limit": statistics.median(shares[case]),
                                      "repeats": options.repeats, "values": times[case], "load1": os.getloadavg()[0]}), file=file)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
