"""Errors of the coordinator's own, and a core that fails: it goes on, or begins again."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from dtd.cluster import machine
from dtd.cluster.events import (
    FromWorker,
    Incident,
    JobEnded,
    Submitted,
    Ticked,
)
from dtd.cluster.records import Job
from dtd.cluster.several_jobs.pools import Pools
from dtd.cluster.state import CoordinatorIdentity
from dtd.cluster.transitions import JobState
from dtd.coordinator.containment import Containment
from dtd.coordinator.driver import MAX_BEGINNINGS, MAX_TICKS_FAILED, Driver
from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError, RequestRefused
from dtd.net.link import Link
from dtd.wire import messages as m

# --- errors of the coordinator's own: told once, at the cost of one connection, and nothing else


class Teller:
    """Keeps what operators are told."""

    def __init__(self):
        self.told = []

    def incident(self, kind, message, *, worker=""):
        self.told.append((kind, message, worker))


class PlayedLink:
    """A connection that keeps why it was closed."""

    def __init__(self):
        self.failed = []

    def fail(self, error):
        self.failed.append(error)


@pytest.fixture
def teller():
    return Teller()


@pytest.fixture
def containment(teller):
    return Containment(lambda: 0.0, teller.incident)


@pytest.mark.parametrize("error", [KeyError("step"), AssertionError(), LocalProtocolError("long")])
def test_an_error_costs_a_connection_and_is_told_with_its_place(containment, teller, error):
    link = PlayedLink()
    with structlog.testing.capture_logs() as logged, containment.around("X", link, worker="w"):
        raise error
    (failed,) = link.failed
    assert (failed.code, failed.message) == (ErrorCode.INTERNAL, "the coordinator failed at X")
    ((kind, message, worker),) = teller.told
    assert (kind, worker) == ("internal_error", "w")
    assert message.startswith("w: X failed at test_containment.py:")
    assert type(error).__name__ in message
    assert [one["event"] for one in logged] == ["internal_error_traceback"]
    assert logged[0]["exc_info"] is error


@pytest.mark.parametrize(
    "answer", [ProtocolError(ErrorCode.BAD_FIELD, "no"), RequestRefused("not now")]
)
def test_what_others_did_wrong_is_no_error_of_ours(containment, teller, answer):
    with pytest.raises(type(answer)), containment.around("X", PlayedLink()):
        raise answer
    assert teller.told == []


# --- a core that fails: what it had decided is done, and it goes on, or begins again -------------


ELASTIC = {"min_workers": 1, "max_workers": 64, "settle_s": 0.0, "warmup_timeout_s": 120.0}


def job(number=1, **more):
    spec = {"job": {"name": "j", "task": "digits"}, "elastic": ELASTIC}
    return Job(id=f"j-{number}", spec=spec, **more)


class PlayedDriver(Driver):
    now = 0.0


class Desk:
    """A guarded core, and all that became of what it decided."""

    def __init__(self):
        self.core = Pools(identity=CoordinatorIdentity(), last_generation=7)
        self.cluster = self.core.home
        self.done, self.ended, self.told = [], [], []
        containment = Containment(lambda: 0.0, self.incident)
        self.driver = PlayedDriver(
            self.core, containment, perform=self.done.append, disconnect_all=self.ended.append
        )

    def incident(self, kind, message, *, worker=""):
        self.told.append(message)

    def handle(self, event):
        self.driver.handle(event)

    def breaks(self, monkeypatch):
        """Once the core fails in its last part, when the state has changed."""

        def fail(*_arguments):
            monkeypatch.undo()
            raise KeyError("a defect")

        monkeypatch.setattr(machine, "_advance", fail)


@pytest.fixture
async def desk():
    made = Desk()
    yield made
    made.driver.stop()


def register(name):
    return FromWorker(
        name=name,
        message=m.Register(
            name=name,
            incarnation=1,
            pid=1,
            host="h",
            device="cpu",
            data_host="h",
            data_port=1,
            version="",
        ),
    )


def test_books_that_do_not_balance_are_begun_again_from_their_jobs(desk, monkeypatch):
    desk.handle(Submitted(job=job(step=5)))
    desk.handle(Submitted(job=job(2)))
    desk.handle(register("a"))
    desk.breaks(monkeypatch)
    desk.cluster.run.roster = ["a", "a"]
    with pytest.raises(KeyError):
        desk.handle(register("b"))
    desk.core.check_invariants()
    assert (desk.cluster.job.id, desk.cluster.job.step) == ("j-1", 5)
    assert [one.id for one in desk.cluster.queue] == ["j-2"]
    assert desk.cluster.workers == {}
    assert desk.cluster.run.highest == 7
    assert len(desk.ended) == 1
    kinds = [one.kind for one in desk.done if isinstance(one, Incident)]
    assert "core_begun_again" in kinds


def test_a_job_with_which_it_fails_for_ever_has_failed(desk, monkeypatch):
    """Whatever of the job it is: state and clock cannot go on with it."""
    desk.handle(Submitted(job=job()))
    desk.handle(Submitted(job=job(2)))
    cursed = machine._advance

    def fail(cluster):
        if cluster.job is not None and cluster.job.id == "j-1":
            raise KeyError("a defect")
        cursed(cluster)

    monkeypatch.setattr(machine, "_advance", fail)
    for _ in range(MAX_TICKS_FAILED * (MAX_BEGINNINGS + 1)):
        desk.cluster.job = desk.cluster.job or job()
        desk.driver.now += 0.25
        desk.handle(Ticked())
    (ended,) = [one.job for one in desk.done if isinstance(one, JobEnded)]
    assert (ended.id, ended.state) == ("j-1", JobState.FAILED)
    assert "the coordinator failed with it" in ended.reason


async def test_what_nobody_waits_for_is_told_and_ends_its_connection(containment, teller):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(containment.stray)
    loop.call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "ZeroDivisionError" in teller.told[0][1]
    link = Link(None)
    containment.stray(loop, {"message": "m", "exception": ValueError("no"), "protocol": link})
    assert link.closing
    told = len(teller.told)
    containment.stray(loop, {"message": "no error, just words"})
    assert len(teller.told) == told
