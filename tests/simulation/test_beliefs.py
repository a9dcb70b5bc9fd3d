"""The judge of what the coordinator believes: every rule is broken here once, and noticed."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dtd.cluster.records import Job, Worker
from dtd.cluster.run import Decision
from dtd.cluster.several_jobs.pools import Pools
from dtd.cluster.transitions import GenerationState, JobState, WorkerState
from dtd.cluster.workers.links import pair_of
from dtd.wire import messages as m
from tests.registrations import registration
from tests.sim.beliefs import Beliefs
from tests.sim.lineage import Broken, Memory
from tests.sim.replica import fresh

SPEC = {"elastic": {"min_workers": 1, "max_workers": 9, "settle_s": 1.0}}
RING = ("w-0", "w-1")


class Scene:
    """A coordinator whose generation 1 runs on two workers, and what is really so."""

    def __init__(self) -> None:
        self.now = 1.0
        self.connected: tuple[str, ...] = RING
        self.trains = {"w-0": 1, "w-1": 1}
        self.resumed: set[str] = set()
        self.memories: list[Memory] = []
        self.beliefs = Beliefs(
            remembered=lambda job: self.memories, trains=self.trains, resumed=self.resumed
        )
        self.core = Pools(heartbeat_interval_s=1.0, heartbeat_timeout_s=3.0)
        self.job = Job(id="j", spec=SPEC, state=JobState.RUNNING, generation=1, roster=RING)
        self.job.announced, self.job.fenced = True, False
        cluster = self.core.cluster
        cluster.job, cluster.run.generation = self.job, 1
        cluster.run.roster, cluster.run.phase = list(RING), GenerationState.RUNNING
        for rank, name in enumerate(RING):
            worker = Worker(
                registration=registration(name=name, incarnation=7, instance=name),
                state=WorkerState.RUNNING,
            )
            cluster.workers[name] = worker
            self.beliefs.joined(self.an_assign(rank))

    @staticmethod
    def an_assign(rank: int) -> m.Assign:
        roster = tuple(
            m.Member(name=name, incarnation=7, host="h", port=1, holds=True) for name in RING
        )
        return m.Assign(
            job="j",
            generation=1,
            roster_id=1,
            rank=rank,
            roster=roster,
            held_generation=0,
            held_step=0,
        )

    def everybody(self, state: WorkerState) -> None:
        for worker in self.core.cluster.workers.values():
            worker.state = state

    def decides(self, *, lost: int = 0) -> None:
        """The second generation is being written down."""
        cluster = self.core.cluster
        before = {"roster": RING, "branches": ()}
        cluster.run.phase, cluster.run.roster = GenerationState.NONE, []
        self.job.state, self.job.generation = JobState.FORMING, 2
        cluster.run.decision = Decision(
            members=list(cluster.available()), holds=[], lost=lost, redone=False, before=before
        )

    def check(self) -> None:
        self.beliefs.check(self.core.cluster, self.now, self.connected)


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.check()
    return made


def joins_late(scene: Scene) -> None:
    scene.core.cluster.run.generation = scene.job.generation = 2


def is_fenced(scene: Scene) -> None:
    scene.job.fenced = True


def is_away(scene: Scene) -> None:
    scene.connected = ("w-0",)


def has_bad_link(scene: Scene) -> None:
    scene.core.cluster.run.phase = GenerationState.FORMING
    links = SimpleNamespace(bad={pair_of(*RING)})
    scene.core.cluster.links = links  # type: ignore[assignment]


def is_not_told_to_stop(scene: Scene) -> None:
    scene.job.state = JobState.STOPPING


def is_told_on_an_older_connection(scene: Scene) -> None:
    for name in RING:
        freeze = m.Freeze(generation=1, at_boundary=True, stop=False, reason="", leave=False)
        scene.beliefs.told(name, freeze)
    scene.core.cluster.run.phase = GenerationState.ENDING
    scene.check()
    scene.beliefs.connected("w-1")


def has_not_reported(scene: Scene) -> None:
    scene.trains.clear()
    worker = scene.core.cluster.workers["w-1"]
    worker.state, worker.reconnection.returning = WorkerState.WARMING, True
    scene.memories = [Memory(name="w-1", incarnation=7, state=fresh("j"), prepared=None)]
    scene.decides()


def is_not_waited_for(scene: Scene) -> None:
    scene.trains.clear()
    scene.core.cluster.workers["w-1"].state = WorkerState.LOST
    scene.decides(lost=1)
    scene.now = 60.0


def is_silent(scene: Scene) -> None:
    scene.beliefs.heard("w-1", scene.now)
    scene.now += 10.0


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        (joins_late, "counts as running that not all have joined"),
        (is_fenced, "counts as stopped that nobody has left"),
        (is_away, "counts as connected that is not"),
        (is_silent, "a silent worker takes part"),
        (has_bad_link, "have a bad link"),
        (is_not_told_to_stop, "is not told that its generation ends"),
        (is_told_on_an_older_connection, "is not told that its generation ends"),
        (has_not_reported, "decided before all have reported"),
        (is_not_waited_for, "nobody waits for those who hold more"),
    ],
)
def test_mistake_is_noticed(scene: Scene, mistake: Callable[[Scene], Any], rule: str) -> None:
    mistake(scene)
    with pytest.raises(Broken, match=rule):
        scene.check()


def test_operator_and_time_excuse(scene: Scene) -> None:
    scene.resumed.add("j")
    scene.job.fenced = True
    scene.check()
    is_not_waited_for(scene)
    scene.check()
    assert scene.beliefs.waited_for("j", ["w-0"])("w-1")
    scene.resumed.clear()
    scene.job.generation = 3
    scene.now = 61.0
    scene.check()
    assert scene.beliefs.waited_for("j", ["w-0"])("w-1")
    assert not scene.beliefs.waited_for("j", RING)("w-1")


def test_absent_holder_of_a_newer_checkpoint_is_waited_for(scene: Scene) -> None:
    scene.trains.clear()
    scene.job.checkpoint_generation = scene.job.checkpoint_step = 1
    scene.job.checkpoint_holders = ("w-9",)
    scene.decides()
    with pytest.raises(Broken, match="nobody waits"):
        scene.check()
    scene.core.cluster.run.decision = replace(
        scene.core.cluster.run.decision, before={"roster": RING, "branches": ((0, 0, 2),)}
    )
    scene.beliefs.started(1.0)
    scene.check()


def test_message_that_overtakes_another_one(scene: Scene) -> None:
    first, second = (m.Release(job="j", state="done", reason=reason) for reason in "ab")
    for message in (first, m.HeartbeatAck(), second):
        scene.beliefs.told("w-0", message)
    scene.beliefs.says("w-0", m.HeartbeatAck())
    with pytest.raises(Broken, match="overtakes another one"):
        scene.beliefs.says("w-0", second)
