"""Sweeps from their beginning to their end, with the real store and Optuna; jobs are played."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dtd import sweeps as advisor_module
from dtd.cluster.events import CancelRequested, Event
from dtd.cluster.records import Job
from dtd.cluster.transitions import ENDED, JobState
from dtd.coordinator.containment import Containment
from dtd.coordinator.handlers import jobs
from dtd.coordinator.services.sweeps import Sweeps
from dtd.coordinator.store.store import Store, job_body
from dtd.errors import RequestRefused
from dtd.sweeps import Trial
from dtd.wire import messages as m

pytest.importorskip("optuna")
pytestmark = pytest.mark.timeout(60)

T = TypeVar("T")
BASE = {"job": {"name": "tiny", "task": "digits", "epochs": 4, "global_batch_size": 64}}
SPACE = {"optimizer.lr": {"low": 0.001, "high": 1.0, "log": True}}


class Cluster:
    """A coordinator as sweeps see it; a test says how each job does."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory)
        self.containment = Containment(time.monotonic, self.incident)
        self.packages: Any = self
        self.sweeps = Sweeps(self, self)
        self.jobs: dict[str, Job] = {}
        self.started: asyncio.Queue[Job] = asyncio.Queue()
        self.cancelled: asyncio.Queue[Job] = asyncio.Queue()
        self.told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.registered: list[tuple[m.RegisterModel, str]] = []
        self.refusals: list[Exception] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.noted = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    # --- what sweeps need ------------------------------------------------------------------------

    async def in_store(self, function: Callable[..., T], *arguments: Any) -> T:
        await asyncio.sleep(0)
        if function == self.store.sweeps.write_trial and arguments[1].job:
            self.noted.set()
        return function(*arguments)

    def incident(self, kind: str, message: str, *, worker: str = "", **details: Any) -> None:
        self.told.put_nowait((kind, message))

    def keep(self, work: Any) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    async def register(self, request: m.RegisterModel, by: str) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.registered.append((request, by))

    async def check(self, digest: str) -> None:
        """No job brings a package."""

    async def submit(self, request: m.SubmitJob) -> dict[str, Any]:
        if self.refusals:
            raise self.refusals.pop()
        number = len(self.jobs) + 1
        name = f"{request.spec['job']['name']}-{number}"
        job = Job(id=name, spec=request.spec, state=JobState.RUNNING, package=request.package)
        self.jobs[name] = job
        self.store.save_job(number, job_body(job))
        self.started.put_nowait(job)
        await self.answers.wait()
        return {"job": name}

    def handle(self, event: Event) -> None:
        assert isinstance(event, CancelRequested)
        job = self.jobs[event.job]
        if job.state in ENDED:
            raise RequestRefused("it has ended")
        self.end(job, JobState.CANCELLED, reason=event.reason)
        self.cancelled.put_nowait(job)

    # --- what jobs do ----------------------------------------------------------------------------

    def evaluate(self, job: Job, step: int, accuracy: float) -> None:
        self.sweeps.evaluated(m.Evaluated(job=job.id, step=step, metrics={"accuracy": accuracy}))

    def end(
        self, job: Job, state: JobState = JobState.DONE, value: float = 0.5, reason: str = ""
    ) -> None:
        job.state, job.reason = state, reason
        job.metrics = {"accuracy": value} if state is JobState.DONE else {}
        job.result = {"metrics": job.metrics}
        number = list(self.jobs).index(job.id) + 1
        self.store.save_job(number, job_body(job))
        self.sweeps.job_ended(job)

    # --- what tests do ---------------------------------------------------------------------------

    async def begin(self, **table: Any) -> str:
        spec = {
            "sweep": {"metric": "accuracy", "direction": "maximize", "method": "random", **table},
            "space": SPACE,
            "base": BASE,
        }
        answer = await self.sweeps.begin(m.BeginSweep(spec=spec, package="ab" * 32))
        return str(answer["sweep"])

    async def stop(self) -> None:
        """The coordinator's process ends."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def again(self) -> None:
        """Another one begins."""
        self.sweeps = Sweeps(self, self)
        await self.sweeps.take_up()

    async def hear_end(self) -> str:
        kind, message = await self.told.get()
        assert kind == ("sweep_failed" if "failed" in message else "sweep_ended"), message
        return message

    async def states(self, name: str = "sweep-1") -> list[str]:
        return [trial["state"] for trial in (await self.sweeps.show(name))["trials"]]


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    monkeypatch.setattr(jobs, "submit", lambda core, request: core.submit(request))
    monkeypatch.setattr("dtd.coordinator.services.sweeps.IMPORTANCE_WITHIN_S", None)
    yield made
    await made.stop()
    made.store.close()


async def test_so_many_trials_run_at_once_and_the_best_is_registered(cluster: Cluster) -> None:
    name = await cluster.begin(trials=4, parallel=2, workers_per_trial=3, model="best", seed=3)
    running = [await cluster.started.get(), await cluster.started.get()]
    assert [job.id for job in running] == ["tiny-s1-t0-1", "tiny-s1-t1-2"]
    assert {job.spec["elastic"]["workers"] for job in running} == {3}
    assert running[0].package == "ab" * 32
    assert running[0].spec["optimizer"]["lr"] != running[1].spec["optimizer"]["lr"]
    assert cluster.started.empty()
    for value in (0.25, 0.75, 0.5):
        cluster.end(running.pop(0), value=value)
        if len(cluster.jobs) < 4:
            running.append(await cluster.started.get())
    cluster.end(running.pop(), value=0.1)
    job = cluster.jobs["tiny-s1-t1-2"].id
    assert await cluster.hear_end() == (
        f"sweep-1 is done; best: trial 1, job {job}, accuracy 0.75; registered as best"
    )
    assert cluster.registered == [(m.RegisterModel(name="best", job=job), name)]
    shown = await cluster.sweeps.show(name)
    assert (shown["state"], shown["best"]["number"], shown["begun"]) == ("done", 1, 4)
    assert [trial["value"] for trial in shown["trials"]] == [0.25, 0.75, 0.5, 0.1]
    assert set(shown["importance"]) == set(SPACE)
    with pytest.raises(RequestRefused, match="has ended: it is done"):
        await cluster.sweeps.cancel(name)


async def test_optuna_is_not_asked_what_matters_before_two_trials_differ(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[float | None]] = []

    def importance(_spec: object, trials: Sequence[Trial]) -> dict[str, float]:
        asked.append([one.value for one in trials])
        return {"optimizer.lr": 1.0}

    monkeypatch.setattr("dtd.coordinator.services.sweeps._importance", importance)
    name = await cluster.begin(trials=3)
    for value in (0.5, 0.5, 0.25):
        assert (await cluster.sweeps.show(name))["importance"] == {}
        cluster.end(await cluster.started.get(), value=value)
    await cluster.hear_end()
    assert (await cluster.sweeps.show(name))["importance"] == {"optimizer.lr": 1.0}
    assert asked == [[0.5, 0.5, 0.25]]


async def test_failures_in_a_row_end_it_and_cancel_the_others(cluster: Cluster) -> None:
    await cluster.begin(trials=9, parallel=3, max_failures=2)
    first, second, third = [await cluster.started.get() for _ in range(3)]
    cluster.refusals = [RequestRefused("no such task")]
    cluster.end(first, JobState.FAILED, reason="diverged")
    assert await cluster.cancelled.get() in (second, third)
    assert await cluster.cancelled.get() in (second, third)
    assert await cluster.hear_end() == (
        "sweep-1 failed: 2 trials in a row have failed, the last one: no such task"
    )
    assert await cluster.states() == ["failed", "cancelled", "cancelled", "failed"]


@pytest.mark.parametrize(("pruner", "good"), [("median", 5), ("asha", 3)])
async def test_a_worse_trial_is_cancelled(cluster: Cluster, pruner: str, good: int) -> None:
    await cluster.begin(trials=good + 1, pruner=pruner)
    for number in range(good):
        job = await cluster.started.get()
        for step in range(1, 5):
            cluster.evaluate(job, step, 0.9 + number / 100)
        cluster.end(job, value=0.9 + number / 100)
    worse = await cluster.started.get()
    cluster.evaluate(worse, 1, 0.1)
    assert await cluster.cancelled.get() is worse
    reason = "pruned by sweep-1: accuracy 0.1 at step 1 is worse than that of other trials"
    assert worse.reason == reason
    assert f"trial {good - 1}," in await cluster.hear_end()
    last = (await cluster.sweeps.show("sweep-1"))["trials"][-1]
    assert (last["state"], last["value"], last["evaluations"]) == ("pruned", 0.1, 1)
    assert last["reason"] == reason


# --- restarts ------------------------------------------------------------------------------------


async def test_it_goes_on_after_restarts_and_submits_nothing_twice(cluster: Cluster) -> None:
    await cluster.begin(trials=4, parallel=3, seed=4)
    first, second = await cluster.started.get(), await cluster.started.get()
    third = await cluster.started.get()
    await cluster.stop()
    cluster.end(first, value=0.25)  # nobody listens
    await cluster.again()
    fourth = await cluster.started.get()
    assert fourth.id == "tiny-s1-t3-4"
    await cluster.stop()
    del cluster.jobs[second.id]
    cluster.jobs = {"gone": second, **cluster.jobs}
    cluster.store.save_job(2, {**job_body(second), "state": "cancelled"})
    cluster.store.delete_job(second.id)
    await cluster.again()
    cluster.end(third, value=0.75)
    cluster.jobs = {job.id: job for job in (first, second, third, fourth)}
    cluster.end(fourth, value=0.5)
    assert "best: trial 2" in await cluster.hear_end()
    trials = (await cluster.sweeps.show("sweep-1"))["trials"]
    assert [one["state"] for one in trials] == ["done", "failed", "done", "done"]
    assert trials[1]["reason"] == "its job was deleted"
    assert cluster.started.empty()


# --- operators -----------------------------------------------------------------------------------


async def test_an_operator_cancels_it_with_its_jobs(cluster: Cluster) -> None:
    name = await cluster.begin(trials=9, parallel=2)
    jobs = [await cluster.started.get(), await cluster.started.get()]
    for _ in range(2):
        assert await cluster.sweeps.cancel(name) == {"sweep": name, "state": "cancelling"}
    assert [await cluster.cancelled.get(), await cluster.cancelled.get()] == jobs
    assert {job.reason for job in jobs} == {"its sweep was cancelled"}
    assert await cluster.hear_end() == "sweep-1 was cancelled: by the operator"
    (row,) = (await cluster.sweeps.listing())["sweeps"]
    assert (row["state"], row["reason"]) == ("cancelled", "by the operator")
    assert await cluster.states() == ["cancelled", "cancelled"]


async def test_without_optuna_nothing_begins(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"no module {name}")

    with monkeypatch.context() as patch:
        patch.setattr(advisor_module.importlib, "import_module", missing)
        with pytest.raises(RequestRefused, match="has no Optuna") as refused:
            await cluster.begin()
        assert refused.value.remedy.endswith("pip install optuna")
        assert (await cluster.sweeps.listing())["sweeps"] == []
    await cluster.begin(trials=2)
    job = await cluster.started.get()
    await cluster.stop()
    with monkeypatch.context() as patch:
        patch.setattr(advisor_module.importlib, "import_module", missing)
        await cluster.again()
        assert "sweep-1 failed: the coordinator has no Optuna" in await cluster.hear_end()
    assert job.state is JobState.RUNNING
