"""Drives the membership core: workers report, and the driver keeps the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dtd.cluster.events import (
    Disconnect,
    Event,
    FromWorker,
    Incident,
    JobEnded,
    JobSaved,
    SaveJob,
    Send,
    Submitted,
    Ticked,
    WorkerLost,
)
from dtd.cluster.records import Job
from dtd.cluster.several_jobs.pools import Pools
from dtd.exchange.schedule.chunks import Segments
from dtd.wire import messages as m

TICK_S = 0.25

# What takes minutes is looked at less often, and not so seldom that it counts as asleep.
LONG_S, LONG_TICK_S = 120.0, 4 * TICK_S


class Driver:
    """A membership core, a clock that the test moves, and everything the core has answered."""

    def __init__(self, **arguments: Any) -> None:
        self.core = Pools(**arguments)
        self.cluster = self.core.cluster
        self.now = 0.0
        self.sent: list[Send] = []
        self.incidents: list[Incident] = []
        self.disconnected: list[Disconnect] = []
        self.saved: list[Job] = []
        self.ended: list[Job] = []
        self.writes = True

    def handle(self, event: Event) -> None:
        kept = {
            Send: self.sent,
            Incident: self.incidents,
            Disconnect: self.disconnected,
        }
        announced: list[SaveJob] = []
        for effect in self.core.handle(event, self.now):
            if isinstance(effect, SaveJob):
                self.saved.append(effect.job)
                if effect.announces:
                    announced.append(effect)
            elif isinstance(effect, JobEnded):
                self.ended.append(effect.job)
            else:
                kept[type(effect)].append(effect)
        self.core.check_invariants()
        for effect in announced if self.writes else ():
            self.written(effect)

    def written(self, effect: SaveJob, failure: str = "") -> None:
        """The store has written a job down, or says why it could not."""
        saved = JobSaved(job=effect.job.id, generation=effect.announces, failure=failure)
        self.handle(saved)

    def tick(self, now: float) -> None:
        """Let time pass, with heartbeats of all that are watched."""
        tick_s = TICK_S if now - self.now < LONG_S else LONG_TICK_S
        while self.now < now:
            self.now = min(now, self.now + tick_s)
            for name in list(self.cluster.detector._heard):
                self.say(name, m.Heartbeat(state="", generation=self.cluster.run.generation))
            self.handle(Ticked())

    def silence(self, now: float, *but: str, **figures: Any) -> None:
        """Let time pass; only some workers go on to send heartbeats."""
        while self.now < now:
            self.now = min(now, self.now + TICK_S)
            for name in but:
                values = {"generation": self.cluster.run.generation, **figures}
                self.say(name, m.Heartbeat(state="", **values))
            self.handle(Ticked())

    def submit(
        self,
        job_id: str = "j-1",
        *,
        task: str = "",
        copies: int = 1,
        strategy: dict[str, Any] | None = None,
        **elastic: Any,
    ) -> Job:
        table = {
            "min_workers": 1,
            "max_workers": 64,
            "settle_s": 0.0,
            "warmup_timeout_s": 120.0,
            "stall_timeout_s": 5.0,
            "busy_timeout_s": 120.0,
        }
        job = Job(
            id=job_id,
            spec={
                "job": {"name": "j", "task": task},
                "elastic": {**table, **elastic},
                "checkpoint": {"copies": copies},
                "strategy": strategy or {},
            },
        )
        self.handle(Submitted(job=job))
        return job

    # --- what workers say ------------------------------------------------------------------

    def say(self, name: str, message: m.Message) -> None:
        self.handle(FromWorker(name=name, message=message))

    def register(self, name: str, *, incarnation: int = 1, **more: Any) -> None:
        register = m.Register(
            name=name,
            incarnation=incarnation,
            pid=1,
            host="h",
            device="cpu",
            data_host=more.pop("data_host", "h"),
            data_port=1,
            version="0",
            **more,
        )
        self.say(name, register)
        if register.generation and register.job:
            self.warmed(name, job=register.job)  # a member says again with what it trains

    def warmed(self, name: str, job: str = "j-1", **more: Any) -> None:
        values: dict[str, Any] = {
            "dataset_rows": 100,
            "dataset_fingerprint": "d",
            "plan_digest": "p",
            "numerics_fingerprint": "n",
            "parameters": 1,
            "steps_total": 10_000,
            "held": (),
        }
        self.say(name, m.Warmed(job=job, **{**values, **more}))

    def lost(self, name: str, *, incarnation: int = 1, farewell: bool = True) -> None:
        """The connection is gone; with a farewell the process is, too."""
        lost = WorkerLost(name=name, incarnation=incarnation, reason="gone", farewell=farewell)
        self.handle(lost)

    def back(self, name: str, phase: str = "running", **more: Any) -> None:
        """A member connects again and says which generation it takes part in."""
        cluster = self.cluster
        values = {"generation": cluster.run.generation, "roster_id": cluster.job.roster_id, **more}
        self.register(name, job="j-1", phase=phase, **values)

    def beat(self, name: str, *, step: int = 0, **more: Any) -> None:
        """A heartbeat of a member."""
        values = {"generation": self.cluster.run.generation, **more}
        self.say(name, m.Heartbeat(state="running", job="j-1", step=step, **values))

    def commit(self, step: int) -> None:
        """All members have committed so many steps, and say so."""
        for name in self.cluster.run.roster:
            self.beat(name, step=step)

    def warm_up(self, *names: str) -> None:
        """All of them register, and then all of them are ready."""
        for name in names:
            self.register(name)
        for name in names:
            self.warmed(name)

    def run_generation(self, *names: str) -> int:
        """Register, warm up, and report that all of them run."""
        self.warm_up(*names)
        return self.all_run(*names)

    def all_run(self, *names: str) -> int:
        number = self.cluster.run.generation
        for name in names:
            self.say(name, m.Running(job="j-1", generation=number, step=self.start_step))
        return number

    @property
    def start_step(self) -> int:
        job = self.cluster.job
        return 0 if job is None else job.start_step

    def froze(self, name: str, *, generation: int, step: int, **more: Any) -> None:
        """It holds `step` steps, of which its generation has committed the last.

        With a `digest`, that is what it has offered to the others after so many steps.
        """
        by = more.pop("held_generation", generation if step > self.start_step else None)
        held = m.Held(
            job="j-1",
            generation=self.cluster.job.start_generation if by is None else by,
            step=step,
            digest="",
            where=more.pop("where", "memory"),
        )
        prepared = more.pop("prepared", (held.generation, held.step))
        values: dict[str, Any] = {
            "suspect": "",
            "evidence": "",
            "reason": "why",
            **more,
        }
        message = m.Frozen(
            job="j-1",
            generation=generation,
            roster_id=1,
            prepared_generation=prepared[0],
            prepared_step=prepared[1],
            **{"held": (held,), **values},
        )
        self.say(name, message)

    def finished(
        self, name: str, *, generation: int, step: int = 10, saved: bool = True, **more: Any
    ) -> None:
        """It has done its last step, and written it down before it says so."""
        if saved:
            by = more.get("held_generation", generation)
            self.saved_checkpoint(name, generation=by, step=step)
        values = {
            "held_generation": generation,
            "digest": "x",
            "result": {},
            **more,
        }
        self.say(name, m.Finished(job="j-1", generation=generation, step=step, **values))

    def saved_checkpoint(self, name: str, *, generation: int, step: int) -> None:
        message = m.CheckpointSaved(
            job="j-1",
            generation=generation,
            step=step,
            digest="",
            size_bytes=1,
            directory="",
            metrics={},
            kept=(),
        )
        self.say(name, message)

    # --- what the core has answered --------------------------------------------------------

    def told(self, name: str, kind: type[Any]) -> list[Any]:
        """Messages of a kind that a worker was sent."""
        return [s.message for s in self.sent if s.name == name and isinstance(s.message, kind)]

    def kinds(self) -> list[str]:
        """Kinds of the incidents so far."""
        return [incident.kind for incident in self.incidents]

    def told_of(self, kind: str) -> list[Incident]:
        """The incidents of one kind."""
        return [incident for incident in self.incidents if incident.kind == kind]

    def state(self, name: str) -> str:
        return self.cluster.workers[name].state.value


@pytest.fixture
def driver() -> Driver:
    """A fresh membership core."""
    return Driver()


@pytest.fixture
def make_desk() -> Callable[..., Driver]:
    """For cores with arguments."""
    return Driver


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of each bucket that is divided into chunks, as often as a segment is."""
    found: list[int] = []

    def counted(segments: Segments, index: int) -> int:
        found.append(segments.elements)
        return chunk_count(segments, index)

    chunk_count = Segments.chunk_count
    monkeypatch.setattr(Segments, "chunk_count", counted)
    return found
