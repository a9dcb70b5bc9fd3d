"""One chaos run: tends the daemons, reads their logs, and heals faults when they are due.

Everything happens in the calling thread.  A caller that waits for something calls `until`, and the
run continues meanwhile.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.wire import messages as m
from scripts.chaosrun.judge import Injection, Sample
from scripts.cluster.log_timeline import LogTimeline, phase_at
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import COORDINATOR
from scripts.cluster.processes import proc_bytes

TURN_S: Final = 0.004
SAMPLE_EVERY_S: Final = 2.0
SETTLED_COMMITS: Final = 3
TAKES_EFFECT_S: Final = 60.0
SETTLE_S: Final = 120.0
STARTS_IN_S: Final = 8.0
"""Processor time of a worker's start; all start at once."""
ASK_AGAIN_S: Final = 2.0


PAGE_BYTES: Final = 4096


def look(name: str, pid: int, age_s: float) -> Sample:
    """Sample a process; raises OSError or IndexError when it is gone."""
    proc = Path(f"/proc/{pid}")
    return Sample(
        name=name,
        age_s=age_s,
        resident_bytes=int((proc / "statm").read_text().split()[1]) * PAGE_BYTES,
        descriptors=sum(1 for _ in (proc / "fd").iterdir()),
        threads=sum(1 for _ in (proc / "task").iterdir()),
    )


class Harness:
    """A run of daemons that are not started yet; a `spare` worker may join later, "" is none.

    Attributes:
        chance: the source of all that is random.
        injections: the faults so far, oldest first.
        samples: the daemons' memory, descriptors and threads.
        jobs: ids of all jobs submitted.
        job_wanted: whether to submit a job whenever there is none.
        away_s: outage of the coordinator; 0 is random.
        settle_s: patience until all workers are there and train.
    """

    def __init__(
        self,
        cluster: NetworkedCluster,
        *,
        workers: list[str],
        spare: str,
        spec: Mapping[str, Any],
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        self.workers = workers
        self.spare = spare
        self.spec = spec
        self.chance = random.Random(seed)  # noqa: S311 - not a secret
        self.say = say
        self.timeline = LogTimeline()
        self.injections: list[Injection] = []
        self.samples: list[Sample] = []
        self._works_since: dict[tuple[str, float], float] = {}
        self.jobs: list[str] = []
        self.commands = Path(str(spec["task"]["commands"]))
        self.job_wanted = False
        self.away_s = 0.0
        processors = len(os.sched_getaffinity(0))
        self.settle_s = SETTLE_S + STARTS_IN_S * len(workers) / processors
        self.tail = cluster.log_tail()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._sample_at_s = 0.0

    # --- time --------------------------------------------------------------------------------

    def turn(self) -> None:
        """Take the actions that are due."""
        self.cluster.tend()
        for line in self.tail.poll():
            self.timeline.see(line)
        now_s = time.time()
        self._note_who_is_back(now_s)
        while self._due and self._due[0][0] <= now_s:
            heapq.heappop(self._due)[2]()
        if now_s >= self._sample_at_s:
            self._sample_at_s = now_s + SAMPLE_EVERY_S
            self._sample(now_s)
        if self.job_wanted and (not self.jobs or self.jobs[-1] in self.timeline.jobs_ended):
            self._submit()

    def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Run until a condition holds; False when it took too long."""
        deadline_s = time.time() + timeout_s
        while True:
            self.turn()
            if condition():
                return True
            if time.time() >= deadline_s:
                return False
            time.sleep(TURN_S)

    def go_on(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def later(self, after_s: float, action: Callable[[], None]) -> None:
        """Do something after so many seconds, between other actions."""
        heapq.heappush(self._due, (time.time() + after_s, next(self._numbers), action))

    # --- state -------------------------------------------------------------------------------

    def start(self) -> bool:
        """Start all daemons; whether all workers are registered in time."""
        for name in (COORDINATOR, *self.workers):
            self.cluster.start(name)
        return self.until(lambda: self._registered() >= set(self.workers), self.settle_s)

    def _registered(self) -> set[str]:
        return {
            str(line.fields["worker"])
            for line in self.timeline.decisions
            if line.event == "worker_registered"
        }

    def under_fault(self, name: str) -> bool:
        """Whether something that was done to it is not over yet."""
        now_s = time.time()
        return any(name in one.victims and now_s < one.back_s for one in self.injections)

    def fit(self) -> list[str]:
        """Workers that train and have nothing wrong with them."""
        return [name for name in self.timeline.training() if not self.under_fault(name)]

    def settled(self, count: int) -> bool:
        """Whether so many workers have trained together for a few steps."""
        timeline = self.timeline
        if len(self.fit()) < count or len(timeline.training()) < len(timeline.roster):
            return False
        recent = timeline.commits[-SETTLED_COMMITS * len(timeline.roster) :]
        return all(commit.generation == timeline.generation for commit in recent)

    def whole(self) -> bool:
        """Whether all workers, and the spare one if it runs, have trained together for a while."""
        joined = bool(self.spare) and self.cluster.runs(self.spare)
        return self.settled(len(self.workers) + joined)

    # --- faults ------------------------------------------------------------------------------

    def begin(self, kind: str, *victims: str, note: str = "", at_s: float = 0.0) -> Injection:
        """Write a fault down, at the moment at which it is injected."""
        at_s = at_s or time.time()
        injection = Injection(
            kind=kind,
            victims=victims,
            at_s=at_s,
            generation=self.timeline.newest_with(victims, at_s),
            phase=self._phase(victims[0], at_s),
            note=note,
        )
        if COORDINATOR in victims:
            injection.generation = self.timeline.generation
        self.injections.append(injection)
        return injection

    def _phase(self, victim: str, at_s: float) -> str:
        if victim == COORDINATOR:
            return ""
        return phase_at(
            self.timeline.moments.get(victim),
            at_s,
            eval_every=int(self.spec["train"]["eval_every"]),
            checkpoint_every=int(self.spec["checkpoint"]["every_steps"]),
        )

    def _note_who_is_back(self, now_s: float) -> None:
        for one in self.injections:
            if math.isinf(one.back_s) and now_s >= one.over_s and self._is_back(one):
                one.back_s = now_s

    def _is_back(self, injection: Injection) -> bool:
        """The coordinator listens again if it was a victim, and the workers commit again."""
        workers = [name for name in injection.victims if name != COORDINATOR]
        if len(workers) < len(injection.victims):
            listening = (x for x in self.timeline.decisions if x.event == "coordinator_listening")
            if not any(line.at_s >= injection.at_s for line in listening):
                return False
        training = self.timeline.training()
        lasts = [self.timeline.last_commit(name) for name in workers if name in training]
        return len(lasts) == len(workers) and all(
            last is not None and last.at_s > injection.over_s for last in lasts
        )

    def strike(self, kind: str, *victims: str) -> Injection:
        """SIGKILL daemons that are started again at once: the whole fault."""
        injection = self.begin(kind, *victims)
        for name in victims:
            self.kill(name, injection)
        injection.over_s = injection.at_s
        return injection

    def kill(self, name: str, injection: Injection) -> None:
        injection.pids.add(self.cluster.pid(name))
        self.cluster.signal(name, signal.SIGKILL)

    def heal(
        self, injection: Injection, bounds_s: tuple[float, float], undo: Callable[[], None]
    ) -> None:
        """Undo a fault after a while, as long as that is by chance."""

        def heal() -> None:
            undo()
            injection.over_s = time.time()

        self.later(self.chance.uniform(*bounds_s), heal)

    # --- jobs --------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Submit the job; a fault may prevent that, but nothing has happened before the first."""
        try:
            answer = self.cluster.request(m.SubmitJob(spec=dict(self.spec)))
        except CoordinatorUnreachable:
            return
        except RequestRefused:
            if not self.jobs:
                raise
            return
        self.jobs.append(str(answer["job"]))
        self.timeline.rosters.clear()
        self.say(f"job {answer['job']} submitted")

    def finish(self, timeout_s: float) -> list[dict[str, Any]]:
        """End the last job and return the coordinator's records of all of this run's."""
        self.job_wanted = False
        deadline_s = time.time() + timeout_s
        while self.jobs and self.jobs[-1] not in self.timeline.jobs_ended:
            self.cluster.try_ask(m.CancelJob(job=self.jobs[-1]))
            self.until(lambda: self.jobs[-1] in self.timeline.jobs_ended, ASK_AGAIN_S)
            if time.time() >= deadline_s:
                break
        answer = self.cluster.try_ask(m.ListJobs()) or {"jobs": []}
        return [job for job in answer["jobs"] if job["id"] in self.jobs]

    def close(self) -> None:
        self.cluster.stop()
        for line in self.tail.poll():
            self.timeline.see(line)
        self.tail.close()

    def memory(self) -> dict[str, int]:
        """The coordinator's peak and all workers' sum in bytes; shared pages count once."""
        found = {"coordinator": 0, "workers": 0}
        for name in self.cluster.names:
            with contextlib.suppress(OSError, StopIteration):  # it does not run, or has just ended
                pid = self.cluster.pid(name) if self.cluster.runs(name) else 0
                if name == COORDINATOR:
                    found["coordinator"] = proc_bytes(pid, "VmHWM")
                else:
                    found["workers"] += proc_bytes(pid, "Pss", file="smaps_rollup")
        return found

    def _sample(self, now_s: float) -> None:
        started_s = {name: at_s for name, _pid, at_s in self.cluster.starts}
        for name, since_s in started_s.items():
            if self.cluster.runs(name):
                works_since_s = self._works_since_s(name, since_s, now_s)
                with contextlib.suppress(OSError, IndexError):  # it has just ended
                    age_s = now_s - works_since_s
                    self.samples.append(look(name, self.cluster.pid(name), age_s))

    def _works_since_s(self, name: str, started_s: float, now_s: float) -> float:
        """The time of the first commit after a process has started: a worker's own, or any."""
        process = (name, started_s)
        if process not in self._works_since:
            commits = self.timeline.commits
            own = (one.at_s for one in commits if name in (COORDINATOR, one.worker))
            first_s = next((at_s for at_s in own if at_s > started_s), None)
            if first_s is None:
                return now_s
            self._works_since[process] = first_s
        return self._works_since[process]
