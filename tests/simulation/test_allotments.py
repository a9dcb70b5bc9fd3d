"""The oracle's rules for workers that move between jobs: each of them can be broken."""

from __future__ import annotations

import pytest

from dtd.cluster.events import FromWorker, Submitted
from dtd.cluster.records import Job, Worker
from dtd.cluster.several_jobs.pools import Pools
from tests.registrations import registration
from tests.sim.allotments import USED_S, Allotments
from tests.sim.lineage import Broken


@pytest.fixture
def pools() -> Pools:
    """A job of two to four workers has three."""
    made = Pools()
    made.handle(Submitted(job=Job(id="j-1", spec={"elastic": {"workers": "2-4"}})), 0.0)
    for number in (1, 2, 3):
        come(made, f"w{number}")
    return made


def come(pools: Pools, name: str) -> None:
    pools.handle(FromWorker(name=name, message=registration(name=name)), 0.0)


def move(pools: Pools, name: str, at: float) -> Worker:
    worker = pools.workers()[name]
    worker.leaving, worker.moving_since = True, at
    return worker


def test_moves_that_leave_a_job_its_least_are_right(pools: Pools) -> None:
    rules = Allotments()
    rules.check(pools, 0.0)
    move(pools, "w3", 1.0)
    rules.check(pools, 1.0)
    assert rules.moves == 1


def test_move_below_the_least(pools: Pools) -> None:
    move(pools, "w2", 1.0)
    move(pools, "w3", 1.0)
    with pytest.raises(Broken, match="below its least"):
        Allotments().check(pools, 1.0)


def test_worker_that_moves_to_and_fro(pools: Pools) -> None:
    rules = Allotments()
    rules.check(pools, 0.0)
    worker = move(pools, "w3", 1.0)
    rules.check(pools, 1.0)
    worker.leaving, worker.moving_since = False, None
    rules.check(pools, 2.0)
    move(pools, "w3", 3.0)
    with pytest.raises(Broken, match="moves again"):
        rules.check(pools, 3.0)


def test_worker_may_move_again_when_another_has_come(pools: Pools) -> None:
    rules = Allotments()
    rules.check(pools, 0.0)
    worker = move(pools, "w3", 1.0)
    rules.check(pools, 1.0)
    worker.leaving, worker.moving_since = False, None
    come(pools, "w4")
    move(pools, "w3", 3.0)
    rules.check(pools, 3.0)


def test_idle_worker_that_a_job_could_use(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pools, "_allot", lambda *_: None)
    come(pools, "w4")
    rules = Allotments()
    rules.check(pools, 0.0)
    with pytest.raises(Broken, match="a worker idles"):
        rules.check(pools, USED_S)
