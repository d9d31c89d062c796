#!/usr/bin/env python3
"""workers_test.py TOOL ROOT: examples/workers starts workers with SLURM, Kubernetes and Ray as docs/howto/many_workers.md says."""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

GOLDEN = "tests/data/checkpoints/mcore-0.16-fully-reshardable-tp2pp2dp2/ckpt"


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


class Workers(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.source, self.result, self.pool = root / GOLDEN, self.folder / "out", self.folder / "pool"
        subprocess.run([tool, "convert", self.source, self.folder / "alone", "--ranks", "24"], check=True, capture_output=True)

    def expect_result(self, workers):
        self.assertEqual(files_of(self.result), files_of(self.folder / "alone"))
        survey = subprocess.run([tool, "workers", self.pool], check=True, capture_output=True, text=True).stdout
        self.assertIn("24 of 24 units", survey)
        self.assertTrue(survey.endswith("published\n"))
        self.assertLessEqual(survey.count(" idle "), workers)

    def test_slurm_array(self):
        array = subprocess.run([root / "tests/support/slurm_cluster.sh", "sbatch", "--wait", "--array=0-3", f"--output={self.folder}/task-%a.txt",
                                root / "examples/workers/slurm.sh", self.source, self.result, self.pool, "--ranks", "24"],
                               env=os.environ | {"DCKPT": tool}, capture_output=True, text=True, timeout=180)
        if array.returncode == 77:
            self.skipTest(array.stdout.strip().removeprefix("skipped: "))
        self.assertEqual(array.returncode, 0, array.stderr)
        for task in range(4):
            self.assertIn("written", (self.folder / f"task-{task}.txt").read_text())
        self.expect_result(4)

    @unittest.skipUnless(importlib.util.find_spec("ray"), "Ray is not installed (scripts/test provides it)")
    def test_ray_tasks(self):
        done = subprocess.run([sys.executable, root / "examples/workers/ray_workers.py", "--tasks", "2", "--dckpt", tool,
                               self.source, self.result, self.pool, "--ranks", "24"],
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count(" of 24 units"), 2)
        self.assertEqual(done.stdout.count("published"), 1)
        self.expect_result(2)

    @unittest.skipUnless(importlib.util.find_spec("kubernetes"), "Kubernetes' client is not installed (scripts/test provides it)")
    def test_kubernetes_manifest(self):
        import yaml
        from kubernetes import client
        manifest = yaml.safe_load((root / "examples/workers/kubernetes.yaml").read_text())

        def check(value, kind, at):  # against the types of the API, as its client has them
            if kind.lower().startswith("list["):
                self.assertIsInstance(value, list, at)
                for number, member in enumerate(value):
                    check(member, kind[5:-1], f"{at}[{number}]")
            elif kind.lower().startswith("dict"):
                self.assertIsInstance(value, dict, at)
                for name, member in value.items():
                    check(member, kind[5:-1].split(",", 1)[1].strip(), f"{at}.{name}")
            elif hasattr(client, kind):
                fields = {json: name for name, json in getattr(client, kind).attribute_map.items()}
                self.assertLessEqual(value.keys(), fields.keys(), at)
                for name, member in value.items():
                    check(member, getattr(client, kind).openapi_types[fields[name]], f"{at}.{name}")
            elif kind != "object":
                self.assertIsInstance(value, {"str": str, "int": int, "bool": bool}[kind], at)

        check(manifest, "V1Job", manifest["kind"])
        command = manifest["spec"]["template"]["spec"]["containers"][0]["command"]
        help_text = subprocess.run([tool, "convert", "--help"], check=True, capture_output=True, text=True).stdout
        for option in command[4:]:
            self.assertIn(option.split("=")[0] + " ", help_text)
        here = [tool, "convert", str(self.source), str(self.result), "--ranks=24", f"--workers={self.pool}"]
        self.assertEqual([word.split("=")[0] for word in command[4:]], [word.split("=")[0] for word in here[4:]])


if __name__ == "__main__":
    root = pathlib.Path(sys.argv.pop()).resolve()
    tool = str(pathlib.Path(sys.argv.pop()).resolve())
    outcome = unittest.main(exit=False).result
    for test, reason in outcome.skipped:
        print(f"skipped: {test.id().split('.')[-1]}: {reason}")
    sys.exit(0 if outcome.wasSuccessful() else 1)
