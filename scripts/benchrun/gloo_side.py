"""torch.distributed with Gloo in one rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from scripts.benchrun.buckets import Bucket, layout

TIMEOUT: Final = timedelta(minutes=10)


class GlooSide:
    """See `AllReduceSide`.

    Args:
        setup: rank, world, interface, directory.
    """

    def __init__(self, setup: Mapping[str, Any]) -> None:
        torch.set_num_threads(1)
        self._setup = setup

    def listen(self) -> list[Any]:
        """See `AllReduceSide`; they find each other by a file."""
        return [self._setup["host"], 0]

    def join(self, addresses: list[list[Any]], secret: str) -> None:
        """See `AllReduceSide`."""
        join_gloo(self._setup)

    def prepare(self, size_bytes: int, dtype: str) -> None:
        """See `AllReduceSide`."""
        elements, kind = layout(size_bytes, dtype)
        self._bucket = Bucket(torch.zeros(elements, dtype=kind))

    def verify(self) -> None:
        """See `AllReduceSide`."""
        self._bucket.verify(self._setup["rank"], self._setup["world"], self.all_reduce)

    def barrier(self) -> None:
        """See `AllReduceSide`."""
        dist.barrier()

    def all_reduce(self) -> None:
        """See `AllReduceSide`."""
        dist.all_reduce(self._bucket.flat)


def join_gloo(setup: Mapping[str, Any]) -> None:
    """Make the default process group of these ranks."""
    os.environ["GLOO_SOCKET_IFNAME"] = setup["interface"]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{setup['directory']}/store",
        rank=setup["rank"],
        world_size=setup["world"],
        timeout=TIMEOUT,
    )
