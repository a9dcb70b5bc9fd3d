"""Messages to a service manager: a real datagram socket, and nothing without one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest

from dtd.host import notify
from dtd.host.notify import Notifier


class Manager:
    """Plays systemd: what it has heard, in order."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.settimeout(30)

    def hear(self) -> str:
        return self._socket.recv(4096).decode()

    async def hear_soon(self) -> str:
        return await asyncio.to_thread(self.hear)

    def hears_nothing(self) -> bool:
        self._socket.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            return not self._socket.recv(4096)
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    name = str(tmp_path / "notify")
    made = Manager(name if request.param == "path" else f"@dtd-test-{os.getpid()}-{tmp_path.name}")
    yield made
    made.close()


def environment(manager, **more):
    return {"NOTIFY_SOCKET": manager.address, **more}


def test_life_in_its_words(manager):
    notifier = Notifier.from_environment(environment(manager))
    notifier.ready()
    notifier.status("waits for a job")
    notifier.watchdog()
    notifier.stopping()
    heard = [manager.hear() for _ in range(4)]
    assert heard == ["READY=1", "STATUS=waits for a job", "WATCHDOG=1", "STOPPING=1"]


async def test_the_loop_feeds_the_watchdog_and_tells_the_status(manager):
    notifier = Notifier.from_environment(
        environment(manager, WATCHDOG_USEC="20000", WATCHDOG_PID=str(os.getpid()))
    )
    keeping = asyncio.create_task(notifier.keep(lambda: "waits for a job"))
    heard = [await manager.hear_soon() for _ in range(4)]
    keeping.cancel()
    assert heard[0] == "STATUS=waits for a job"
    assert heard[1:] == ["WATCHDOG=1"] * 3


async def test_a_watchdog_that_took_nothing_is_fed_again_soon(monkeypatch, tmp_path):
    """A busy manager's socket is full for a moment; half the watchdog's time later is too late."""
    monkeypatch.setattr(notify, "STATUS_EVERY_S", 0.01)
    address = str(tmp_path / "notify")
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000"})
    keeping = asyncio.create_task(notifier.keep(lambda: ""))
    await asyncio.sleep(0)  # nobody is there: whatever is due at once comes to nothing
    await asyncio.sleep(0)
    manager = Manager(address)
    assert await manager.hear_soon() == "WATCHDOG=1"
    keeping.cancel()
    manager.close()


@pytest.mark.parametrize("watchdog", [{}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_PID": "1"}])
async def test_no_watchdog_is_fed_that_watches_somebody_else(manager, watchdog):
    given = {"WATCHDOG_USEC": "1000"} if "WATCHDOG_PID" in watchdog else {}
    notifier = Notifier.from_environment(environment(manager, **given, **watchdog))
    said = asyncio.Event()

    def describe() -> str:
        said.set()
        return "step 1"

    keeping = asyncio.create_task(notifier.keep(describe))
    await said.wait()
    await asyncio.sleep(0)  # whatever is due at once has its turn
    keeping.cancel()
    assert await manager.hear_soon() == "STATUS=step 1"
    assert manager.hears_nothing()
