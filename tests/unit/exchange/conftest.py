"""Generations over real sockets, and how often memory is mapped into this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.unit.exchange.generation import Collectives, Ranks

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, LoopFactory]:
    """The loop on which a test runs."""
    return {"uvloop": uvloop.new_event_loop}


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
