"""A whole cluster in virtual time: one coordinator, workers, a plan of what befalls them.

    Cluster(7, workers=4).submit(steps=10, buckets=(40, 7)).crash("worker-2", at_s=2.0).run()

Everything that happens follows from the seed and the plan.  The oracle judges after every event;
`run` also raises when the job does not end in time although the plan is over.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from dtd.core.membership_events import Event, Job, JobState, Submitted
from dtd.errors import RequestRefused
from dtd.sim import faults
from dtd.sim.coordinator import CoordinatorProcess, Store
from dtd.sim.network import Network
from dtd.sim.oracle import Broken, Oracle
from dtd.sim.replica import Disk
from dtd.sim.scheduler import Scheduler
from dtd.sim.surroundings import COORDINATOR, Pace, Surroundings
from dtd.sim.worker import WorkerProcess

LINGER_S = 2.0
SUBMIT_AGAIN_S = 0.5


class Cluster:
    """One simulation.

    Args:
        seed: where all chance comes from.
        workers: how many start at the beginning, as worker-1, worker-2, ...
        pace: how long things take.
    """

    def __init__(self, seed: int, *, workers: int, pace: Pace | None = None) -> None:
        scheduler, rng = Scheduler(), random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.seed = seed
        self.network = Network(scheduler, rng)
        self.oracle = Oracle(remembered=self._remembered, saved=self._saved)
        self.surroundings = Surroundings(
            scheduler=scheduler,
            network=self.network,
            rng=rng,
            oracle=self.oracle,
            pace=pace if pace is not None else Pace(),
            restarted=self._start_soon,
        )
        self._plan: list[faults.Fault] = []
        self._jobs: list[tuple[float, Job]] = []
        self._store = Store()
        self._coordinator: CoordinatorProcess | None = None
        self._processes: dict[str, WorkerProcess] = {}
        self._disks: dict[str, Disk] = {}
        self._datasets: dict[str, str] = {}
        self._failing: dict[str, int] = {}
        self._incarnations = 0
        self._at_start = [f"worker-{number}" for number in range(1, workers + 1)]

    # --- planning --------------------------------------------------------------------------

    def submit(
        self,
        *,
        steps: int,
        buckets: Sequence[int] = (24,),
        min_workers: int = 1,
        max_workers: int = 64,
        checkpoint_every: int = 0,
        settle_s: float = 1.0,
        at_s: float = 0.0,
    ) -> Self:
        """Submit a job; jobs are called job-1, job-2, ..."""
        spec: dict[str, Any] = {
            "job": {"name": "job"},
            "elastic": {
                "min_workers": min_workers,
                "max_workers": max_workers,
                "settle_s": settle_s,
                "warmup_timeout_s": 30.0,
            },
            "model": {
                "steps": steps,
                "buckets": list(buckets),
                "checkpoint_every": checkpoint_every,
            },
        }
        self._jobs.append((at_s, Job(id=f"job-{len(self._jobs) + 1}", spec=spec)))
        return self

    def do(self, verb: str, *names: str, at_s: float) -> Self:
        """Plan any fault; the verbs are in `dtd.sim.faults`."""
        self._plan.append(faults.Fault(at_s=at_s, verb=verb, names=names))
        return self

    def planned(self, verb: str) -> bool:
        """Whether the plan has such a fault."""
        return any(fault.verb == verb for fault in self._plan)

    def crash(self, name: str, *, at_s: float) -> Self:
        """Kill a process like by SIGKILL; `name` may be the coordinator."""
        return self.do("crash", name, at_s=at_s)

    def restart(self, name: str, *, at_s: float) -> Self:
        """Start a process that does not run, or one that never ran."""
        return self.do("restart", name, at_s=at_s)

    def bounce(self, name: str, *, at_s: float, down_s: float = 0.5) -> Self:
        """Kill a process and start it again."""
        return self.crash(name, at_s=at_s).restart(name, at_s=at_s + down_s)

    def hold(self, one: str, other: str, *, at_s: float, until_s: float) -> Self:
        """Stall everything between two processes for a while."""
        return self.do("hold", one, other, at_s=at_s).do("release", one, other, at_s=until_s)

    def partition_oneway(self, source: str, to: str, *, at_s: float, until_s: float) -> Self:
        """Stall what one process sends to another for a while."""
        self.do("partition_oneway", source, to, at_s=at_s)
        return self.do("release", source, to, at_s=until_s)

    def pause(self, name: str, *, at_s: float, until_s: float) -> Self:
        """Stop a worker like by SIGSTOP for a while."""
        return self.do("pause", name, at_s=at_s).do("unpause", name, at_s=until_s)

    def reset(self, one: str, other: str, *, at_s: float) -> Self:
        """Reset the connections between two processes."""
        return self.do("reset", one, other, at_s=at_s)

    def misfit(self, name: str) -> Self:
        """Give a worker other data than everybody else's."""
        self._datasets[name] = f"data of {name}"
        return self

    def failing(self, name: str, *, step: int) -> Self:
        """Let the job's own code raise on a worker in this step."""
        self._failing[name] = step
        return self

    # --- running ---------------------------------------------------------------------------

    def run(self, *, patience_s: float = 200.0) -> Self:
        """Let it all happen.

        Raises:
            Broken: a rule was broken, or a job had not ended `patience_s` after the last fault.
        """
        scheduler = self.surroundings.scheduler
        self.start(COORDINATOR)
        for at_s, job in self._jobs:
            scheduler.at(at_s, partial(self._submit, job))
        for name in self._at_start:
            self._start_soon(name)
        for fault in self._plan:
            scheduler.at(fault.at_s, partial(self._apply, fault))
        last_s = max((fault.at_s for fault in self._plan), default=0.0)
        scheduler.run(until_s=last_s + patience_s, done=self._all_ended)
        if not self._all_ended():
            raise Broken(f"nothing has ended by {scheduler.now:.1f} s: {self._explain()}")
        scheduler.run(until_s=scheduler.now + LINGER_S, done=lambda: False)
        return self

    @property
    def story(self) -> list[str]:
        """What happened, a line each."""
        return self.surroundings.story

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.surroundings.scheduler.now

    def job(self, number: int = 1) -> Job:
        """A job that has ended."""
        return self.oracle.ended_jobs[f"job-{number}"]

    def workers_state(self) -> dict[str, str]:
        """State of every running worker, by name."""
        return {n: p.core.state.value for n, p in sorted(self._processes.items()) if p.alive}

    def _all_ended(self) -> bool:
        return len(self.oracle.ended_jobs) == len(self._jobs)

    def _explain(self) -> str:
        coordinator = self._coordinator
        says = coordinator.membership.explain() if coordinator is not None else "it is away"
        workers = ", ".join(f"{name} is {state}" for name, state in self.workers_state().items())
        return f"the coordinator says {says!r}; {workers}"

    # --- what faults act on ----------------------------------------------------------------

    def _apply(self, fault: faults.Fault) -> None:
        self.surroundings.tell(f"* {fault}")
        faults.apply(fault, self)

    def _remembered(self, job: str) -> dict[str, int]:
        trainers = {n: p.trainer for n, p in self._processes.items() if p.alive and p.trainer}
        states = {name: trainer.state for name, trainer in trainers.items()}
        return {n: state.step for n, state in states.items() if state and state.job == job}

    def _saved(self, job: str) -> int:
        states = [disk.newest(job) for disk in self._disks.values()]
        return max((state.step for state in states if state), default=-1)

    def _submit(self, job: Job) -> None:
        """Like an operator who looks whether his job has arrived, and tries again."""
        if job.id not in self._store.jobs:
            self.ask(Submitted(job=copy.deepcopy(job)))
            self.surroundings.scheduler.after(SUBMIT_AGAIN_S, lambda: self._submit(job))

    def _start_soon(self, name: str) -> None:
        delay_s = self.surroundings.draw(self.surroundings.pace.start_s)
        self.surroundings.scheduler.after(delay_s, lambda: self.start(name))

    def start(self, name: str) -> None:
        """Start a process; nothing when it runs."""
        if name == COORDINATOR:
            if self._coordinator is None:
                self._coordinator = CoordinatorProcess(self.surroundings, self._store)
        elif self.process(name) is None:
            self._incarnations += 1
            self._processes[name] = WorkerProcess(
                self.surroundings,
                name,
                incarnation=self._incarnations,
                disk=self._disks.setdefault(name, Disk()),
                dataset=self._datasets.get(name, "data"),
                fails_at_step=self._failing.get(name),
            )

    def stop(self, name: str) -> None:
        """Kill a process at once; nothing when it does not run."""
        if name == COORDINATOR:
            if self._coordinator is not None:
                self._coordinator.crash()
                self._coordinator = None
            return
        process = self.process(name)
        if process is not None:
            process.crash()

    def process(self, name: str) -> WorkerProcess | None:
        """A worker's process, if it runs."""
        process = self._processes.get(name)
        return process if process is not None and process.alive else None

    def ask(self, event: Event) -> None:
        """Hand an operator's request to the coordinator, if it can be reached."""
        if self._coordinator is None:
            self.surroundings.tell("nobody answers the operator")
            return
        try:
            self._coordinator.handle(event)
        except RequestRefused as error:
            self.surroundings.tell(f"refused: {error}")

    def lost_steps(self, number: int = 1) -> int:
        """Committed steps that had to be done again."""
        return self.job(number).steps_lost

    def succeeded(self, number: int = 1) -> bool:
        """The job has done all its steps."""
        return self.job(number).state is JobState.DONE
