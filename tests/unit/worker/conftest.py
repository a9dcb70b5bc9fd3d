"""A worker's data port."""

from __future__ import annotations

import pytest

from dtd.address import Address
from dtd.errors import CheckpointError
from dtd.net.data_port.data_server import DataServer

WORKER_SECRET = b"w" * 32


@pytest.fixture
async def data_port():
    """(server, address) of a worker."""

    def no_checkpoint(name):
        raise CheckpointError(f"{name} is not here")

    server = DataServer("worker-1", no_checkpoint)
    server.worker_secret = WORKER_SECRET
    yield server, await server.listen(Address("127.0.0.1", 0))
    server.close()
