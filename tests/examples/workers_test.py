#!/usr/bin/env python3
"""workers_test.py TOOL ROOT: examples/workers starts workers with SLURM, Kubernetes and Ray as docs/howto/many_workers.md says."""
import importlib.util
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

GOLDEN = "tests/data/checkpoints/mcore-0.16-fully-reshardable-tp2pp2dp2/ckpt"


class OneNode:
    """A SLURM cluster of this host alone, without munge, while the object is a context."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(f"""ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
NodeName={host} CPUs=4
PartitionName=all Nodes=ALL Default=YES
""")
        self.environment = os.environ | {"SLURM_CONF": str(self.configuration)}

    def __enter__(self):
        for daemon in ("slurmctld", "slurmd"):
            self.run(daemon, "-c")
        deadline = time.monotonic() + 60
        while self.run("sinfo", "-h", "-o", "%t").strip() != "idle":
            if time.monotonic() > deadline:
                raise RuntimeError("the node does not come up: " + (self.folder / "slurmd.log").read_text())
            time.sleep(0.2)
        return self

    def __exit__(self, *_):
        for daemon in ("slurmd", "slurmctld"):
            os.kill(int((self.folder / f"{daemon}.pid").read_text()), signal.SIGKILL)

    def run(self, *command):
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout


def free_port():
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


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

    @unittest.skipUnless(shutil.which("slurmctld") and shutil.which("slurmd") and os.geteuid() == 0,
                         "SLURM is not installed, or its daemons cannot be started without root")
    def test_slurm_array(self):
        with OneNode(self.folder / "slurm") as cluster:
            cluster.environment["DCKPT"] = tool
            cluster.run("sbatch", "--wait", "--array=0-3", f"--output={self.folder}/task-%a.txt",
                        str(root / "examples/workers/slurm.sh"), str(self.source), str(self.result), str(self.pool),
                        "--ranks", "24")
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
