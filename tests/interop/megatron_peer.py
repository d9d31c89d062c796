"""megatron.core.dist_checkpointing of the release on PYTHONPATH, made to run in one or several processes without a GPU."""

from __future__ import annotations

import inspect
import logging
import os

import numpy
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter

logging.disable(logging.WARNING)
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"     # the goldens hold more classes than Megatron calls safe

if not hasattr(numpy, "product"):
    numpy.product = numpy.prod      # 0.14 calls what numpy 2 dropped


if not hasattr(FileSystemWriter, "metadata_path"):
    # Megatron's remove_sharded_tensors asks for what later releases of torch made a private method.
    FileSystemWriter.metadata_path = property(lambda self: self.fs.concat_path(self.path, ".metadata"))


def _without_gpu() -> None:
    """Whoever asks for the current GPU gets the CPU."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda self, *_, **__: self


_without_gpu()

import megatron.core.dist_checkpointing as checkpointing  # noqa: E402
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor  # noqa: E402, F401
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy  # noqa: E402
from megatron.core.package_info import __version__ as VERSION  # noqa: E402

RELEASE = tuple(int(part) for part in VERSION.split(".")[:2])
HAS_FLATTENED = RELEASE < (0, 16)


def _data_on_cpu() -> None:
    original = ShardedTensor.init_data
    ShardedTensor.init_data = lambda self, device, *args, **kwargs: original(self, "cpu" if "cuda" in str(device) else device, *args, **kwargs)


_data_on_cpu()


def join() -> None:
    """A process group of this process alone, which Megatron wants even then."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def strategy() -> TorchDistSaveShardedStrategy:
    required = [p for p in inspect.signature(TorchDistSaveShardedStrategy.__init__).parameters.values() if p.name in ("backend", "version") and p.default is p.empty]
    return TorchDistSaveShardedStrategy("torch_dist", 1) if required else TorchDistSaveShardedStrategy()


def load_plain_tensors(path: os.PathLike) -> dict[str, torch.Tensor]:
    """Every tensor in its global shape, by key."""
    described = checkpointing.load_tensors_metadata(str(path))
    loaded = checkpointing.load_plain_tensors(str(path))     # with the common state among them
    return {key: loaded[key].view(tensor.global_shape) for key, tensor in described.items()}


def load_common(path: os.PathLike) -> dict:
    return checkpointing.load_common_state_dict(str(path))


def load_objects(path: os.PathLike) -> dict[str, object]:
    """Every sharded object, by unique key."""
    entries = checkpointing.serialization.load_sharded_metadata(str(path))
    wanted = {key: entry for key, entry in entries.items() if isinstance(entry, ShardedObject)}
    loaded = checkpointing.load(dict(wanted), str(path), validate_access_integrity=False)
    return {key: loaded[key] for key in wanted}
