"""Short hashes that reveal before training that workers differ in data or numerics.

The hash of the dataset covers the number of rows and the content of a few, keyed by the job's seed;
reading the whole dataset would take too long.  The hash of the numerics covers torch's version, the
type of device, and the result of clipping and optimizer on fixed numbers: replicas stay equal only
if both give the same bytes everywhere.  Forward and backward may differ between workers, since
their gradients are averaged.  The coordinator compares the hashes in the warm-up reports.

`environment` names the software and hardware of this process, for the record of a job.
"""

from __future__ import annotations

import dataclasses
import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

from dtd import __version__
from dtd.errors import TaskError
from dtd.job import OptimizerTable
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.data.rows import fields_of, kept_random_state, probed_rows
from dtd.train.optim.optimizer import build_optimizer
from dtd.train.task import MapDataset

_DIGEST_BYTES = 16


ReadRows = Callable[[Sequence[int]], Any]
"""Row numbers -> their batch."""


def dataset_fingerprint(dataset: MapDataset, seed: int, read: ReadRows) -> str:
    """Hex digest over the dataset's length and the content of its probe rows."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    _feed(digest, len(dataset), "len(dataset)")
    with kept_random_state():
        for row in probed_rows(dataset, seed):
            _feed(digest, read([row]), f"row {row}")
    return digest.hexdigest()


def differs_when_read_again(dataset: MapDataset, seed: int, read: ReadRows) -> bool:
    """Whether a row has other content after another row has been read.

    That is so where a dataset draws from a generator of its own, which nothing can key.
    """
    if getattr(dataset, "first_rows", None) is not None:
        return False  # of a stream, which is read in sequence
    rows = probed_rows(dataset, seed)[:2]
    with kept_random_state():
        first, _, again = (_row_digest(row, read) for row in (rows[0], rows[-1], rows[0]))
    return first != again


def _row_digest(row: int, read: ReadRows) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    _feed(digest, read([row]), f"row {row}")
    return digest.digest()


def _feed(digest: hashlib.blake2b, value: Any, where: str) -> None:
    """Add a value so that different values, however nested, add different bytes."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        _feed_bytes(digest, f"{value.dtype}{tuple(value.shape)}".encode())
        _feed_bytes(digest, flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray | np.generic):
        _feed_bytes(digest, f"{value.dtype}{value.shape}".encode())
        _feed_bytes(digest, value.tobytes())
    elif isinstance(value, bytes):
        _feed_bytes(digest, value)
    elif value is None or isinstance(value, bool | int | float | complex | str):
        _feed_bytes(digest, f"{type(value).__name__} {value!r}".encode())
    elif isinstance(value, Mapping):
        _feed_bytes(digest, f"mapping {len(value)}".encode())
        for key in sorted(value, key=str):
            _feed(digest, key, where)
            _feed(digest, value[key], where)
    elif isinstance(value, list | tuple):
        _feed_bytes(digest, f"sequence {len(value)}".encode())
        for item in value:
            _feed(digest, item, where)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed(digest, dict(fields_of(value)), where)
    else:
        raise TaskError(
            f"{where} of the dataset holds a {type(value).__name__}, which cannot be compared",
            remedy="let rows, or what collate(rows) makes of them, be tensors, arrays, numbers,"
            " text, or tuples, lists, dicts and dataclasses of these",
        )


def _feed_bytes(digest: hashlib.blake2b, content: bytes) -> None:
    digest.update(len(content).to_bytes(8, "little"))
    digest.update(content)


_ELEMENTS = 100_031
"""Leaves as much as can be left by vectors of 8, 16 and 32: a rest is computed one by one."""
_UPDATES = 3
_CLIP_NORM = 0.5


def numerics_fingerprint(table: OptimizerTable, device: torch.device) -> str:
    """Hex hash of this worker's result of a fixed clip and optimizer step.

    A task's own optimizer, and the kernels for models in channels_last, are not tried out; digests
    still compare what they make.  Builds of one torch version for CPUs and for CUDA (2.15.0+cpu,
    2.15.0+cu130) train together on CPUs as long as they compute alike.
    """
    numbers = torch.arange(_ELEMENTS, dtype=torch.float32, device=device)
    parameter = nn.Parameter((numbers % 1013) / 512 - 1)
    optimizer = build_optimizer(table, [parameter])
    release = torch.__version__.partition("+")[0]
    content = xxhash.xxh3_128(f"{release} {device.type}".encode())
    for update in range(_UPDATES):
        gradient = ((numbers + update) % 509) / 256 - 1
        norm = float(torch.linalg.vector_norm(gradient))
        parameter.grad = gradient.mul_(_CLIP_NORM / (norm + 1e-6))
        optimizer.step()
        content.update(repr(norm).encode())
    content.update(tensor_bytes(parameter.detach().cpu()))
    return content.hexdigest()


_CPUINFO = Path("/proc/cpuinfo")
_MODEL = "model name"


def environment(name: str) -> dict[str, str]:
    """Return versions and hardware that affect numbers and speed."""
    device = torch.device(name)
    found = {
        "dtd": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "processor": _processor(),
        "device": device.type,
        "threads": str(torch.get_num_threads()),
    }
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found


def _processor() -> str:
    """The first processor's name, as the kernel tells it; empty on kinds for which it does not."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(_MODEL))
    return next(named, "")
