#!/usr/bin/env python3
"""json_reports_test.py TOOL EXAMPLE ROOT: what every command prints with --json is what its schema says.

Each command of RUNS is run on checkpoints of tests/data, whole and damaged ones; each of what
docs/schemas says must occur in some report, and a report with a field less or more must not fit.
EXAMPLE is examples/transfer.cpp: no command prints the JSON of a transfer plan.
"""
import concurrent.futures
import copy
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from json_schema import Schema

MODEL = "mcore-0.14-flattened-tp2pp2dp2"
SYNTHETIC = "mcore-head-synthetic"
GOLDENS = [MODEL, SYNTHETIC, "mcore-0.14-synthetic", "mcore-0.14-moe-ep2", "mcore-0.14-dp-zero-tp2pp1dp2",
           "mcore-head-fully-reshardable-tp2pp2dp2", "mcore-0.14-zarr-tp2pp1dp2", "mcore-0.16-nvrx-local",
           "legacy-torch-vpp-tp1pp2", "dcp-plain-nested", "dcp-fsdp2-tp", "dcp-hf-safetensors", "dcp-hf-safetensors-sharded",
           "tc-0.1-native-2d"]
DROPPED = "model.layers.0.self_attn.rotary_emb.inv_freq"  # by maps
# Fields that these runs do not have: rare kinds of values, and planners that programs register.
UNSEEN = {"extract": {"__opaque__", "class", "args", "kwargs", "state", "items", "pairs", "__storage__", "__global__",
                      "__reference__", "__OrderedDict__", "__defaultdict__"},
          "config": {"kind", "options"}}


class Folder:
    """The checkpoints that the commands look at, below a temporary folder."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        for golden in GOLDENS:
            self.copy(golden, golden)
        for damage in ("missing", "truncated", "flipped"):
            self.copy(MODEL, damage)
        (self.path / "missing/__2_0.distcp").unlink()
        os.truncate(self.path / "truncated/__2_0.distcp", 5000)
        self.flip("flipped/__2_0.distcp")
        for iteration, golden in enumerate([MODEL, MODEL, "dcp-fsdp2-tp"], start=1):
            self.copy(golden, f"root/iter_{iteration:07d}")
        self.copy(SYNTHETIC, "root/release")
        (self.path / "root/iter_0000002/__2_0.distcp").unlink()
        (self.path / "root/latest_checkpointed_iteration.txt").write_text("2")
        (self.path / "root/.iter_0000004.saving-elsewhere-1-2").mkdir()
        (self.path / "root/.iter_0000005.quarantined-1").mkdir()
        (self.path / "root/.dckpt.lock").write_text("job elsewhere-1-2-3")
        (self.path / "fleet").write_text("root\nmissing\n")
        for iteration in (1, 2):
            self.copy(MODEL, f"kept/iter_{iteration:07d}")
        self.copy(MODEL, "timed")
        phase = {"seconds": 1.5, "median": 1, "minimum": 0.5, "slowest_rank": 3, "bytes": 100}
        report = {"version": 1, "bytes": 5, "files": 6, "seconds": 2.5, "plan_cached": False, "why_planned": "first save",
                  "engine": "direct", "phases": dict.fromkeys("plan stage copy write sync publish".split(), phase)}
        (self.path / "timed/dckpt_report.json").write_text(json.dumps(report))
        shutil.copytree(root / "tests/data/modelopt/modelopt_state", self.path / f"{SYNTHETIC}/modelopt_state")
        for side in ("hf", "mcore"):
            shutil.copytree(root / "tests/data/hf_pairs/qwen2" / side, self.path / f"qwen2_{side}")
        self.add_dropped("qwen2_hf/model.safetensors")
        for part in ("base", "adapter"):
            shutil.copytree(root / "tests/data/adapters/llama" / part, self.path / f"llama_{part}")
        (self.path / "nan").mkdir()
        header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        (self.path / "nan/model.safetensors").write_bytes(
            len(header).to_bytes(8, "little") + header + struct.pack("<2f", math.nan, 1))
        (self.path / "long.yaml").write_text(
            "version: 1\nsave: {backend: {name: torch_dist, version: 1, options: {compression: none}}}\nload:\n"
            "  backend: {name: dcp, version: 1}\n  map: {name: llama, set: [vocab_size=32]}\n"
            "  rename: [{from: a, to: b}]\n  missing: [{keys: a, action: keep}]\n")
        (self.path / "map.yaml").write_text(
            "version: 1\nextends: qwen2\nfamily: own\nnumbers: {kv_channels: {hf: \"layer_types.{l}\", words: {wide: 64, narrow: 32}}}\ntensors:\n"
            "  - {megatron: a, hf: [b, c], transform: {concat_rows: [2, 1]},\n"
            "     cast: {megatron: float32, hf: bfloat16}, add: {value: 1, if: tied, rounded: true}}\n"
            "  - {megatron: decodr.a.linear_qkv.weight, hf: d, transform: {qkv_grouped: [2, 1]}}\n"
            "  - {megatron: \"{e}.a\", hf: e, transform: {experts_in_rows: 4}}\n")
        (self.path / "foreign.yaml").write_text(
            "version: 1\nfamily: own\nleft: Trainer\nlayout: homogeneous\nextra_state: true\ntensors:\n"
            "  - {left: a, hf: b, cast: {left: float32, hf: bfloat16}}\nignore: {left: [\"optimizer.*\"]}\n")
        (self.path / "keep.yaml").write_text("version: 1\nretention: {keep_last: 1}\n")
        (self.path / "wrong.yaml").write_text("version: 1\nsave:\n  io: {threads: 0}\n  nothing: 1\n")

    def copy(self, golden, name):
        shutil.copytree(root / "tests/data/checkpoints" / golden / "ckpt", self.path / name)

    def add_dropped(self, name):
        """Adds a tensor of one element that no map wants to a safetensors file."""
        data = (self.path / name).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        offset = len(data) - end
        header = json.loads(data[8:end]) | {DROPPED: {"dtype": "F32", "shape": [1], "data_offsets": [offset, offset + 4]}}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (self.path / name).write_bytes(len(text).to_bytes(8, "little") + text + data[end:] + bytes(4))

    def flip(self, name):
        data = bytearray((self.path / name).read_bytes())
        data[len(data) // 2] ^= 16
        (self.path / name).write_bytes(data)


def runs(folder):
    """(schema, exit codes, words of the command), apart from those that change a checkpoint."""
    for name in [*GOLDENS, "qwen2_hf", "qwen2_mcore", "missing", "truncated", "flipped"]:
        yield "inspect", {0}, ["inspect", name, "--chunks"]
        yield "verify", {0, 1}, ["verify", name, "--deep"]
        yield "digest", {0, 4, 5}, ["digest", name]
        yield "stats", {0, 4, 5}, ["stats", name]
        yield "extract", {0}, ["extract", name, "--common"]
        yield "extract", {0, 4, 5}, ["extract", name, "--objects"]
        yield "diff", {0, 1, 4, 5}, ["diff", MODEL, name]
        yield "convert", {0, 2, 4, 5, 6}, ["convert", name, "none", "--to", "dcp", "--dry-run", "--allow-partial"]
    yield "inspect", {0}, ["inspect", MODEL]
    yield "inspect", {0}, ["inspect", "dcp-hf-safetensors-sharded"]
    yield "inspect", {0}, ["inspect", "root", "--iteration", "1"]
    yield "inspect", {0}, ["inspect", "root", "--iteration", "1", "--policy", "keep.yaml"]
    yield "inspect", {0}, ["inspect", "timed", "--timing"]
    yield "verify", {0}, ["verify", MODEL]
    yield "verify", {0}, ["verify", MODEL, "--nan"]
    yield "stats", {1}, ["stats", "nan"]
    yield "verify", {1}, ["verify", "root", "--all"]
    yield "diff", {1}, ["diff", "root", "--iteration-a", "1", "--iteration-b", "release"]
    yield "diff", {1}, ["diff", SYNTHETIC, "mcore-0.14-synthetic", "--rtol", "1e-3"]
    yield "explain", {0}, ["explain", MODEL, "decoder.layers.mlp.linear_fc1.weight"]
    yield "explain", {0}, ["explain", MODEL, "rng_state/shard_0.0_2.2"]
    yield "explain", {0}, ["explain", MODEL, "decoder.layers.mlp.linear_fc1._extra_state/shard_0_4"]
    yield "explain", {0}, ["explain", "qwen2_hf", "model.embed_tokens.weight", "--map", "auto"]
    yield "explain", {0}, ["explain", "qwen2_hf", DROPPED, "--map", "auto"]
    yield "extract", {0}, ["extract", MODEL, "rng_state/shard_0.0_2.2"]
    yield "convert", {0}, ["convert", MODEL, "none", "--ranks", "3", "--explain"]
    yield "convert", {0}, ["merge", MODEL, MODEL, "-o", "none", "--dry-run"]
    yield "convert", {1}, ["join", MODEL, MODEL, "-o", "none", "--dry-run"]
    yield "convert", {0}, ["convert", "llama_base", "none", "--merge-adapter", "llama_adapter", "--explain"]
    yield "convert", {0}, ["convert", "missing", "none", "--allow-partial", "--dry-run"]
    yield "remove", {0}, ["remove", MODEL, "--prefix", "decoder", "--dry-run"]
    yield "transfer_plan", {0}, [EXAMPLE, "--plan"]
    yield "doctor", {1}, ["doctor", "root", "--deep"]
    yield "doctor", {0}, ["doctor", "root", "--repair-tracker", "--clean", "--all-jobs-ended"]
    yield "doctor", {0}, ["prune", "kept", "--keep-last", "1"]
    yield "fleet", {1}, ["verify", "--fleet", "fleet"]
    yield "formats", {0}, ["formats"]
    yield "version", {0}, ["--version"]
    yield "config", {1}, ["config", "check", "wrong.yaml"]
    yield "config", {0}, ["config", "check", "production"]
    yield "config", {0}, ["config", "show", "long.yaml"]
    yield "config", {0}, ["config", "check", "map.yaml"]
    yield "config", {0}, ["config", "show", "map.yaml"]
    yield "config", {0}, ["config", "show", "foreign.yaml"]
    for shipped in sorted([*root.glob("configs/policies/*.yaml"), *root.glob("configs/maps/*.yaml")]):
        yield "config", {0}, ["config", "show", shipped.stem]


def run(words):
    command = words if words[0] == EXAMPLE else [tool, *words, "--json"]
    done = subprocess.run(command, cwd=folder.path, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def fields_of(schema):
    """(id of a schema, property) for all properties below it."""
    if isinstance(schema, list):
        for member in schema:
            yield from fields_of(member)
    if isinstance(schema, dict):
        yield from ((id(schema), name) for name, of_field in schema.get("properties", {}).items() if of_field is not False)
        for member in schema.values():
            yield from fields_of(member)


def schemas_below(schema):
    if isinstance(schema, dict):
        yield schema
    for member in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from schemas_below(member)


class Reports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.schemas = {file.name.removesuffix(".schema.json"): Schema(json.loads(file.read_text(encoding="utf-8")))
                       for file in root.glob("docs/schemas/*.schema.json")}
        cls.reports = []  # (schema, words, report)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            due = list(runs(folder))
            done = list(pool.map(lambda one: run(one[2]), due))
        due.append(("convert", {0}, ["convert", MODEL, "plain", "--to", "dcp"]))
        due.append(("remove", {0}, ["remove", "plain", "--prefix", "optimizer"]))
        due.append(("convert", {0}, ["convert", MODEL, "shared", "--to", "dcp", "--workers", "pool"]))
        due.append(("workers", {0}, ["workers", "pool"]))
        done += [run(words) for _, _, words in due[-4:]]
        for (schema, codes, words), (code, out, err) in zip(due, done):
            if code not in codes:
                raise AssertionError(f"{words}: exit code {code}, expected {codes}: {err}")
            for text in out.splitlines() if schema == "fleet" else [out] if out else []:
                cls.reports.append((schema, words, json.loads(text)))

    def test_every_report_fits_its_schema(self):
        for schema, words, report in self.reports:
            self.assertEqual(self.schemas[schema].problems(report)[:5], [], words)

    def test_every_field_of_a_schema_occurs(self):
        for schema, _, report in self.reports:
            self.schemas[schema].problems(report)
        unseen = {name: {field for at, field in fields_of(schema.root) if (at, field) not in schema.used}
                  for name, schema in self.schemas.items()}
        self.assertEqual({name: fields for name, fields in unseen.items() if fields}, UNSEEN)

    def test_a_report_with_a_field_less_or_more_does_not_fit(self):
        of_each_form = {(schema, frozenset(report)): (words, report) for schema, words, report in self.reports
                        if schema != "extract"}  # the fields of a value are its own
        for (schema, _), (words, report) in of_each_form.items():
            optional = {"map", "architectures", "model_types", "hf_prefix", "kinds", "towers", "dequantize", "extra_states",
                        "refuse", "left", "layout", "extra_state"}
            for field in report.keys() - optional:
                less = copy.copy(report)
                del less[field]
                self.assertNotEqual(self.schemas[schema].problems(less), [], f"{words} without {field}")
            self.assertNotEqual(self.schemas[schema].problems(report | {"new": 1}), [], words)

    def test_every_field_is_described(self):
        for name, schema in self.schemas.items():
            for below in schemas_below(schema.root):
                for field, of_field in below.get("properties", {}).items():
                    if of_field is not False:
                        target = schema.resolve(of_field["$ref"]) if "$ref" in of_field else {}
                        self.assertTrue(of_field.get("description") or target.get("description"), f"{name}: {field}")

    def test_every_command_with_json_has_a_schema_that_the_docs_name(self):
        page = (root / "docs/tool.md").read_text(encoding="utf-8")
        help_text = subprocess.run([tool], capture_output=True, text=True, check=True).stdout
        commands = re.findall(r"^  ([a-z]+)  ", help_text[help_text.index("Subcommands"):], re.MULTILINE)
        self.assertIn("inspect", commands)
        for command in commands:
            options = subprocess.run([tool, command, "--help"], capture_output=True, text=True, check=True).stdout
            schema = {"merge": "convert", "join": "convert", "prune": "doctor"}.get(command, command)
            self.assertEqual("--json" in options.split("Examples")[0], schema in self.schemas, command)
        for name in self.schemas:
            self.assertTrue(f"(schemas/{name}.schema.json)" in page, f"docs/tool.md does not link the schema of {name}")


if __name__ == "__main__":
    root = pathlib.Path(sys.argv.pop()).resolve()
    EXAMPLE = str(pathlib.Path(sys.argv.pop()).resolve())
    tool = str(pathlib.Path(sys.argv.pop()).resolve())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Folder(temporary)
        unittest.main()
