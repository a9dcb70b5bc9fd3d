"""Generations over real sockets, and how often memory is mapped into this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from dtd.shared_memory import OfferedMemory
from tests.unit.exchange.generation import Collectives, Ranks

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, LoopFactory]:
    """The loop on which a test runs."""
    return {"uvloop": uvloop.new_event_loop}


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


@pytest.fixture
async def ranks(fd_dir):
    """Makes generations of trainers and servers on this loop; they are closed in the end."""
    made = []

    def make(trainers, servers=0):
        made.append(Ranks(trainers, servers, fd_dir))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def collectives(loop_thread):
    """Makes generations whose ranks have threads of their own; they are closed in the end."""
    made = []

    def make(size, servers=0, **settings):
        made.append(Collectives(loop_thread, size, servers, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()
