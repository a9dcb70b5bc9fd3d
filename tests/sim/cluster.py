"""A whole cluster in virtual time: one coordinator, workers and a plan of faults.

    Cluster(7, workers=4).submit(steps=10, buckets=(40, 7)).crash("worker-2", at_s=2.0).run()
    Cluster(7, workers=4).submit(steps=10).crash(rank=3).at(step=7, phase=ALL_GATHER).run()

Seed and plan determine everything that happens.  The oracle checks its rules after every event;
`run` also raises if a job does not end in time after the last fault.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self, overload

from dtd.cluster.events import Submitted
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from tests.sim import faults
from tests.sim.coordinator import CoordinatorProcess
from tests.sim.hopeless import rightly_waits
from tests.sim.machines import Machines
from tests.sim.oracle import Broken, Oracle
from tests.sim.phases import Phase, Trigger
from tests.sim.replica import DATA
from tests.sim.surroundings import COORDINATOR, Pace

LINGER_S = 2.0
LOOKS = 4
"""Times that the operator looks at the status of jobs that do not end."""
SUBMIT_AGAIN_S = 0.5


class NothingEnds(Broken):
    """A job has not ended in time after the last fault."""


class Moment:
    """A fault without its moment: `at` defines the phase in which it strikes.

    Args:
        cluster: the cluster to whose plan the fault is added.
        verb: the fault, from `tests.sim.faults`.
        whom: processes that it strikes; empty for the worker that triggers it.
        name: name of the worker that triggers it; empty for any worker with the rank.
        rank: rank of the worker that triggers it; None for any.
        back_after_s: delay after which the worker's process is started again; None for never.
    """

    def __init__(
        self,
        cluster: Cluster,
        verb: str,
        whom: tuple[str, ...],
        *,
        name: str,
        rank: int | None,
        back_after_s: float | None,
    ) -> None:
        self._cluster = cluster
        self._verb = verb
        self._whom = whom
        self._name = name
        self._rank = rank
        self._back_after_s = back_after_s

    def at(self, *, phase: Phase, step: int | None = None) -> Cluster:
        """Strike once a worker reaches this phase, in this step (counted from 1) or in any."""

        def strike(name: str) -> None:
            fault = faults.Fault(verb=self._verb, names=self._whom or (name,))
            self._cluster.strike(fault, f"{name} at {phase}")
            if self._back_after_s is not None:
                self._cluster.machines.start_soon(name, self._back_after_s)

        trigger = Trigger(phase=phase, name=self._name, rank=self._rank, step=step, strike=strike)
        self._cluster.machines.triggers.lay(trigger)
        return self._cluster


class Cluster:
    """One simulation.

    Args:
        seed: seed of all random choices.
        workers: number of workers that start at the beginning, as worker-1, worker-2, ...
        pace: durations and sizes.

    Attributes:
        struck: how often each fault has struck workers, by its verb.
    """

    def __init__(self, seed: int, *, workers: int, pace: Pace | None = None) -> None:
        self.seed = seed
        self.machines = Machines(seed, pace=pace if pace is not None else Pace())
        self._scheduler = self.machines.surroundings.scheduler
        self._plan: list[tuple[float, faults.Fault]] = []
        self._jobs: list[tuple[float, Job]] = []
        self._at_start = [f"worker-{number}" for number in range(1, workers + 1)]
        self.struck: Counter[str] = Counter()

    def serve(self, names: Sequence[str]) -> int:
        """Let these be parameter servers; returns how many of the first workers are none."""
        self.machines.surroundings.servers = frozenset(names)
        return len(set(self._at_start) - set(names))

    # --- planning --------------------------------------------------------------------------

    def submit(
        self,
        *,
        steps: int,
        buckets: Sequence[int] = (24,),
        rows: int = DATA.length,
        batch: int = DATA.batch,
        min_workers: int = 1,
        max_workers: int = 64,
        workers: int | str = 0,
        priority: int = 0,
        checkpoint_every: int = 0,
        evaluate_every: int = 0,
        strategy: Mapping[str, Any] | None = None,
        hands_on: bool = False,
        shares: str = "equal",
        drifts_at: int = 0,
        copies: int = 1,
        settle_s: float = 1.0,
        busy_s: float = 1800.0,
        at_s: float = 0.0,
        from_job: str = "",
        by_hand: Sequence[str] = (),
    ) -> Self:
        """Plan the submission of a job; jobs are called job-1, job-2, ...

        With `from_job` it begins with that job's weights.  `by_hand` are further processes, which
        train this job alone, and nobody else does.

        Its [strategy] table defines the number of steps of a round; without one it is 1.  With
        `hands_on`, leaving ranks pass their residuals on to those that stay.  From step
        `drifts_at` on, its replicas differ, as with state that is unknown to dtd.
        """
        if drifts_at:
            self.oracle.causes.flipped = True
        spec: dict[str, Any] = {
            "job": {"name": "job"},
            "elastic": {
                "min_workers": min_workers,
                "max_workers": max_workers,
                "workers": workers,
                "priority": priority,
                "by_hand": bool(by_hand),
                "shares": shares,
                "settle_s": settle_s,
                "stall_timeout_s": 5.0,
                "busy_timeout_s": busy_s,
                "warmup_timeout_s": 30.0,
            },
            "checkpoint": {"copies": copies},
            "model": {
                "steps": steps,
                "buckets": list(buckets),
                "rows": rows,
                "batch": batch,
                "checkpoint_every": checkpoint_every,
                "evaluate_every": evaluate_every,
                "drifts_at": drifts_at,
                "hands_on": int(hands_on),
            },
        }
        if strategy is not None:
            spec["strategy"] = dict(strategy)
        name = f"job-{len(self._jobs) + 1}"
        self._at_start += by_hand
        self.machines.surroundings.joined |= dict.fromkeys(by_hand, name)
        mode = "weights" if from_job else ""
        job = Job(id=name, spec=spec, from_job=from_job, from_mode=mode)
        self._jobs.append((at_s, job))
        return self

    def do(self, verb: str, *names: str, at_s: float) -> Self:
        """Plan a fault at a given time; `tests.sim.faults` defines the verbs."""
        self._plan.append((at_s, faults.Fault(verb=verb, names=names)))
        return self

    def when(
        self,
        verb: str,
        *whom: str,
        name: str = "",
        rank: int | None = None,
        back_after_s: float | None = None,
    ) -> Moment:
        """Plan a fault that strikes when a worker reaches the phase passed to `Moment.at`."""
        return Moment(self, verb, whom, name=name, rank=rank, back_after_s=back_after_s)

    def further_jobs(self) -> list[str]:
        """Ids of the jobs after the second one."""
        return [job.id for _, job in self._jobs[2:]]

    def planned(self, verb: str) -> bool:
        """Whether the plan contains a fault with this verb."""
        return any(fault.verb == verb for _, fault in self._plan)

    @overload
    def crash(self, name: str, *, at_s: float) -> Self: ...
    @overload
    def crash(
        self, name: str = "", *, rank: int | None = None, back_after_s: float | None = None
    ) -> Moment: ...
    def crash(
        self,
        name: str = "",
        *,
        at_s: float | None = None,
        rank: int | None = None,
        back_after_s: float | None = None,
    ) -> Self | Moment:
        """Kill a process as by SIGKILL; `name` may be the coordinator if a time is given."""
        if at_s is not None:
            return self.do("crash", name, at_s=at_s)
        return self.when("crash", name=name, rank=rank, back_after_s=back_after_s)

    def restart(self, name: str, *, at_s: float) -> Self:
        """Start a process that is not running, or has never run."""
        return self.do("restart", name, at_s=at_s)

    def bounce(self, name: str, *, at_s: float, down_s: float = 0.5) -> Self:
        """Kill a process and start it again."""
        return self.crash(name, at_s=at_s).restart(name, at_s=at_s + down_s)

    def hold(self, one: str, other: str, *, at_s: float, until_s: float) -> Self:
        """Stall all traffic between two processes for a while."""
        return self.do("hold", one, other, at_s=at_s).do("release", one, other, at_s=until_s)

    def partition_oneway(self, source: str, to: str, *, at_s: float, until_s: float) -> Self:
        """Stall the traffic from one process to another for a while."""
        self.do("partition_oneway", source, to, at_s=at_s)
        return self.do("release", source, to, at_s=until_s)

    def pause(self, name: str, *, at_s: float, until_s: float) -> Self:
        """Stop a worker for a while, as by SIGSTOP or by code that holds the GIL."""
        return self.do("pause", name, at_s=at_s).do("unpause", name, at_s=until_s)

    def stick(self, name: str, *, at_s: float) -> Self:
        """Make a training thread hang in the task's own code."""
        return self.do("stick", name, at_s=at_s)

    def corrupt(self, name: str, *, at_s: float) -> Self:
        """Flip bits in a worker's state."""
        return self.do("corrupt", name, at_s=at_s)

    def reset(self, one: str, other: str, *, at_s: float) -> Self:
        """Reset the connections between two processes."""
        return self.do("reset", one, other, at_s=at_s)

    def misfit(self, name: str) -> Self:
        """Give a worker data that differs from all others."""
        self.machines.datasets[name] = f"data of {name}"
        return self

    def failing(self, name: str, *, step: int) -> Self:
        """Make the job's own code raise an error on a worker in this step."""
        self.machines.failing[name] = step
        return self

    def unwelcome(self, name: str) -> Self:
        """Make the job's own code raise an error on all other workers in this one's presence."""
        self.machines.surroundings.unwelcome = name
        return self

    def broken(self, name: str, *, until_s: float) -> Self:
        """Make a worker's warm-up fail until this time, as if its host lacked something."""
        self.machines.broken[name] = until_s
        return self

    # --- running ---------------------------------------------------------------------------

    def run(self, *, patience_s: float = 1000.0) -> Self:
        """Run the simulation.

        Raises:
            Broken: a rule was broken, or a job had not ended `patience_s` after the last fault.
        """
        scheduler = self._scheduler
        self.machines.start(COORDINATOR)
        for at_s, job in self._jobs:
            scheduler.at(at_s, partial(self._submit, job))
        for name in self._at_start:
            self.machines.start_soon(name)
        for at_s, fault in self._plan:
            scheduler.at(at_s, partial(self.strike, fault))
        last_s = max((at_s for at_s, _ in self._plan), default=0.0)
        scheduler.run(until_s=last_s + patience_s, done=self._all_ended)
        for _ in range(LOOKS):
            if not self._all_ended() and self._heeds_the_status():
                scheduler.run(until_s=scheduler.now + patience_s, done=self._all_ended)
        if not self._all_ended():
            raise NothingEnds(f"nothing has ended by {scheduler.now:.1f} s: {self._explain()}")
        scheduler.run(until_s=scheduler.now + LINGER_S, done=lambda: False)
        return self

    def _heeds_the_status(self) -> bool:
        """Follow the status, as an operator would: resume a job in doubt, or wait on.

        A worker that does not say what others have said is given up.

        Returns:
            Whether it says one of these for each job that waits.
        """
        coordinator = self.machines.coordinator
        if coordinator is not None and self._gives_up(coordinator):
            return True
        waiting = {} if coordinator is None else coordinator.membership.explanations()
        for job, said in waiting.items():
            if "the coordinator's store has gone back" in said:
                self.strike(faults.Fault(verb="resume", names=(job,)))
            elif "as the job does in" not in said:
                return False
        return bool(waiting)

    def _gives_up(self, coordinator: CoordinatorProcess) -> bool:
        """Kill the workers for which the status gives that as the remedy; whether there are any."""
        pools = coordinator.membership
        said = " ".join(pools.explanations().values())
        named = set(re.findall(r"`dtdctl kill-worker (\S+)`", said))
        for name in sorted(named):
            self.strike(faults.Fault(verb="kill", names=(name, "KILL")))
        return bool(named)

    def strike(self, fault: faults.Fault, where: str = "") -> None:
        """Apply a fault now."""
        self.machines.surroundings.tell(f"* {fault}" + (f" ({where})" if where else ""))
        self.struck[fault.verb] += fault.names != (COORDINATOR,)
        faults.apply(fault, self.machines)

    def _submit(self, job: Job) -> None:
        """Submit a job repeatedly until the coordinator knows it, as an operator would."""
        if self.machines.store.knows(job.id):
            return
        if not self.machines.has_heard_of(job.id):
            self.machines.ask(Submitted(job=copy.deepcopy(job)))
        again_s = max(SUBMIT_AGAIN_S, 3 * self.machines.surroundings.pace.store_s[1])
        self._scheduler.after(again_s, lambda: self._submit(job))

    # --- looking ---------------------------------------------------------------------------

    @property
    def oracle(self) -> Oracle:
        """The oracle, with its counters."""
        return self.machines.oracle

    @property
    def story(self) -> list[str]:
        """The events of the simulation, one line each."""
        return self.machines.surroundings.story

    @property
    def now_s(self) -> float:
        """Virtual time in seconds."""
        return self._scheduler.now

    def job(self, number: int = 1) -> Job:
        """A job that has ended."""
        return self.oracle.ended_jobs[f"job-{number}"]

    def workers_state(self) -> dict[str, str]:
        """State of every running worker, by name."""
        return {name: one.core.state.value for name, one in self.machines.running().items()}

    def lost_steps(self, number: int = 1) -> int:
        """Number of committed steps that were lost and had to be repeated."""
        return self.job(number).steps_lost

    def succeeded(self, number: int = 1) -> bool:
        """Whether the job has completed all its steps."""
        return self.job(number).state is JobState.DONE

    def rightly_waits(self) -> bool:
        """Whether the first job that has not ended has nobody left that could continue."""
        left = [job for _, job in self._jobs if job.id not in self.oracle.ended_jobs]
        return rightly_waits(self.machines, left[0])

    def _all_ended(self) -> bool:
        return len(self.oracle.ended_jobs) == len(self._jobs)

    def _explain(self) -> str:
        coordinator = self.machines.coordinator
        says: object = "it is away"
        if coordinator is not None:
            pools = coordinator.membership
            says = {**pools.explanations(), "queue": pools.explain_queue()}
        workers = ", ".join(f"{name} is {state}" for name, state in self.workers_state().items())
        return f"the coordinator says {says!r}; {workers}"
