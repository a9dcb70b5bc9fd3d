"""A worker's data port, and event loops for those who call it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dtd.address import Address
from dtd.errors import CheckpointError
from dtd.net.data_server import DataServer
from tests.played_loop import PlayedLoop

WORKER_SECRET = b"w" * 32


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop on which a test runs: tests that wait in vain have one whose clock is played."""
    if item.path.name == "test_narrow_paths.py":
        return {"played": PlayedLoop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def data_port():
    """(server, address) of a worker."""

    def no_checkpoint(name):
        raise CheckpointError(f"{name} is not here")

    server = DataServer("worker-1", no_checkpoint)
    server.worker_secret = WORKER_SECRET
    yield server, await server.listen(Address("127.0.0.1", 0))
    server.close()
