"""The coordinator's store is damaged while a job trains: workers keep their state until an operator
has decided."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from dtd.coordinator.store.database import FILE_NAME, NEWEST_NAME
from dtd.net.local_socket import call
from tests.integration.conftest import LOOK_AGAIN_S, PATIENCE_S, Daemons

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(2)


def knows(path: Path, job: str) -> bool:
    """Whether the main file alone has a job, as if its log had been lost."""
    alone = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(alone, uri=True)) as database:
            return bool(database.execute("SELECT 1 FROM jobs WHERE id = ?", (job,)).fetchall())
    except sqlite3.DatabaseError:  # it is being written
        return False


def test_workers_train_on_until_the_operator_has_decided(daemons: Daemons) -> None:
    gates = daemons.hold(12)
    job = daemons.submit(gates=gates)
    daemons.until(job, lambda: daemons.step(job) >= 11)
    daemons.until(job, lambda: knows(daemons.cluster.directory / FILE_NAME, job))
    before = daemons.pids()
    coordinator = daemons.child("coordinator")
    coordinator.signal_group(signal.SIGKILL)
    coordinator.wait(PATIENCE_S)

    state_dir = daemons.cluster.directory
    newest = state_dir / NEWEST_NAME
    (number,) = struct.unpack("<Q", newest.read_bytes())
    newest.write_bytes(struct.pack("<Q", number + 3))  # as if a log with three more had been lost
    daemons.cluster.start("coordinator")
    coordinator = daemons.child("coordinator")
    assert coordinator.wait(PATIENCE_S) == 78
    log = "\n".join(coordinator.log_tail())
    assert "transactions are missing" in log
    assert "Traceback" not in log

    newest.unlink()
    daemons.cluster.start("coordinator")
    while True:
        try:
            call(daemons.cluster.address, PATIENCE_S).close()
            break
        except (ConnectionRefusedError, FileNotFoundError):
            assert daemons.child("coordinator").wait(LOOK_AGAIN_S) is None
    gates.open(0)
    answer = daemons.wait(job)
    assert (answer["state"], answer["result"]["steps_lost"]) == ("done", 0), answer
    assert {name: pid for name, pid in daemons.pids().items() if name in before} == before
