"""Random clusters of pure cores: whatever happens in whatever order, no transition is impossible.

One coordinator's core, and a few workers' cores with training threads that do as they are told, or
fail, or say that they hold what they do not.  Messages wait in queues of their own; connections are
lost and processes end at any time, operators give any order, and the store goes back.  After every
event both cores' invariants must hold.  A generation has the members that its job asks for, and no
worker is assigned or told to save while it trains.  `tests/simulation` asks for more, with fewer
surprises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from dtd.cluster import member
from dtd.cluster.events import (
    CancelRequested,
    Disconnect,
    DrainRequested,
    Event,
    FromWorker,
    JobSaved,
    KillRequested,
    ResumeRequested,
    Revoked,
    SaveJob,
    Send,
    Submitted,
    Ticked,
    Undeliverable,
    WorkerLost,
)
from dtd.cluster.records import Job
from dtd.cluster.several_jobs.pools import Pools
from dtd.cluster.state import CoordinatorIdentity
from dtd.cluster.transitions import MemberState
from dtd.errors import RequestRefused
from dtd.wire import messages as m

EVENTS = 1_500
SEEDS = range(24)
STEPS = 30
_LEAVES = m.Frozen | m.Finished
WARMED = m.Warmed(
    job="",
    dataset_rows=100,
    dataset_fingerprint="d",
    plan_digest="p",
    numerics_fingerprint="n",
    parameters=1,
    steps_total=STEPS,
    held=(),
)


class Process:
    """A worker's process: its core, what its training thread is about to say, and two queues."""

    def __init__(self, name: str, rng: Random, *, serves: bool) -> None:
        self.name, self.rng, self.serves = name, rng, serves
        self.connected = False
        self.to_coordinator: deque[m.Message] = deque()
        self.from_coordinator: deque[m.Message] = deque()
        self.begin()

    def begin(self) -> None:
        """A new process under the same name."""
        self.incarnation = self.rng.randrange(1, 2**40)
        self.core = member.Member(
            m.Register(
                name=self.name,
                incarnation=self.incarnation,
                pid=self.rng.randrange(1, 2**20),
                host="h",
                device="cpu",
                data_host="h",
                data_port=1,
                version=self.rng.choice(["0.1.0"] * 9 + ["0.2.0"]),
                serves=self.serves,
                last_end=self.rng.choice(["", "was killed"]),
            )
        )
        self.job = ""
        self.identity = ""
        self.held = (0, 0)
        self.thread: deque[member.Event] = deque()

    def does(self, event: member.Event) -> str:
        """Handle an event; returns how the process ends, if it does."""
        trains = self.core.state in (MemberState.FORMING, MemberState.RUNNING)
        effects = self.core.handle(event)
        self.core.check_invariants()
        for effect in effects:
            assert not (trains and isinstance(event, m.Assign | m.Save)), event
            if isinstance(effect, member.Tell):
                if self.connected:
                    self.to_coordinator.append(effect.message)
            elif isinstance(effect, member.Restart | member.Exit):
                return "restart"
            else:
                self.perform(effect)
        return ""

    def perform(self, effect: Any) -> None:
        rng = self.rng
        if isinstance(effect, m.Prepare):
            self.job, self.identity = effect.job, effect.identity
            odd = {} if rng.random() < 0.9 else {"dataset_rows": 99}
            self.thread.append(replace(WARMED, job=self.job, **odd))
        elif isinstance(effect, m.Assign):
            self.held = (effect.held_generation, effect.held_step)
            running = m.Running(job=self.job, generation=effect.generation, step=effect.held_step)
            self.thread.append(running if rng.random() < 0.9 else self.froze())
        elif isinstance(effect, member.BreakRing | member.EndAtBoundary):
            stop = isinstance(effect, member.EndAtBoundary) and effect.stop
            running = self.core.state is MemberState.RUNNING
            if not any(isinstance(one, _LEAVES) for one in self.thread):
                self.thread.append(self.finished() if stop and running else self.froze())
        elif isinstance(effect, m.Save):
            saved = self.saved() if rng.random() < 0.8 else self.notice()
            self.to_coordinator.append(saved)

    # --- what its training thread says -----------------------------------------------------

    def trains(self) -> None:
        """A step, or the end of all steps, or something that goes wrong."""
        assert self.core.assign is not None
        generation, rng = self.core.assign.generation, self.rng
        kind = rng.random()
        if kind < 0.6:
            step = min(STEPS, self.held[1] + rng.choice([0, 1, 1, 1, 5]))
            self.held = (generation if step > self.held[1] else self.held[0], step)
            if step == STEPS:
                self.thread.append(self.finished())
            else:
                self.beat()
        elif kind < 0.7:
            self.thread.append(self.froze())
        elif kind < 0.75:
            self.thread.append(member.Diverged(generation=generation, reason="alone"))
        elif kind < 0.8:
            failed = m.Failed(job=self.job, reason="no", traceback="", step=self.held[1])
            self.thread += [failed, self.froze()]
        elif kind < 0.9:
            self.to_coordinator.append(self.saved())
        else:
            self.beat(stalled_s=100.0, patience_s=1.0)

    def beat(self, **more: float) -> None:
        generation = self.core.assign.generation if self.core.assign is not None else 0
        values = {"job": self.job, "generation": generation, "step": self.held[1], **more}
        beat = m.Heartbeat(state=self.core.state.value, **values)
        self.to_coordinator.append(beat)

    def froze(self) -> m.Frozen:
        assign, rng = self.core.assign, self.rng
        assert assign is not None
        generation, step = self.held
        suspect = rng.choice(assign.roster).name if rng.random() < 0.5 else ""
        ahead = step + 1 if rng.random() < 0.3 and generation <= assign.generation else step
        where = "memory" if rng.random() < 0.9 else "none"
        held = m.Held(job=self.job, generation=generation, step=step, digest="", where=where)
        return m.Frozen(
            job=self.job,
            generation=assign.generation,
            roster_id=assign.roster_id,
            held=(held,),
            prepared_generation=assign.generation if ahead > step else generation,
            prepared_step=ahead,
            suspect=suspect,
            evidence=rng.choice(["", "reset", "ended", "silent", "diverged"]),
            reason="because",
            diverged_step=step,
            differs=rng.choice(["", "weight"]),
        )

    def finished(self) -> m.Finished:
        assert self.core.assign is not None
        return m.Finished(
            job=self.job,
            generation=self.core.assign.generation,
            step=self.held[1],
            held_generation=self.held[0],
            digest="x",
            result={},
        )

    def saved(self) -> m.CheckpointSaved:
        return m.CheckpointSaved(
            job=self.job,
            generation=self.held[0],
            step=self.held[1],
            digest="",
            size_bytes=1,
            directory="",
            metrics={},
            kept=(),
        )

    def notice(self) -> m.Notice:
        return m.Notice(job=self.job, event="checkpoint_failed", message="the disk is full")


class Cluster:
    """A coordinator's core with a store, and workers; one random event after another."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now, self.jobs = 0.0, 0
        self.stored: dict[str, Job] = {}
        self.generation = 0
        self.core = self.coordinator()
        names = [f"w-{n}" for n in range(self.rng.randrange(1, 5))]
        server = "w-0" if seed % 2 == 0 else ""  # a parameter server, and yet the last rank
        self.workers = [Process(name, self.rng, serves=name == server) for name in names]

    def coordinator(self) -> Pools:
        here = CoordinatorIdentity(version="0.1.0", host="c")
        return Pools(last_generation=self.generation, identity=here)

    def handle(self, event: Event) -> None:
        todo: deque[Event] = deque([event])
        while todo:
            try:
                effects = self.core.handle(todo.popleft(), self.now)
            except RequestRefused:
                continue
            self.core.check_invariants()
            self.core.explain()
            for effect in effects:
                if isinstance(effect, Send | Disconnect):
                    self.reach(effect)
                elif isinstance(effect, SaveJob):
                    todo += self.store(effect)

    def reach(self, effect: Send | Disconnect) -> None:
        """Messages go to a worker that is connected; who is thrown out hears of it later."""
        for one in self.workers:
            if one.name == effect.name and one.connected:
                if isinstance(effect, Send):
                    self.check_roster(effect.message)
                    one.from_coordinator.append(effect.message)
                else:
                    self.cut(one, farewell=False)

    def check_roster(self, message: m.Message) -> None:
        """A generation has enough workers, and servers, as the last ranks, only if its job does."""
        if isinstance(message, m.Assign):
            terms = self.stored[message.job].terms
            serves = [one.serves for one in message.roster]
            assert serves == sorted(serves)
            assert any(serves) == terms.has_servers
            assert serves.count(False) >= terms.min_workers

    def store(self, effect: SaveJob) -> list[Event]:
        failure = "full" if self.rng.random() < 0.1 else ""
        if not failure:
            self.stored[effect.job.id] = replace(effect.job)
            self.generation = max(self.generation, effect.announces)
        if not effect.announces:
            return []
        return [JobSaved(job=effect.job.id, generation=effect.announces, failure=failure)]

    # --- what happens ----------------------------------------------------------------------

    def something(self) -> None:
        worker = self.rng.choice(self.workers)
        happens: list[tuple[float, Callable[[], None]]] = [
            (10, lambda: self.deliver(worker)),
            (10, lambda: self.read(worker)),
            (6, lambda: self.think(worker)),
            (3, lambda: self.connect(worker)),
            (3, self.tick),
            (0.2, lambda: self.cut(worker, farewell=False)),
            (0.1, lambda: self.die(worker)),
            (0.2, lambda: self.carry_out(worker, member.StopAsked(reason="stopped"))),
            (0.5, self.submit),
            (0.4, lambda: self.handle(self.order(worker))),
            (0.05, self.restart),
        ]
        weights = [weight for weight, _ in happens]
        self.rng.choices([one for _, one in happens], weights)[0]()

    def deliver(self, worker: Process) -> None:
        if worker.to_coordinator:
            message = worker.to_coordinator.popleft()
            self.handle(FromWorker(name=worker.name, message=message))

    def read(self, worker: Process) -> None:
        if worker.from_coordinator:
            self.carry_out(worker, worker.from_coordinator.popleft())

    def think(self, worker: Process) -> None:
        if worker.thread:
            self.carry_out(worker, worker.thread.popleft())
        elif worker.core.state is MemberState.RUNNING:
            worker.trains()
        elif worker.connected:
            worker.beat()

    def carry_out(self, worker: Process, event: member.Event) -> None:
        if worker.does(event):
            self.die(worker)

    def connect(self, worker: Process) -> None:
        if not worker.connected:
            worker.connected = True
            self.carry_out(worker, member.ControlOpened())

    def cut(self, worker: Process, *, farewell: bool) -> None:
        if worker.connected:
            worker.connected = False
            worker.from_coordinator.clear()
            worker.to_coordinator.clear()
            lost = WorkerLost(
                name=worker.name, incarnation=worker.incarnation, reason="gone", farewell=farewell
            )
            self.handle(lost)

    def die(self, worker: Process) -> None:
        self.cut(worker, farewell=self.rng.random() < 0.5)
        worker.begin()

    def tick(self) -> None:
        self.now += self.rng.choice([0.01, 0.1, 0.3, 1.0, 20.0, 100.0])
        self.handle(Ticked())

    def submit(self) -> None:
        if len(self.core.cluster.queue) < 2:
            self.jobs += 1
            limits = {
                "min_workers": self.rng.randrange(1, 3),
                "max_workers": 3,
                "settle_s": self.rng.choice([0.0, 2.0]),
                "warmup_timeout_s": 120.0,
            }
            spec = {
                "job": {"name": "j", "global_batch_size": 8, "task": "t"},
                "elastic": limits,
                "checkpoint": {"copies": self.rng.randrange(1, 3)},
            }
            if any(worker.serves for worker in self.workers) and self.rng.random() < 0.5:
                spec["strategy"] = {"name": "sharded", "owners": "servers", "mirrors": 0}
            name = f"j-{self.jobs}"
            self.handle(Submitted(job=Job(id=name, spec=spec)))

    def order(self, worker: Process) -> Event:
        """An operator's requests, and reports of the shell."""
        job = self.core.cluster.job
        name = job.id if job is not None else "j-0"
        return self.rng.choice(
            [
                CancelRequested(job=name),
                ResumeRequested(job=name),
                DrainRequested(name=worker.name),
                KillRequested(name=worker.name, signal="TERM"),
                Revoked(name=worker.name, reason="revoked"),
                Undeliverable(job=name, reason="too large"),
            ]
        )

    def restart(self) -> None:
        """The coordinator starts again from its store, which may have gone back."""
        for worker in self.workers:
            worker.connected = False
            worker.from_coordinator.clear()
            worker.to_coordinator.clear()
        restored = self.rng.random() < 0.3
        self.core = self.coordinator()
        for job in list(self.stored.values()):
            if job.state.value not in ("done", "failed", "cancelled"):
                doubted = restored or job.in_doubt
                self.handle(Submitted(job=replace(job, in_doubt=doubted, forgetful=doubted)))


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_impossible_happens(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(EVENTS):
        cluster.something()
