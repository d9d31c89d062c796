#!/usr/bin/env python3
"""layers.py ROOT: every #include "…" points to the same floor or to one below.

FLOORS says what each folder may include beside itself; the longest entry that contains a file
counts. Beyond that, no folders include each other in a circle, whether or not FLOORS names them.
libtorch, CUDA, NCCL and MPI are named at the edge only, and dist_checkpointing and what stands on
it know locations, not file systems.
"""
import pathlib
import re
import sys

TOPS = ("mapping", "configs", "strategies", "migration", "dist_checkpointing", "transfer",
        "operations", "conformance", "tools", "include")

BASE = ["mapping/base"]
GEOMETRY = BASE + ["mapping/geometry"]
MAPPING = GEOMETRY + ["mapping/planning", "mapping/state", "mapping/megatron"]
CONFIGS = MAPPING + ["configs/yaml", "configs/policy"]
CONTRACT = CONFIGS + ["strategies/storage", "strategies/formats", "strategies/contract"]
# What a job runs: all of dckpt::core below dist_checkpointing.
STRATEGIES = CONTRACT + [f"strategies/{room}" for room in (
    "comm", "device", "tensor_io", "parallel", "torch_dist", "registry")]
MAPS = STRATEGIES + ["configs/maps", "strategies/views", "strategies/safetensors"]
JOB = STRATEGIES + ["dist_checkpointing"]
PEOPLE = JOB + ["configs/maps", "strategies", "migration", "transfer"]
BACKENDS = ("torch_dist", "zarr", "legacy_torch", "local", "torch_checkpointing", "safetensors")
# Only formats that dckpt::core has are known to it.
OPTIONAL_FORMATS = ("strategies/formats/safetensors",)


def job(*rooms):
    return STRATEGIES + [f"dist_checkpointing/{room}" for room in rooms]


FLOORS = {
    "mapping/base": [],
    "mapping/geometry": BASE,
    "mapping/planning": GEOMETRY,
    "mapping/planning/save": GEOMETRY + ["mapping/planning"],
    "mapping/planning/load": GEOMETRY + ["mapping/planning"],
    "mapping/state": GEOMETRY,
    "mapping/torch": GEOMETRY + ["mapping/state"],
    "mapping/megatron": GEOMETRY + ["mapping/planning", "mapping/state"],
    "configs/yaml": MAPPING,
    "configs/policy": MAPPING + ["configs/yaml"],
    "configs/maps": CONFIGS,
    # comm, storage, formats and device know nothing of each other.
    "strategies/comm": CONFIGS,
    "strategies/comm/nccl": CONFIGS + ["strategies/comm", "strategies/device/cuda"],
    "strategies/storage": BASE,
    "strategies/formats": MAPPING,
    "strategies/device": MAPPING,
    "strategies/contract": CONTRACT,
    "strategies/tensor_io": CONTRACT + ["strategies/device"],
    **{f"strategies/{backend}": CONTRACT for backend in BACKENDS},
    "strategies/views": CONTRACT + ["strategies/tensor_io"],
    "strategies/parallel": CONTRACT + ["strategies/tensor_io", "strategies/comm"],
    "strategies/registry": CONTRACT + ["strategies/torch_dist"],
    # What one of Megatron's checkpoints is to another kind of run: a reader that shows it so.
    "migration/rank_folders": STRATEGIES + ["strategies"],
    # The floors of a map: what is named, what is known of the model, which tensor belongs to which
    # row, and what is made of them; findings read all.
    "migration/maps": MAPS,
    "migration/maps/sides": MAPS,
    "migration/maps/numbers": MAPS + ["migration/maps/sides"],
    "migration/maps/assignment": MAPS + ["migration/maps/sides", "migration/maps/numbers"],
    "migration/maps/arrangement": MAPS + [
        f"migration/maps/{room}" for room in ("sides", "numbers", "assignment")],
    "migration/maps/findings": MAPS + [
        f"migration/maps/{room}" for room in ("sides", "numbers", "assignment", "arrangement")],
    "migration/adapters": MAPS,
    "migration/models": MAPS,
    "migration/optimizer": MAPS,
    "migration/megatron_fsdp": MAPS + ["migration/optimizer"],
    "migration/registration": MAPS + ["strategies", "migration"],
    "dist_checkpointing/open": job("planner"),
    "dist_checkpointing/ranks": job(),
    "dist_checkpointing/planner": job(),
    # A checkpoint has passed check_stored() before another is deleted for its sake.
    "dist_checkpointing/verify": job("open", "ranks"),
    "dist_checkpointing/training_root": job("open", "verify"),
    "dist_checkpointing/load": job("open", "ranks", "verify", "planner"),
    "dist_checkpointing/save": job("open", "ranks", "verify", "planner", "training_root"),
    "dist_checkpointing/checkpointer": JOB,
    "dist_checkpointing/torch": JOB + ["mapping/torch"],
    "transfer": JOB,
    "operations/inspect": PEOPLE,
    "operations/convert": PEOPLE + ["operations/inspect"],
    "operations/upkeep": PEOPLE + ["operations/inspect"],
    "operations/json": PEOPLE + ["operations"],
    "operations/page": PEOPLE + ["operations/inspect", "operations/json"],
    "conformance": JOB,
    "tools": PEOPLE + ["operations", "dckpt"],
    "tools/dckpt/grammar": PEOPLE + ["operations"],
    "tools/dckpt/render": PEOPLE + ["operations"],
    "tools/dckpt/pictures": PEOPLE + ["operations", "tools/dckpt/render"],
    "include": PEOPLE + ["operations", "conformance", "mapping/torch", "dckpt"],
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
# What may name whom, by the path of the includer; the include is written with < or ".
EDGES = (
    ("libtorch", r"(ATen|torch|c10)/",
     r"(mapping/torch|strategies/comm/c10d|dist_checkpointing/torch)/"),
    ("CUDA or NCCL", r"(nccl|cuda[a-z_]*)\.h",
     r"strategies/(comm/nccl/.*\.cpp|device/cuda/.*\.cpp|device/cuda/(current_device|copy_rows)\.h)$"),
    ("MPI", r"mpi\.h", r"(strategies/comm/mpi/|tools/dckpt/mpi_main\.cpp$)"),
)
PAST_LOCATION = re.compile(r"filesystem$|strategies/storage/posix")
KNOWS_LOCATIONS = re.compile(r"(dist_checkpointing|transfer|operations|conformance)/")


def is_in(path, folder):
    return path.startswith(f"{folder}/") or path.startswith(f"{folder}.")


def floor_of(path):
    return max((floor for floor in FLOORS if is_in(path, floor)), key=len, default=None)


def problems_of_file(path, text):
    floor = floor_of(path)
    if floor is None:
        yield f"{path} is on no floor"
        return
    is_core = floor.split("/")[0] in ("dist_checkpointing", "transfer") or floor in (
        "strategies/torch_dist", "strategies/registry", "strategies/contract")
    for included, system in INCLUDE.findall(text):
        for name, pattern, may in EDGES:
            if re.match(pattern, included or system) and not re.match(may, path):
                yield f"{path} includes {name}: {included or system}"
        if PAST_LOCATION.match(included or system) and KNOWS_LOCATIONS.match(path):
            yield (f"{path} goes past Location (strategies/storage/location.h): "
                   f"{included or system}")
        if included and not any(is_in(included, below) for below in (floor, *FLOORS[floor])):
            yield f"{path} ({floor}) must not include {included}"
        if is_core and any(is_in(included, optional) for optional in OPTIONAL_FORMATS):
            yield f"{path} is in dckpt::core and must not include {included}"


def circles(edges):
    """Yields a circle of folders, each beside the others in one folder, as often as one is found."""
    seen = set()

    def visit(folder, trail):
        if folder in trail:
            yield trail[trail.index(folder):] + [folder]
        elif folder not in seen:
            for below in sorted(edges.get(folder, ())):
                yield from visit(below, trail + [folder])
            seen.add(folder)

    for folder in sorted(edges):
        yield from visit(folder, [])


def folder_edges(files):
    """The includes between folders that stand side by side, at every depth."""
    edges = {}
    for path, text in files.items():
        mine = path.split("/")[:-1]
        for included, _ in INCLUDE.findall(text):
            if included not in files:
                continue
            other = included.split("/")[:-1]
            depth = 0
            while depth < min(len(mine), len(other)) and mine[depth] == other[depth]:
                depth += 1
            if depth < min(len(mine), len(other)):
                edges.setdefault("/".join(mine[:depth + 1]), set()).add(
                    "/".join(other[:depth + 1]))
    return edges


def main(root):
    files = {}
    for top in TOPS:
        for file in sorted(root.glob(f"{top}/**/*")):
            if file.suffix in (".h", ".cpp"):
                files[file.relative_to(root).as_posix()] = file.read_text(encoding="utf-8")
    problems = [problem for path, text in files.items() for problem in problems_of_file(path, text)]
    problems += [f"folders include each other: {' → '.join(circle)}"
                 for circle in circles(folder_edges(files))]
    if not files:
        problems = [f"there are no sources below {root}"]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
