"""The machines of a simulated cluster: the running processes, and the data that outlives them.

Faults act on them (`tests.sim.faults`); `tests.sim.cluster` plans and runs the simulation.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from dtd.cluster.events import Event, ResumeRequested
from dtd.cluster.transitions import GONE, GenerationState
from dtd.engine.shards import united
from dtd.errors import RequestRefused
from tests.sim.coordinator import CoordinatorProcess
from tests.sim.lineage import Memory
from tests.sim.network import Network
from tests.sim.oracle import Oracle
from tests.sim.replica import Disk, State
from tests.sim.scheduler import Scheduler
from tests.sim.store import SimulatedStore, in_memory
from tests.sim.surroundings import COORDINATOR, Pace, Surroundings
from tests.sim.worker import WorkerProcess


def _is_whole(states: Iterable[State], state: State) -> bool:
    """Whether these parts of a state are all of it."""
    return united(one.part for one in states if one.key == state.key).is_whole


class Machines:
    """All processes, disks, and the coordinator's store.

    Args:
        seed: seed of all random choices.
        pace: durations and sizes.
    """

    def __init__(self, seed: int, *, pace: Pace) -> None:
        scheduler, rng = Scheduler(), random.Random(seed)
        lifeline_rng = random.Random(f"lifelines {seed}")
        self.network = Network(scheduler, rng, lifeline_rng)
        self.oracle = Oracle(remembered=self._remembered, saved=self._saved)
        self.surroundings = Surroundings(
            scheduler=scheduler,
            network=self.network,
            rng=rng,
            lifeline_rng=lifeline_rng,
            oracle=self.oracle,
            pace=pace,
            restarted=self.start_soon,
        )
        self.triggers = self.surroundings.triggers
        self.store = SimulatedStore()
        self.coordinator: CoordinatorProcess | None = None
        self.datasets: dict[str, str] = {}
        self.failing: dict[str, int] = {}
        self.broken: dict[str, float] = {}
        self.incarnations = 0
        self._processes: dict[str, WorkerProcess] = {}
        self._disks: dict[str, Disk] = {}
        self._disk_root = tempfile.TemporaryDirectory(prefix="dtd-sim-", dir=in_memory())

    # --- processes -------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process; does nothing if it is running."""
        if name == COORDINATOR:
            if self.coordinator is None:
                self.coordinator = CoordinatorProcess(self.surroundings, self.store)
        elif self.process(name) is None:
            self.incarnations += 1
            before = self._processes.get(name)
            self._processes[name] = WorkerProcess(
                self.surroundings,
                name,
                incarnation=self.incarnations,
                disk=self.disk(name),
                dataset=self.datasets.get(name, "data"),
                fails_at_step=self.failing.get(name),
                pid=before.pid if before and before.replaces_itself else 1000 + self.incarnations,
                broken_until_s=self.broken.get(name, 0.0),
            )

    def start_soon(self, name: str, after_s: float = 0.0) -> None:
        """Start a process after a delay, as a service manager does."""
        delay_s = after_s or self.surroundings.draw(self.surroundings.pace.start_s)
        self.surroundings.scheduler.after(delay_s, lambda: self.start(name))

    def stop(self, name: str) -> None:
        """Kill a process immediately; does nothing if it is not running."""
        if name == COORDINATOR:
            if self.coordinator is not None:
                self.coordinator.crash()
                self.coordinator = None
            return
        process = self.process(name)
        if process is not None:
            process.crash()

    def process(self, name: str) -> WorkerProcess | None:
        """A worker's process, if it is running."""
        process = self._processes.get(name)
        return process if process is not None and process.alive else None

    def running(self) -> dict[str, WorkerProcess]:
        """All running worker processes, by name."""
        return {name: one for name, one in sorted(self._processes.items()) if one.alive}

    def disk(self, name: str) -> Disk:
        """A worker's disk, created on first use; it exists independently of the process."""
        if name not in self._disks:
            self._disks[name] = Disk(Path(self._disk_root.name) / name)
        return self._disks[name]

    def back_up(self) -> None:
        """Take a backup of the coordinator's store."""
        self.store.back_up()
        self.oracle.backed_up()

    def go_back(self) -> None:
        """Kill the coordinator and restore its store from the backup, with a new epoch.

        Does nothing if the backup lacks a job, or contains one that has ended since, because that
        would be a different scenario.
        """
        if not self.store.has_backup_of(set(self.oracle.ended_jobs)):
            return
        self.oracle.causes.struck(
            self.running()
        )  # training workers are told to leave their generation
        self.stop(COORDINATOR)
        self.oracle.went_back()
        self.store.go_back()

    def has_heard_of(self, job: str) -> bool:
        """Whether the running coordinator has a job."""
        if self.coordinator is None:
            return False
        pools = self.coordinator.membership
        known = [*pools.active(), *pools.home.queue]
        return any(one.id == job for one in known)

    def waits_in_vain(self, job: str) -> bool:
        """Whether the job waits though every running worker is available to the coordinator."""
        if self.coordinator is None:
            return False
        cluster = self.coordinator.membership.cluster_with(job)
        waits = cluster.run.phase is GenerationState.NONE
        if cluster.job is None or cluster.job.id != job or not waits or cluster.warming_since:
            return False
        here = {(one.name, one.incarnation) for one in cluster.available()}
        pools = self.coordinator.membership.clusters()
        others = (one for pool in pools if pool is not cluster for one in pool.workers.values())
        here |= {(one.name, one.incarnation) for one in others if one.state not in GONE}
        return all((name, one.incarnation) in here for name, one in self.running().items())

    def trains_unseen(self) -> bool:
        """Whether a process of which the coordinator knows nothing may commit steps."""
        if self.coordinator is None:
            return False
        pools = self.coordinator.membership.clusters()
        workers = [one for pool in pools for one in pool.workers.values() if one.state not in GONE]
        seen = {(one.name, one.incarnation) for one in workers}
        return any(
            one.is_in_ring and (name, one.incarnation) not in seen
            for name, one in self.running().items()
        )

    def ask(self, event: Event) -> None:
        """Pass an operator's request to the coordinator, if it is running."""
        if self.coordinator is None:
            self.surroundings.tell("nobody answers the operator")
            return
        resumes = isinstance(event, ResumeRequested) and self.oracle.resumes(event.job)
        try:
            self.coordinator.ask(event)
        except RequestRefused as error:
            self.surroundings.tell(f"refused: {error}")
            if isinstance(event, ResumeRequested) and resumes:
                self.oracle.does_not_resume(event.job)

    # --- views for the oracle --------------------------------------------------------------

    def _remembered(self, job: str) -> Iterator[Memory]:
        for name, process in self.running().items():
            session = process.trainer.session if process.trainer is not None else None
            if session is not None and session.job == job and session.state is not None:
                yield Memory(
                    name=name,
                    incarnation=process.incarnation,
                    state=session.state,
                    prepared=session.prepared,
                )

    def _saved(self, job: str) -> int:
        states = [state for disk in self._disks.values() for state in disk.states(job)]
        return max(
            (one.step for one in states if _is_whole(states, one)),
            default=-1,
        )
