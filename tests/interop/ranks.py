"""Ranks of a job as forked processes that meet in a Gloo group."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import sys
import tempfile
import traceback
from typing import Callable

import torch.distributed as dist


def run_ranks(size: int, body: Callable[[int], None]) -> None:
    """body(rank) in `size` processes; raises if one of them fails. What they find out they leave in files."""
    with tempfile.TemporaryDirectory() as meeting:
        children = [fork_rank(rank, size, pathlib.Path(meeting) / "store", body) for rank in range(size)]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(statuses):
        raise RuntimeError(f"exit statuses of the ranks: {statuses}")


def fork_rank(rank: int, size: int, store: pathlib.Path, body: Callable[[int], None]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        body(rank)
        dist.barrier()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for helper in multiprocessing.active_children():    # Megatron's, which would outlive the rank
            helper.terminate()
            helper.join()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)    # neither the test runner's clean-up nor that of other threads
