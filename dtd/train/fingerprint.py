"""A short hash by which workers find out, before they train, that they hold different data.

It covers the number of rows and the content of a few, keyed by the job's seed; reading the whole
dataset would take too long.  It goes into the warm-up report and is compared by the coordinator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dtd.errors import TaskError
from dtd.train.rows import kept_random_state, load_rows, probed_rows
from dtd.train.task import MapDataset

_DIGEST_BYTES = 16


def dataset_fingerprint(dataset: MapDataset, seed: int) -> str:
    """Hex digest over the dataset's length and the content of its probe rows.

    Raises:
        TaskError: a row cannot be read, or holds something that has no bytes to compare.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    _feed(digest, len(dataset), "len(dataset)")
    with kept_random_state():
        for row in probed_rows(dataset, seed):
            batch = load_rows(dataset, [row], epoch=0, seed=seed, reseed=True).batch
            _feed(digest, batch, f"row {row}")
    return digest.hexdigest()


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
    else:
        raise TaskError(
            f"{where} of the dataset holds a {type(value).__name__}, which cannot be compared",
            remedy="let rows hold tensors, arrays, numbers and text only",
        )


def _feed_bytes(digest: hashlib.blake2b, content: bytes) -> None:
    digest.update(len(content).to_bytes(8, "little"))
    digest.update(content)
