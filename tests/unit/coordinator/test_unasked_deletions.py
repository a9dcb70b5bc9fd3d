"""That a checkpoint is deleted counts once for each time that its worker was asked to delete it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from structlog.testing import capture_logs

from dtd.coordinator.handlers.deletions import Deletions
from dtd.wire import messages as m

PLACE = "/ckpt/j-1/g000001-s000000010"
DOOMED = {
    "worker": "w0",
    "job": "j-1",
    "identity": "",
    "generation": 1,
    "step": 10,
    "directory": PLACE,
}


class World:
    """What deletions need of a daemon, where one checkpoint waits for its worker."""

    def __init__(self):
        self.said, self.written = [], []
        link = SimpleNamespace(send=self.said.append)
        store = SimpleNamespace(doomed_on=lambda _worker: [DOOMED], dropped="dropped")
        core = SimpleNamespace(
            store=store,
            in_store=self.in_store,
            links=SimpleNamespace(link_to=lambda _name: link),
            store_thread=SimpleNamespace(later=lambda *call: self.written.append(call)),
        )
        self.deletions = Deletions(core, None, None)

    async def in_store(self, function, *arguments):
        return function(*arguments)

    def drops(self, worker, directory=PLACE, reason=""):
        self.deletions.dropped(worker, m.CheckpointDropped(directory=directory, reason=reason))


async def test_what_nobody_asked_for_is_neither_written_nor_logged():
    world = World()
    with capture_logs() as logs:
        world.drops("w0")
        world.drops("w0", reason="x" * 1000)
        world.deletions.registered("w0")
        await asyncio.sleep(0)
        assert len(world.said) == 1
        world.drops("another")
        world.drops("w0", "/ckpt/elsewhere")
        assert (world.written, logs) == ([], [])
        for _again in range(3):
            world.drops("w0")
        assert world.written == [("dropped", "w0", PLACE)]
        for _again in range(3):
            world.drops("w0", reason="busy")
        assert logs == []
        world.deletions.registered("w0")
        await asyncio.sleep(0)
        for _again in range(3):
            world.drops("w0", reason="busy")
    assert [one["reason"] for one in logs] == ["busy"]
    assert len(world.written) == 1
