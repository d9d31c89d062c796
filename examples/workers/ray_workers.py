#!/usr/bin/env python3
"""Converts a checkpoint with tasks of Ray.

    ray_workers.py --tasks 16 SRC DST POOL [OPTION…]

SRC, DST and POOL lie on a file system that all nodes see. Options after POOL go to dckpt convert. A
task whose node is lost is started again by Ray; the other tasks take over what it had begun.
"""
import argparse
import json
import shutil
import subprocess
import sys

import ray


@ray.remote(max_retries=3, num_cpus=1)
def work(command):
    """Runs one worker, which ends when the result is published. Returns its report."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)["workers"]


def main():
    parser = argparse.ArgumentParser(description="Converts a checkpoint with tasks of Ray.")
    parser.add_argument("--tasks", type=int, default=4, help="number of workers [4]")
    parser.add_argument("--dckpt", default="dckpt", help="the program, on every node [dckpt]")
    parser.add_argument("source")
    parser.add_argument("destination")
    parser.add_argument("pool", help="directory in which the workers agree")
    arguments, options = parser.parse_known_args()
    if arguments.tasks < 1:
        parser.error("--tasks must be at least 1")

    ray.init(logging_level="warning")
    program = shutil.which(arguments.dckpt) or arguments.dckpt
    command = [program, "convert", arguments.source, arguments.destination,
               "--workers", arguments.pool, "--json", *options]
    waiting = [work.remote(command) for _ in range(arguments.tasks)]
    reports, failures = [], []
    while waiting:
        (ready,), waiting = ray.wait(waiting, num_returns=1)
        try:
            reports.append(ray.get(ready))
        except ray.exceptions.RayError as error:
            failures.append(str(error))
    for report in reports:
        print(f"{report['units_here']} of {report['units']} units"
              f"{', published' if report['published_here'] else ''}")
    if failures:
        print("\n".join(failures), file=sys.stderr)
    return 0 if reports else 1


if __name__ == "__main__":
    sys.exit(main())
