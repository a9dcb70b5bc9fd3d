"""Effects in their order, and incidents as lines of a log."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
import threading
from types import SimpleNamespace

import pytest
import structlog

from dtd.cluster.events import (
    Disconnect,
    Incident,
    JobEnded,
    JobSaved,
    SaveJob,
    Send,
    Undeliverable,
)
from dtd.cluster.records import Job
from dtd.coordinator.containment import Containment
from dtd.coordinator.effects import Effects, incident_fields
from dtd.coordinator.store.thread import StoreThread
from dtd.coordinator.worker_links import WorkerLinks
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


class Teller:
    """Keeps what operators are told."""

    def __init__(self, told):
        self.told = told

    def incident(self, kind, message, *, worker=""):
        self.told.append((kind, worker))


class PlayedStore:
    """A store whose disk the test holds up."""

    def __init__(self):
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
async def desk():
    """Effects between a played store, a played worker and nobody who asks."""
    told = []

    def performed(effect):
        told.append(effect.job.id if isinstance(effect, JobEnded) else "news")

    store, links, link = PlayedStore(), WorkerLinks(bytes(32), lambda: 0.0), PlayedLink()
    links.register(link, registering(1))
    thread = StoreThread()
    effects = Effects(
        links=links,
        store=store,
        thread=thread,
        job_numbers={"digits-1": 7},
        handle=told.append,
        performed=performed,
        containment=Containment(lambda: 0.0, Teller(told).incident),
    )
    running = asyncio.create_task(effects.run())
    yield SimpleNamespace(
        effects=effects, store=store, thread=thread, links=links, link=link, told=told
    )
    store.may_write.set()
    running.cancel()
    await thread.close(lambda: None)


def assigned(desk, link):
    """The assignments that a connection was told of; each carries a secret of its own."""
    return [message.held_step for message in link.told if isinstance(message, m.Assign)]


async def test_what_follows_a_job_waits_until_it_is_written_as_it_was(desk):
    job = Job(id="digits-1", spec=SPEC, step=3)
    desk.effects.put(SaveJob(job=job))
    desk.effects.put(Send(name="worker-0", message=ASSIGN))
    desk.effects.put(Send(name="worker-0", message=FREEZE))
    job.step = 4
    await asyncio.sleep(0)
    assert desk.link.told == []
    desk.store.may_write.set()
    await desk.effects.settled()
    assert desk.store.written == [(7, 3)]
    assert assigned(desk, desk.link) == [3]
    assert desk.link.told[-1] == FREEZE


async def test_acknowledgements_do_not_wait_for_the_disk(desk):
    """Else every worker would take a coordinator with a slow disk for dead."""
    other = PlayedLink()
    desk.links.register(other, dataclasses.replace(registering(5), name="worker-1"))
    desk.effects.put(SaveJob(job=Job(id="digits-1", spec=SPEC)))
    desk.effects.put(Send(name="worker-0", message=ASSIGN))
    desk.effects.put(Send(name="worker-0", message=ACK))
    desk.effects.put(Send(name="worker-1", message=FREEZE))
    await asyncio.sleep(0)
    assert (desk.link.told, other.told, desk.store.written) == ([ACK], [FREEZE], [])


async def test_what_announces_a_generation_is_told_to_be_written_or_not(desk):
    desk.store.may_write.set()
    announcing = SaveJob(job=Job(id="digits-1", spec=SPEC), announces=4)
    desk.effects.put(announcing)
    desk.effects.put(SaveJob(job=Job(id="digits-1", spec=SPEC)))
    await desk.effects.settled()
    assert desk.told == [JobSaved(job="digits-1", generation=4)]
    desk.store.failure = "database or disk is full"
    desk.effects.put(announcing)
    desk.effects.put(announcing)
    await desk.effects.settled()
    failed = JobSaved(job="digits-1", generation=4, failure="database or disk is full")
    assert desk.told[1:] == [failed, failed]


async def test_a_message_goes_to_the_connection_that_the_worker_had(desk):
    desk.effects.put(SaveJob(job=Job(id="digits-1", spec=SPEC)))
    desk.effects.put(Send(name="worker-0", message=ASSIGN))
    newer = PlayedLink()
    desk.links.register(newer, registering(2))
    desk.store.may_write.set()
    await desk.effects.settled()
    assert newer.told == []
    assert assigned(desk, desk.link) == [3]


async def test_a_job_overtakes_the_incidents_before_it(desk):
    """They are written by the same thread; the next generation must not wait for them."""
    go_on = threading.Event()
    desk.thread.later(go_on.wait, 30)
    desk.effects.put(Incident(kind="worker_lost", message="m"))
    desk.effects.put(SaveJob(job=Job(id="digits-1", spec=SPEC, step=1)))
    desk.effects.put(JobEnded(job=Job(id="digits-1", spec=SPEC)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # now the job is handed to the thread
    assert desk.told == ["news"]
    desk.store.may_write.set()
    go_on.set()
    await desk.effects.settled()
    assert desk.store.written[0] == (7, 1)
    assert desk.told == ["news", "digits-1"]


async def test_a_worker_that_does_not_read_is_cut_off_and_a_gone_one_is_passed_over(desk):
    desk.link.queued = 1 << 40
    for name in ("worker-0", "gone"):
        desk.effects.put(Send(name=name, message=ACK))
        desk.effects.put(Disconnect(name=name, reason="no heartbeat"))
    await desk.effects.settled()
    assert desk.link.told == [ACK, "aborted", "no heartbeat"]


async def test_incidents_are_logged_with_their_details(desk):
    with structlog.testing.capture_logs() as logged:
        desk.effects.put(Incident(kind="recovered", message="m", details={"steps_lost": 0}))
        desk.effects.put(Incident(kind="worker_lost", message="m"))
        await desk.effects.settled()
    recovered, lost = logged
    assert (recovered["event"], recovered["log_level"]) == ("recovered", "info")
    assert recovered["steps_lost"] == 0
    assert (lost["event"], lost["log_level"]) == ("worker_lost", "warning")


def test_details_stand_beside_what_every_incident_has():
    details = {"worker": "worker-1", "generation": 9, "cause": "reset"}
    fields = incident_fields(Incident(kind="k", message="m", generation=4, details=details))
    assert fields == {
        "message": "m",
        "job": "",
        "worker": "worker-1",
        "generation": 4,
        "step": 0,
        "cause": "reset",
    }


async def test_a_message_that_cannot_be_sent_costs_its_connection_and_fails_its_job(desk):
    """It ended the process: and again at each start, since the job was written down."""

    def send(message):
        m.message_bytes(message)

    desk.link.send, failed = send, []
    desk.link.fail = failed.append
    spec = {"task": {"text": "x" * 70_000}}
    desk.effects.put(Send(name="worker-0", message=m.Prepare(job="digits-1", spec=spec)))
    desk.effects.put(Send(name="worker-0", message=m.Running(job="", generation=-1, step=0)))
    await desk.effects.settled()
    assert [one.code for one in failed] == [ErrorCode.INTERNAL, ErrorCode.INTERNAL]
    undeliverable = desk.told[0]
    assert (type(undeliverable), undeliverable.job) == (Undeliverable, "digits-1")
    assert "header of" in undeliverable.reason
    assert ("internal_error", "worker-0") in desk.told


async def test_a_job_that_is_no_json_is_not_written_and_the_next_one_is(desk):
    desk.store.may_write.set()
    write = desk.store.save_job

    def save(number, body):
        write(number, json.loads(json.dumps(body)))

    desk.store.save_job = save
    bad = Job(id="digits-1", spec=SPEC, result={"x": b"octets"})
    desk.effects.put(SaveJob(job=bad, announces=4))
    desk.effects.put(SaveJob(job=Job(id="digits-1", spec=SPEC, step=3)))
    await desk.effects.settled()
    assert desk.store.written[-1] == (7, 3)
    told = [one for one in desk.told if isinstance(one, JobSaved)]
    assert [(one.generation, "bytes" in one.failure) for one in told] == [(4, True)]
