#!/usr/bin/env python3
"""Runs the command line tool on damaged, lying and malicious checkpoints.

Every command gets a process of its own with a limited address space and a time limit. Whatever the input is, a command must
end by itself with one of the documented exit codes, in the memory it is allowed, without executing anything that the input
holds, without bytes in its output that a terminal would obey, and without touching a file. On top of that the outcome must be
the manifest's (tests/data/README.md explains the fields).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from dataclasses import dataclass, field

ADDRESS_SPACE_KIB = 4 << 20
REJECTED = {1, 3, 4, 5, 6}      # exit codes of the tool that refuse an input; 2 would be our own wrong usage
SHALLOW = [("verify",)]         # beside verify --deep
READERS = [("inspect",), ("inspect", "--json"), ("extract", "--common"), ("extract", "--objects")]
CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


@dataclass
class Run:
    """One finished command."""

    words: list[str]
    status: int
    output: bytes
    peak_kib: int
    timed_out: bool

    def describe(self, problem: str) -> str:
        text = self.output.decode("utf-8", "backslashreplace").strip().replace("\n", " | ")
        return f"{' '.join(self.words)}: {problem} (exit {self.status}): {ascii(text[:300])}"


@dataclass
class Hostile:
    """One input and what was found wrong with the tool's treatment of it."""

    entry: dict
    root: pathlib.Path
    tool: str
    limits: argparse.Namespace
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.entry['category']}/{self.entry['case']}"

    def check(self) -> list[str]:
        folder = self.root / self.name
        before = snapshot(folder)
        with tempfile.TemporaryDirectory() as scratch:
            self.scratch = pathlib.Path(scratch)
            (self.scratch / "cwd").mkdir()
            self.check_outcome()
            if (self.scratch / "canary").exists():
                self.problems.append("the payload was executed")
            if any((self.scratch / "cwd").iterdir()):
                self.problems.append("a command left files in its working directory")
        if snapshot(folder) != before:
            self.problems.append("a command changed the checkpoint")
        return self.problems

    def check_outcome(self) -> None:
        entry, deep = self.entry, self.entry.get("deep", False)
        accepted = {"accept", "opaque"} & {entry["expect"], *entry.get("allow", [])}
        rejected = "reject" in {entry["expect"], *entry.get("allow", [])}

        verify = self.run("verify", *(["--deep"] if deep else []))
        runs = [self.run(*words) for words in self.sampled(SHALLOW * deep + READERS)]

        if verify.status == 0:
            if not accepted:
                self.problems.append(verify.describe("accepted, but must be refused"))
            for run in runs:
                if run.words == ["inspect"] and entry["expect"] != "reject" and run.status != 0:
                    self.problems.append(run.describe("failed on a sound checkpoint"))
            if "content" in entry:
                self.check_content(entry["content"])
        elif verify.status in REJECTED:
            if not rejected:
                self.problems.append(verify.describe("refused, but must be accepted"))
            elif entry.get("names") and not any(name.encode() in verify.output for name in entry["names"]):
                self.problems.append(verify.describe(f"the message names none of {entry['names']}"))

    def sampled(self, commands: list[tuple]) -> list[tuple]:
        if self.limits.seed is None:
            return commands
        return [random.Random(f"{self.limits.seed} {self.name}").choice(commands)]

    def check_content(self, expected: dict) -> None:
        run = self.run("digest", "--json")
        if run.status != 0:
            self.problems.append(run.describe("verify accepts it, digest does not"))
            return
        tensors = json.loads(run.output)["tensors"]
        found = {key: {field: tensor[field] for field in ("dtype", "shape", "sha256")} for key, tensor in tensors.items()}
        if self.entry["kind"] == "legacy":      # how a key of a nested state dict is spelt is the tool's choice
            wrong = [key for key, tensor in expected.items() if tensor not in found.values()]
        else:
            wrong = [key for key, tensor in expected.items() if found.get(key) != tensor]
        if wrong:
            self.problems.append(run.describe(f"wrong content of {wrong[:5]}"))

    def run(self, command: str, *options: str) -> Run:
        path = self.root / self.entry.get("path", self.name)
        words = [command, *options]
        env = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.scratch), "LC_ALL": "C.UTF-8", "DCKPT_CANARY": str(self.scratch / "canary"),
               **{name: "exitcode=99" for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")}}     # theirs is 1, which means refused here
        shell = "ulimit -c 0; " + (f"ulimit -v {ADDRESS_SPACE_KIB}; " if self.limits.memory else "") + 'exec "$@"'
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(["sh", "-c", shell, "sh", self.tool, command, str(path), *options], stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, env=env, cwd=self.scratch / "cwd")
            expired = threading.Event()
            timer = threading.Timer(self.limits.seconds, lambda: (expired.set(), process.kill()))
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            run = Run(words, process.returncode, output.read(), usage.ru_maxrss, expired.is_set())
        self.check_manners(run)
        return run

    def check_manners(self, run: Run) -> None:
        if run.timed_out:
            self.problems.append(run.describe(f"no end after {self.limits.seconds} s"))
        elif run.status != 0 and run.status not in REJECTED:
            self.problems.append(run.describe("died by a signal" if run.status < 0 else "undocumented exit code"))
        if self.limits.memory and run.peak_kib > self.entry.get("max_rss_mb", self.limits.megabytes) << 10:
            self.problems.append(run.describe(f"used {run.peak_kib >> 10} MiB"))
        found = CONTROL_BYTES.search(run.output)
        if found:
            self.problems.append(run.describe(f"control byte {found.group()!r} in the output"))
        try:
            run.output.decode()
        except UnicodeDecodeError:
            self.problems.append(run.describe("output is not UTF-8"))


def snapshot(folder: pathlib.Path) -> dict[str, tuple]:
    """Everything below a folder as it is, links not followed, nothing but regular files opened."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            info = os.lstat(path)
            content = None
            if stat.S_ISREG(info.st_mode):
                content = hashlib.sha256(pathlib.Path(path).read_bytes()).digest()
            elif stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            found[path] = (info.st_mode, info.st_mtime_ns, content)
    return found


def unpack(archive: pathlib.Path, into: str) -> None:
    trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}   # FIFOs and links out are wanted here
    with tarfile.open(archive) as corpus:
        corpus.extractall(into, **trusted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True, help="the built dckpt")
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder with corpus.tar.xz and manifest.json")
    parser.add_argument("--category", action="append", help="only this one")
    parser.add_argument("--case", action="append", help="only this one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sanitized", action="store_true",
                        help="the tool is built with a sanitizer: no memory limits, more time, and of the commands after verify one for each case")
    parser.add_argument("--all", action="store_true", help="all commands, also with --sanitized")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the choice of commands")
    args = parser.parse_args()
    sampled = args.sanitized and not args.all
    if sampled:
        print(f"one command for each case beside verify: --seed {args.seed} chooses the same, --all runs all")

    manifest = json.loads((args.data / "manifest.json").read_text())
    limits = argparse.Namespace(seconds=manifest["max_seconds"] * (5 if args.sanitized else 1), megabytes=manifest["max_rss_mb"], memory=not args.sanitized,
                                seed=args.seed if sampled else None)
    entries = [dict(entry) for entry in manifest["cases"]
               if (not args.category or entry["category"] in args.category) and (not args.case or entry["case"] in args.case)]
    for entry in entries:
        if "content" in entry:
            entry["content"] = manifest["contents"][entry["content"]]
    if not entries:
        parser.error("no such case")

    with tempfile.TemporaryDirectory(prefix="dckpt-hostile-") as root:
        unpack(args.data / "corpus.tar.xz", root)
        cases = [Hostile(entry, pathlib.Path(root), os.path.abspath(args.tool), limits) for entry in entries]
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(Hostile.check, cases))

    failed = 0
    for case, problems in zip(cases, results):
        failed += bool(problems)
        for problem in problems:
            print(f"{case.name:45} {problem}")
    print(f"{len(cases)} cases, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
