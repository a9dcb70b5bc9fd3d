"""Runs sweeps: begins trials, follows their progress and end, and stores all of it.

    BEGIN_SWEEP -> a row -> a task: choose (Optuna, in a thread) -> a row -> a job in the queue
                     ^                                                          |
                     +-- the trial's row <- evaluations, the job's end <--------+

`dtd.sweeps` decides; what is chosen is asked of the advisor, never on the event loop.  After a
restart every sweep that has not ended goes on from its rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from dtd import sweeps as course
from dtd.cluster.events import CancelRequested
from dtd.cluster.records import Job
from dtd.cluster.transitions import ENDED, JobState
from dtd.coordinator.core import Core
from dtd.coordinator.handlers import jobs
from dtd.coordinator.services.models import ModelRegistry
from dtd.errors import DtdError, JobSpecError, RequestRefused
from dtd.job.parse import to_mapping
from dtd.job.sweep import SweepSpec, read_sweep, stored_sweep
from dtd.rules import did_you_mean
from dtd.sweeps import Advisor, Begin, End, Submit, Trial, TrialState, optuna_module
from dtd.wire import messages as m

T = TypeVar("T")

MAX_OPEN_SWEEPS: Final = 8
_ENDED: Final = {"done": "is done", "failed": "failed", "cancelled": "was cancelled"}
RETRY_S: Final = 2.0
"""Pause before a submission that was refused, because the queue is full, is tried again."""
NAME_CHARACTERS: Final = 40
"""Most characters of a job's name in the names of its trials."""
IMPORTANCE_WITHIN_S: Final = 1.0
MAX_NEWS: Final = 1000
"""Evaluations that wait while Optuna thinks; beyond these they are dropped."""


class _Run:
    """One sweep that has not ended."""

    advisor: Advisor

    def __init__(self, number: int, spec: SweepSpec, package: str, *, cancelled: bool) -> None:
        self.number = number
        self.spec = spec
        self.package = package
        self.cancelled = cancelled
        self.trials: list[Trial] = []
        self.news: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self.cancelling: set[str] = set()
        self.over = False


class Sweeps:
    """All sweeps of a coordinator; belongs to the event loop."""

    def __init__(self, core: Core, models: ModelRegistry) -> None:
        self._core = core
        self._models = models
        self._runs: dict[int, _Run] = {}
        self._trial_of: dict[str, tuple[_Run, int]] = {}
        self._specs: dict[int, SweepSpec] = {}
        self._importance: dict[int, tuple[int, dict[str, float]]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sweeps")

    async def _ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """Ask an advisor, in the sweeps' thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    # --- from outside --------------------------------------------------------------------------

    async def take_up(self) -> None:
        """Go on with the sweeps that an earlier process has not ended."""
        for row in await self._core.in_store(self._core.store.sweeps.open_sweeps):
            with self._core.containment.around(f"taking up {name_of(row['number'])}"):
                await self._take_up(row)

    async def _take_up(self, row: Mapping[str, Any]) -> None:
        name, tables = name_of(row["number"]), self._core.store.sweeps
        try:
            spec = await _checked(row["spec"], name)
        except JobSpecError as error:  # an earlier release has written it
            why = f"this release does not accept it: {'; '.join(error.problems)}"
            await self._core.in_store(tables.change, row["number"], "failed", why)
            self._core.incident("sweep_failed", f"{name} failed: {why}")
            return
        cancelled = row["state"] == "cancelling"
        run = _Run(row["number"], spec, row["package"], cancelled=cancelled)
        run.trials = await self._core.in_store(tables.trials, run.number)
        self._start(run)

    async def begin(self, request: m.BeginSweep) -> dict[str, Any]:
        """Carry out BEGIN_SWEEP.

        Raises:
            JobSpecError: the sweep is not valid.
            RequestRefused: too many have not ended, or Optuna is not installed.
        """
        if len(self._runs) >= MAX_OPEN_SWEEPS:
            raise RequestRefused(
                f"{MAX_OPEN_SWEEPS} sweeps have not ended",
                remedy="wait for one, or cancel one: dtdctl sweep list",
            )
        await self._core.packages.check(request.package)
        spec = await _checked(request.spec, "sweep")
        await asyncio.get_running_loop().run_in_executor(None, optuna_module)
        tables = self._core.store.sweeps
        number = await self._core.in_store(tables.begin, spec.to_mapping(), request.package)
        self._start(_Run(number, spec, request.package, cancelled=False))
        return {"sweep": name_of(number), "trials": spec.trials}

    async def cancel(self, name: str) -> dict[str, Any]:
        """Carry out CANCEL_SWEEP."""
        row = await self._row(name)
        run = self._runs.get(row["number"])
        if run is None:
            raise RequestRefused(f"{name} has ended: it is {row['state']}")
        if not run.cancelled:
            run.cancelled = True
            change = self._core.store.sweeps.change
            await self._core.in_store(change, run.number, "cancelling", "by the operator")
            run.news.put_nowait(functools.partial(asyncio.sleep, 0))
        return {"sweep": name, "state": "cancelling"}

    async def listing(self) -> dict[str, Any]:
        rows = await self._core.in_store(self._core.store.sweeps.listed)
        return {"sweeps": [_row(one, self._spec(one)) for one in rows]}

    async def show(self, name: str) -> dict[str, Any]:
        """The answer to SHOW_SWEEP."""
        row = await self._row(name)
        trials = await self._core.in_store(self._core.store.sweeps.trials, row["number"])
        spec = self._spec(row)
        found = course.best(trials, spec.sweep.direction)
        return {
            **_row({**row, "begun": len(trials)}, spec),
            "space": row["spec"]["space"],
            "best": None if found is None else _shown(found),
            "importance": await self._importance_of(row["number"], spec, trials),
            "trials": [_shown(one) for one in trials],
        }

    def evaluated(self, message: m.Evaluated) -> None:
        run, number = self._trial_of.get(message.job, (None, 0))
        if run is not None and run.news.qsize() < MAX_NEWS:
            told = (run, number, message.step, dict(message.metrics))
            run.news.put_nowait(functools.partial(self._on_evaluated, *told))

    def job_ended(self, job: Job) -> None:
        run, number = self._trial_of.pop(job.id, (None, 0))
        if run is not None:
            run.news.put_nowait(functools.partial(self._on_ended, run, number, job))

    def _spec(self, row: Mapping[str, Any]) -> SweepSpec:
        """Return the specification of a stored sweep; pages ask for it again and again."""
        number = row["number"]
        if number not in self._specs:
            self._specs[number] = stored_sweep(row["spec"])
        return self._specs[number]

    async def _importance_of(
        self, number: int, spec: SweepSpec, trials: Sequence[Trial]
    ) -> dict[str, float]:
        """Return the importance of each setting, computed again when a trial was completed.

        Where that takes long, as the first time, when Optuna is imported, this is the last one.
        """
        values = [one.value for one in trials if one.state is TrialState.DONE]
        done = len(values)
        alike = len(set(values)) < 2  # then none is known, and Optuna need not be imported
        if not alike and self._importance.get(number, (0, {}))[0] != done:
            computing = self._core.keep(self._compute_importance(number, spec, trials, done))
            await asyncio.wait([computing], timeout=IMPORTANCE_WITHIN_S)
        return self._importance.get(number, (0, {}))[1]

    async def _compute_importance(
        self, number: int, spec: SweepSpec, trials: Sequence[Trial], done: int
    ) -> None:
        self._importance[number] = done, await self._ask(_importance, spec, trials)

    async def _row(self, name: str) -> dict[str, Any]:
        number = name.removeprefix("sweep-")
        tables = self._core.store.sweeps
        row = await self._core.in_store(tables.sweep, int(number)) if number.isdecimal() else None
        if row is None:
            rows = await self._core.in_store(tables.listed)
            near = did_you_mean(name, [name_of(one["number"]) for one in rows])
            raise RequestRefused(
                f"there is no sweep {name!r}{near}", remedy="see `dtdctl sweep list`"
            )
        return row

    # --- one sweep -----------------------------------------------------------------------------

    def _start(self, run: _Run) -> None:
        self._runs[run.number] = run
        self._core.keep(self._contained(run))

    async def _contained(self, run: _Run) -> None:
        name = name_of(run.number)
        try:
            with self._core.containment.around(f"running {name}"):
                await self._run(run)
            if not run.over:  # by an error, which was caught
                with self._core.containment.around(f"ending {name}"):
                    why = "an internal error of the coordinator, see its events"
                    await self._end(run, End("failed", why))
        finally:
            self._runs.pop(run.number, None)

    async def _run(self, run: _Run) -> None:
        try:
            run.advisor = await self._ask(Advisor, run.spec, tuple(run.trials))
        except RequestRefused as error:
            await self._end(run, End("failed", error.message))
            return
        await self._find_jobs(run)
        while True:
            self._cancel_jobs(run)
            action = course.next_action(
                run.trials, run.spec.sweep, count=run.spec.trials, cancelled=run.cancelled
            )
            if isinstance(action, End):
                await self._end(run, action)
                return
            if isinstance(action, Begin):
                params = await self._ask(run.advisor.choose, action.number)
                await self._keep(run, Trial(number=action.number, params=params))
            elif isinstance(action, Submit):
                await self._submit_trial(run, action.trial)
            else:
                await (await run.news.get())()

    async def _find_jobs(self, run: _Run) -> None:
        """Find the jobs of trials that had not ended when this process began."""
        store, in_store = self._core.store, self._core.in_store
        for trial in [one for one in run.trials if one.state in course.OPEN]:
            name = self._trial_name(run, trial.number)
            job_id = trial.job or await in_store(store.sweeps.job_called, name)
            if not job_id:
                continue
            await self._follow_job(run, trial, job_id)

    async def _follow_job(self, run: _Run, trial: Trial, job_id: str) -> None:
        """Listen to a trial's job from now on; it may have ended already."""
        self._trial_of[job_id] = (run, trial.number)
        state = trial.state if trial.state is TrialState.PRUNING else TrialState.RUNNING
        met = replace(trial, job=job_id, state=state)
        await self._keep(run, met)
        body = await self._core.in_store(self._core.store.job, job_id)
        ended = body is None or JobState(body["state"]) in ENDED
        if ended and self._trial_of.pop(job_id, None) is not None:
            await self._close(run, met, body)

    async def _close(self, run: _Run, trial: Trial, body: Mapping[str, Any] | None) -> None:
        """A trial's job has ended while nobody listened, or was deleted."""
        known = body or {"state": "failed", "reason": "its job was deleted", "result": {}}
        metrics = await self._metrics(run, trial.job, known["result"].get("metrics", {}))
        state, reason = JobState(known["state"]), str(known["reason"])
        done = course.ended(trial, state, reason, metrics, run.spec.sweep.metric)
        await self._settle(run, done)

    async def _metrics(self, run: _Run, job_id: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """A job's last evaluation; its report is lost if no coordinator runs at that moment.

        The last checkpoint was saved after it, and has its figures, too.
        """
        if run.spec.sweep.metric in told:
            return told
        found = await self._core.in_store(self._core.store.checkpoints, job_id)
        last = (one["metrics"] for one in found if one["step"] == found[0]["step"])
        return next((one for one in last if run.spec.sweep.metric in one), told)

    async def _submit_trial(self, run: _Run, trial: Trial) -> None:
        name = self._trial_name(run, trial.number)
        try:
            settings = await self._ask(run.spec.job_of, name, trial.params)
            request = m.SubmitJob(spec=to_mapping(settings), package=run.package)
            job_id = str((await jobs.submit(self._core, request))["job"])
        except DtdError as error:
            if "queued already" in error.message:
                await self._pause(run)
                return
            failed = replace(trial, state=TrialState.FAILED, reason=error.message)
            await self._settle(run, failed)
            return
        await self._follow_job(run, trial, job_id)

    async def _pause(self, run: _Run) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                news = await run.news.get()
            await news()

    async def _on_ended(self, run: _Run, number: int, job: Job) -> None:
        metric = run.spec.sweep.metric
        metrics = await self._metrics(run, job.id, job.metrics)
        await self._settle(
            run, course.ended(run.trials[number], job.state, job.reason, metrics, metric)
        )

    async def _on_evaluated(
        self, run: _Run, number: int, step: int, metrics: Mapping[str, Any]
    ) -> None:
        metric = run.spec.sweep.metric
        told = course.evaluated(run.trials[number], step, metrics, metric)
        if told is None:
            return
        step, value = told.points[-1]
        if await self._ask(run.advisor.reported, number, len(told.points), value):
            why = f"pruned by {name_of(run.number)}: {metric} {value:g} at step {step} is worse"
            told = replace(
                told, state=TrialState.PRUNING, reason=f"{why} than that of other trials"
            )
        await self._keep(run, told)

    def _cancel_jobs(self, run: _Run) -> None:
        found = course.to_cancel(run.trials, run.spec.sweep, cancelled=run.cancelled)
        for job_id, reason in found:
            if job_id in run.cancelling:
                continue
            run.cancelling.add(job_id)
            with contextlib.suppress(RequestRefused):  # it has ended meanwhile
                self._core.handle(CancelRequested(job=job_id, reason=reason))

    async def _keep(self, run: _Run, trial: Trial) -> None:
        run.trials[trial.number : trial.number + 1] = [trial]
        await self._core.in_store(self._core.store.sweeps.write_trial, run.number, trial)

    async def _settle(self, run: _Run, trial: Trial) -> None:
        await self._keep(run, trial)
        await self._ask(run.advisor.ended, trial)

    async def _end(self, run: _Run, end: End) -> None:
        found = course.best(run.trials, run.spec.sweep.direction)
        reason = end.reason
        text = f"{name_of(run.number)} {_ENDED[end.state]}" + (f": {reason}" if reason else "")
        if found is not None:
            text += f"; best: trial {found.number}, job {found.job}, {run.spec.sweep.metric}"
            text += f" {found.value:g}"
        if found is not None and end.state == "done":
            text += await self._register(run, found)
        change = self._core.store.sweeps.change
        await self._core.in_store(change, run.number, end.state, reason)
        run.over = True
        if end.state == "failed":
            self._core.incident("sweep_failed", text)
        else:
            self._core.incident("sweep_ended", text)

    async def _register(self, run: _Run, best: Trial) -> str:
        """Register the best trial's weights, if the sweep asks for that; returns what to say."""
        model = run.spec.sweep.model
        if not model:
            return ""
        request = m.RegisterModel(name=model, job=best.job)
        try:
            await self._models.register(request, name_of(run.number))
        except DtdError as error:
            return f"; it is not registered as {model}: {error.message}"
        return f"; registered as {model}"

    def _trial_name(self, run: _Run, number: int) -> str:
        base = str(run.spec.base["job"]["name"])[:NAME_CHARACTERS]
        return f"{base}-s{run.number}-t{number}"


def name_of(number: int) -> str:
    """A sweep's id."""
    return f"sweep-{number}"


async def _checked(mapping: object, source: str) -> SweepSpec:
    """A valid sweep, checked in a thread; raises JobSpecError."""
    read = functools.partial(read_sweep, mapping, source=source)
    return await asyncio.get_running_loop().run_in_executor(None, read)


def _importance(spec: SweepSpec, trials: Sequence[Trial]) -> dict[str, float]:
    try:
        return Advisor(spec, trials).importance()
    except RequestRefused:  # Optuna was removed
        return {}


def _row(row: Mapping[str, Any], spec: SweepSpec) -> dict[str, Any]:
    """A sweep as `dtdctl sweep list` shows it."""
    table = row["spec"]["sweep"]
    return {
        "id": name_of(row["number"]),
        "job": row["spec"]["base"]["job"]["name"],
        "state": row["state"],
        "reason": row["reason"],
        "method": table["method"],
        "metric": table["metric"],
        "direction": table["direction"],
        "pruner": table["pruner"],
        "begun": row["begun"],
        "planned": spec.trials,
        "began_s": row["began_s"],
        "ended_s": row["ended_s"],
    }


def _shown(trial: Trial) -> dict[str, Any]:
    """A trial as `dtdctl sweep status` shows it."""
    return {
        "number": trial.number,
        "state": trial.state.value,
        "job": trial.job,
        "params": dict(trial.params),
        "value": trial.value,
        "evaluations": len(trial.points),
        "reason": trial.reason,
    }
