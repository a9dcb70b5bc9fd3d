"""The machines of a simulated cluster: which processes run, and what outlives them.

What faults act on (`tests.sim.faults`).  Plans and their course are the business of
`tests.sim.cluster`.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dtd.core.membership.events import Event, ResumeRequested
from dtd.core.membership.transitions import GenerationState
from dtd.errors import RequestRefused
from tests.sim.coordinator import CoordinatorProcess
from tests.sim.lineage import Memory
from tests.sim.network import Network
from tests.sim.oracle import Oracle
from tests.sim.replica import Disk
from tests.sim.scheduler import Scheduler
from tests.sim.store import SimulatedStore, in_memory
from tests.sim.surroundings import COORDINATOR, Pace, Surroundings
from tests.sim.worker import WorkerProcess


class Machines:
    """All processes, disks, and the coordinator's store.

    Args:
        seed: where all chance comes from.
        pace: how long things take.
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
        self.ambushes = self.surroundings.ambushes
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
        """Start a process; nothing when it runs."""
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
        """Start a process as a service manager does."""
        delay_s = after_s or self.surroundings.draw(self.surroundings.pace.start_s)
        self.surroundings.scheduler.after(delay_s, lambda: self.start(name))

    def stop(self, name: str) -> None:
        """Kill a process at once; nothing when it does not run."""
        if name == COORDINATOR:
            if self.coordinator is not None:
                self.coordinator.crash()
                self.coordinator = None
            return
        process = self.process(name)
        if process is not None:
            process.crash()

    def process(self, name: str) -> WorkerProcess | None:
        """A worker's process, if it runs."""
        process = self._processes.get(name)
        return process if process is not None and process.alive else None

    def running(self) -> dict[str, WorkerProcess]:
        """All workers' processes that run, by name."""
        return {name: one for name, one in sorted(self._processes.items()) if one.alive}

    def disk(self, name: str) -> Disk:
        """A worker's disk; it is there before the worker is."""
        if name not in self._disks:
            self._disks[name] = Disk(Path(self._disk_root.name) / name)
        return self._disks[name]

    def back_up(self) -> None:
        """Keep a copy of the coordinator's store as it is now."""
        self.store.back_up()

    def go_back(self) -> None:
        """The coordinator dies and its store is the copy, with a new epoch like a restored one.

        Nothing happens when the copy lacks a job, or has one that has ended since: then it would
        be another story.
        """
        if not self.store.has_backup_of(set(self.oracle.ended_jobs)):
            return
        self.oracle.struck(self.running())  # whoever trains is called back
        self.stop(COORDINATOR)
        self.store.go_back()

    def has_heard_of(self, job: str) -> bool:
        """Whether the coordinator that runs lists a job."""
        if self.coordinator is None:
            return False
        books = self.coordinator.membership.books
        known = [*([books.job] if books.job is not None else []), *books.queue]
        return any(one.id == job for one in known)

    def waits_in_vain(self, job: str) -> bool:
        """Whether the job waits, and every process that runs is here and has said what it holds."""
        if self.coordinator is None:
            return False
        books = self.coordinator.membership.books
        waits = books.run.phase is GenerationState.NONE
        if books.job is None or books.job.id != job or not waits or books.warming_since:
            return False
        here = {(one.name, one.incarnation) for one in books.available()}
        return all((name, one.incarnation) in here for name, one in self.running().items())

    def ask(self, event: Event) -> None:
        """Hand an operator's request to the coordinator, if it can be reached."""
        if self.coordinator is None:
            self.surroundings.tell("nobody answers the operator")
            return
        try:
            self.coordinator.ask(event)
            if isinstance(event, ResumeRequested):
                self.oracle.resumed(event.job)
        except RequestRefused as error:
            self.surroundings.tell(f"refused: {error}")

    # --- what the oracle looks at ----------------------------------------------------------

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
        states = [disk.newest(job) for disk in self._disks.values()]
        return max((state.step for state in states if state), default=-1)
