"""A core that fails: what it had decided is done, and it goes on, or begins again."""

from __future__ import annotations

import pytest

from dtd.cluster.events import (
    FromWorker,
    Incident,
    JobEnded,
    Send,
    Submitted,
    Ticked,
)
from dtd.cluster.machine import Membership
from dtd.cluster.pools import Pools
from dtd.cluster.records import CoordinatorIdentity, Job
from dtd.cluster.transitions import JobState
from dtd.coordinator.containment import MAX_BEGINNINGS, MAX_TICKS_FAILED, Containment, GuardedCore
from dtd.wire import messages as m

ELASTIC = {"min_workers": 1, "max_workers": 64, "settle_s": 0.0, "warmup_timeout_s": 120.0}


def job(number=1, **more):
    spec = {"job": {"name": "j", "task": "digits"}, "elastic": ELASTIC}
    return Job(id=f"j-{number}", spec=spec, **more)


class Desk:
    """A guarded core, and all that became of what it decided."""

    def __init__(self):
        self.core = Pools(identity=CoordinatorIdentity(), last_generation=7)
        self.cluster = self.core.home.cluster
        self.done, self.ended, self.told = [], [], []
        containment = Containment(lambda: 0.0, self.incident)
        self.guarded = GuardedCore(
            self.core, containment, perform=self.done.append, disconnect_all=self.ended.append
        )
        self.now = 0.0

    def incident(self, kind, message, *, worker=""):
        self.told.append(message)

    def handle(self, event):
        effects = self.guarded.handle(event, self.now)
        self.done += effects
        return effects

    def breaks(self, monkeypatch):
        """Once the core fails in its last part, when the state has changed."""

        def fail(*_arguments):
            monkeypatch.undo()
            raise KeyError("a defect")

        monkeypatch.setattr(self.core.home, "_advance", fail)


@pytest.fixture
def desk():
    return Desk()


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


def test_what_was_decided_before_it_failed_is_done(desk, monkeypatch):
    desk.breaks(monkeypatch)
    with pytest.raises(KeyError):
        desk.handle(register("a"))
    assert "a" in desk.cluster.workers
    assert [type(one.message) for one in desk.done if isinstance(one, Send)] == [m.Registered]
    assert desk.ended == []


def test_a_clock_that_fails_is_told_and_goes_on(desk, monkeypatch):
    desk.handle(register("a"))
    desk.breaks(monkeypatch)
    assert desk.handle(Ticked()) == []
    assert "keeping time failed" in desk.told[0]
    desk.handle(Submitted(job=job()))
    assert desk.cluster.job.id == "j-1"
    assert desk.guarded.next_deadline(0.0) is not None
    assert desk.ended == []


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
    cursed = Membership._advance

    def fail(core, now):
        if core.cluster.job is not None and core.cluster.job.id == "j-1":
            raise KeyError("a defect")
        cursed(core, now)

    monkeypatch.setattr(Membership, "_advance", fail)
    for _ in range(MAX_TICKS_FAILED * (MAX_BEGINNINGS + 1)):
        desk.cluster.job = desk.cluster.job or job()
        desk.now += 0.25
        desk.handle(Ticked())
    (ended,) = [one.job for one in desk.done if isinstance(one, JobEnded)]
    assert (ended.id, ended.state) == ("j-1", JobState.FAILED)
    assert "the coordinator failed with it" in ended.reason
