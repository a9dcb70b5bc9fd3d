"""Buckets in memory, and what of it is mapped into this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import uvloop

from dtd.exchange.api import BucketMemory
from dtd.shared_memory import OfferedMemory

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, LoopFactory]:
    """The loop on which a test runs."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def memory_of() -> Callable[[np.ndarray], BucketMemory]:
    """A function that makes an array the memory of a bucket."""

    def make(array: np.ndarray) -> BucketMemory:
        def add(start: int, stop: int, received: memoryview) -> None:
            array[start:stop] += np.frombuffer(received, dtype=array.dtype)

        return BucketMemory(
            view=memoryview(array.view(np.uint8)), item_bytes=array.itemsize, add=add
        )

    return make


@pytest.fixture
def mapped() -> Callable[[OfferedMemory], int]:
    """A function: how often lent memory is mapped into this process.

    Only what is asked for counts: other tests' memory goes whenever it is collected.
    """

    def count(memory: OfferedMemory) -> int:
        inode = str(os.fstat(memory.descriptor).st_ino)
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum("memfd:dtd-buckets" in line and line.split()[4] == inode for line in lines)

    return count
