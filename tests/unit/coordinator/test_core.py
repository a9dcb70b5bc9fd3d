"""Effects in their order, and incidents as lines of a log."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from types import SimpleNamespace

import pytest

from dtd.cluster.events import (
    Disconnect,
    Incident,
    JobEnded,
    SaveJob,
    Send,
    Undeliverable,
)
from dtd.cluster.records import Job
from dtd.config import CoordinatorConfig
from dtd.coordinator.core import Core
from dtd.coordinator.store.store import Store
from dtd.errors import ErrorCode
from dtd.wire import messages as m

SPEC = {"job": {"name": "digits", "task": "digits"}}
ACK = m.HeartbeatAck()
ASSIGN = m.Assign(
    job="digits-1", generation=1, roster_id=1, rank=0, roster=(), held_generation=0, held_step=3
)
FREEZE = m.Freeze(generation=1, at_boundary=False, stop=False, reason="why")


class PlayedLink:
    """A worker's connection that keeps what it is told."""

    identity = None

    def __init__(self):
        self.told = []
        self.queued = 0

    def send(self, message):
        self.told.append(message)

    def queued_bytes(self):
        return self.queued

    def abort(self):
        self.told.append("aborted")

    def fail(self, error):
        self.told.append(error.message)


class PlayedStore(Store):
    """A store whose disk the test holds up."""

    def __init__(self, state_dir):
        super().__init__(state_dir)
        self.may_write = threading.Event()
        self.written = []
        self.failure = ""

    def save_job(self, number, body):
        assert self.may_write.wait(30)
        if self.failure:
            raise sqlite3.OperationalError(self.failure)
        self.written.append((number, body["step"]))

    def add_incident(self, incident):
        self.written.append(incident.kind)


def registering(incarnation):
    """REGISTER of a process of worker-0."""
    return m.Register(
        name="worker-0",
        incarnation=incarnation,
        pid=1,
        host="h",
        device="cpu",
        data_host="h",
        data_port=1,
        version="0",
    )


@pytest.fixture
async def desk(tmp_path):
    """The effects of a core, with a played store, a played worker and nobody who asks."""
    store, link, told = PlayedStore(tmp_path), PlayedLink(), []
    config = CoordinatorConfig(state_dir=tmp_path, socket=tmp_path / "s")
    core = Core(config, store, new_link=lambda: None)
    core.links.register(link, registering(1))
    core.handle = told.append
    running = asyncio.create_task(core.perform())
    yield SimpleNamespace(core=core, store=store, link=link, told=told)
    store.may_write.set()
    running.cancel()
    await core.weights_thread.close(lambda: None)
    await core.store_thread.close(store.close)


def assigned(desk, link):
    """The assignments that a connection was told of; each carries a secret of its own."""
    return [message.held_step for message in link.told if isinstance(message, m.Assign)]


async def test_what_follows_a_job_waits_until_it_is_written_as_it_was(desk):
    job = Job(id="digits-1", spec=SPEC, step=3)
    desk.core.put(SaveJob(job=job))
    desk.core.put(Send(name="worker-0", message=ASSIGN))
    desk.core.put(Send(name="worker-0", message=FREEZE))
    job.step = 4
    await asyncio.sleep(0)
    assert desk.link.told == []
    desk.store.may_write.set()
    await desk.core.settled()
    assert desk.store.written == [(1, 3)]
    assert assigned(desk, desk.link) == [3]
    assert desk.link.told[-1] == FREEZE


async def test_a_job_overtakes_the_incidents_before_it(desk):
    """They are written by the same thread; the next generation must not wait for them."""
    go_on = threading.Event()
    desk.core.store_thread.later(go_on.wait, 30)
    desk.core.put(Incident(kind="worker_lost", message="m"))
    desk.core.put(SaveJob(job=Job(id="digits-1", spec=SPEC, step=1)))
    desk.core.put(JobEnded(job=Job(id="digits-1", spec=SPEC)))
    for _ in range(3):
        await asyncio.sleep(0)  # now the job is handed to the thread
    assert desk.core.last_job is None
    desk.store.may_write.set()
    go_on.set()
    await desk.core.settled()
    assert desk.store.written[0] == (1, 1)
    assert desk.core.last_job.job.id == "digits-1"


async def test_a_worker_that_does_not_read_is_cut_off_and_a_gone_one_is_passed_over(desk):
    desk.link.queued = 1 << 40
    for name in ("worker-0", "gone"):
        desk.core.put(Send(name=name, message=ACK))
        desk.core.put(Disconnect(name=name, reason="no heartbeat"))
    await desk.core.settled()
    assert desk.link.told == [ACK, "aborted", "no heartbeat"]


async def test_a_message_that_cannot_be_sent_costs_its_connection_and_fails_its_job(desk):
    """It ended the process: and again at each start, since the job was written down."""

    def send(message):
        m.message_bytes(message)

    desk.link.send, failed = send, []
    desk.link.fail = failed.append
    spec = {"task": {"text": "x" * 70_000}}
    desk.core.put(Send(name="worker-0", message=m.Prepare(job="digits-1", spec=spec)))
    desk.core.put(Send(name="worker-0", message=m.Running(job="", generation=-1, step=0)))
    await desk.core.settled()
    assert [one.code for one in failed] == [ErrorCode.INTERNAL, ErrorCode.INTERNAL]
    undeliverable = desk.told[0]
    assert (type(undeliverable), undeliverable.job) == (Undeliverable, "digits-1")
    assert "header of" in undeliverable.reason
