"""The course of the job that runs: its generation, its setbacks, its deadlines, its last write.

None of this is stored: a coordinator that starts anew begins with the job's record and with what
workers report.  No decisions here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from dtd.cluster.records import Divergence, Worker
from dtd.cluster.transitions import GenerationState
from dtd.wire import messages as m


@dataclass(slots=True, kw_only=True)
class Decision:
    """A generation that is decided, and not announced before it is stored.

    Attributes:
        members: workers in rank order.
        holds: for each member, whether it has the generation's starting state.
        lost: number of committed steps that are lost.
        redone: whether a step that had begun is repeated.
        incomplete: which shards of a newer state are missing; empty if there is no such state.
        before: previous values of the fields of the job's record that the decision changed.
        failure: why it could not be stored; empty while an attempt is in progress.
        again_at: when storing is attempted again.
    """

    members: list[Worker]
    holds: list[bool]
    lost: int
    redone: bool
    before: dict[str, Any]
    incomplete: str = ""
    failure: str = ""
    again_at: float | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """The generation in which the job runs, or the previous one while there is none.

    Attributes:
        generation: its number, the newest that was assigned.
        highest: the highest number known, of any job or named by a worker; new ones exceed it.
        phase: its state.
        decision: the next generation, while it is being stored.
        roster: names in rank order; empty when no generation is forming, running or ending.
        has_run: whether it has run, or was running when this coordinator started.
        advanced_at: when its committed step was last seen to advance.
        lost_member: whether a worker has died or hung in it since it last advanced.
        brought: members that brought its starting state; empty if unknown.
        joined: members that join others which have trained without them; empty if unknown.
        differed: the reports of members that have seen its states differ.
        said_ended: for each member, the names of those that report that its process has ended.
        hop_bytes: what a link carries in the time of a hop, by which its buckets travel whole or in
            segments; 0: links have not shown it.
    """

    generation: int = 0
    highest: int = 0
    phase: GenerationState = GenerationState.NONE
    decision: Decision | None = None
    roster: list[str] = field(default_factory=list)
    has_run: bool = False
    advanced_at: float | None = None
    lost_member: bool = False
    brought: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    differed: list[m.Frozen] = field(default_factory=list)
    said_ended: dict[str, set[str]] = field(default_factory=dict)
    hop_bytes: int = 0

    def begin(self, brought: Iterable[str] = (), joined: Iterable[str] = ()) -> None:
        """Discard the reports of the previous generation when one begins or is adopted."""
        self.brought, self.joined = frozenset(brought), frozenset(joined)
        self.differed.clear()
        self.said_ended.clear()


@dataclass(slots=True, kw_only=True)
class Setbacks:
    """Repeated failures that prevent the job's progress, counted over generations.

    Attributes:
        no_progress_generations: consecutive generations that committed no step.
        brief_generations: consecutive generations that broke before `state.FRUITFUL_STEPS` steps.
        last_cause: why the last generation ended.
        crashed_workers: workers that died or hung in generations that ran, since the job last got
            beyond `crash_step`.
        last_ends: how their processes ended, as far as the processes that replaced them know.
        crash_generations: consecutive generations that ran, lost such a worker and did not get
            beyond `crash_step`.
        crash_step: the highest number of committed steps at which such a worker was lost.
        dissenters: processes (name, incarnation) whose memory differs from the majority's.
        copies_differed: when a member differed from those from which it had just copied the state.
    """

    no_progress_generations: int = 0
    brief_generations: int = 0
    last_cause: str = ""
    crashed_workers: list[str] = field(default_factory=list)
    last_ends: dict[str, str] = field(default_factory=dict)
    crash_generations: int = 0
    crash_step: int = 0
    dissenters: set[tuple[str, int]] = field(default_factory=set)
    copies_differed: list[Divergence] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class WaitingTimes:
    """Deadlines and conditions of the next generation.

    Attributes:
        settle_by: when the first generation may form without waiting for more workers.
        must_settle: whether the job has formed no generation since it was activated.
        newer_since: since when an absent worker may hold a newer state than any worker present.
        resumed: whether the operator has decided not to wait for such workers.
        form_at: the earliest time for the next generation, after several that made no progress.
        enough_since: since when enough workers are ready, while others warm up.
        reason: what the next generation waits for, in words.
    """

    settle_by: float | None = None
    must_settle: bool = True
    newer_since: float | None = None
    resumed: bool = False
    form_at: float | None = None
    enough_since: float | None = None
    reason: str = ""

    def slept(self, gap_s: float) -> None:
        """Postpone deadlines: arriving workers could not be seen for `gap_s`."""
        if self.settle_by is not None:
            self.settle_by += gap_s
        if self.newer_since is not None:
            self.newer_since += gap_s
        if self.enough_since is not None:
            self.enough_since += gap_s


@dataclass(slots=True, kw_only=True)
class EndingTimes:
    """Deadlines of a generation that is ending, and the loss that the job recovers from.

    Attributes:
        freeze_by: when members that have not reported FROZEN are considered lost.
        stop_by: when the generation of a job that is to end is aborted.
        recovery: the loss that the job recovers from, until it commits again.
    """

    freeze_by: float | None = None
    stop_by: float | None = None
    recovery: Recovery | None = None

    def slept(self, gap_s: float) -> None:
        """Postpone deadlines: leaving members could not be seen for `gap_s`."""
        if self.freeze_by is not None:
            self.freeze_by += gap_s
        if self.stop_by is not None:
            self.stop_by += gap_s


@dataclass(slots=True, kw_only=True)
class Recovery:
    """The interval from the end of one generation to the first committed step of a later one.

    Attributes:
        cause: why the generation ended, as text.
        worker: the worker concerned; empty if the cause is not a single worker.
        began_at: when the coordinator learned of the cause.
        detected_after_s: silence before that, at most the time since the cause.
        at_boundary: whether the generation ended between two steps.
        running: whether it had begun to train.
        by_reset: all that is known is a link that was reset, which may be an effect of the cause.
        steps_redone: number of steps that were begun and abandoned.
        steps_lost: number of committed steps that no worker holds any more.
    """

    cause: str
    worker: str
    began_at: float
    detected_after_s: float
    at_boundary: bool
    running: bool
    by_reset: bool = False
    steps_redone: int = 0
    steps_lost: int = 0

    def again(self, *, at_boundary: bool, running: bool) -> None:
        """Record that another generation has ended before the job committed a step."""
        self.at_boundary, self.running = at_boundary, running

    def breaks(self, cause: str, now: float, *, worker: str, silent_s: float) -> None:
        """Record that a generation that was to end at a step boundary broke before it."""
        if self.at_boundary:
            self.cause, self.worker, self.began_at = cause, worker, now
            self.detected_after_s, self.at_boundary = silent_s, False

    def details(self, now: float) -> dict[str, Any]:
        """The figures of the recovery, taken when the job has committed a step again."""
        return {
            "cause": self.cause,
            "detected_after_s": round(self.detected_after_s, 3),
            "recovered_after_s": round(now - self.began_at, 3),
            "steps_redone": self.steps_redone,
            "steps_lost": self.steps_lost,
        }


FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
MOST_CONTRADICTED: Final = 3
"""After so many writes of a state that is not the one that the ranks hold, its memory is faulty."""
WRITING_S: Final = 60.0
"""After this time without an answer, another worker is asked as well."""


@dataclass(slots=True)
class Failure:
    """A worker's failed writes: the reason, how many in a row, and when it is asked again."""

    reason: str
    times: int
    retry_at: float


@dataclass(slots=True, kw_only=True)
class SaveOrders:
    """Requests to write the last state of a job: pending ones, failed ones, and times of retries.

    Attributes:
        key: (generation, step) of the state to be written.
        began_at: when the job began to end.
        hopes_until: until when an absent worker is expected to reconnect with the state.
        asked: for each worker with a pending request, when it was asked.
        failures: failures of workers that could not write, by name.
        contradicted: how often a worker has written another state than the ranks hold, by name.
        hurried: whether the operator has decided not to wait for the write.
    """

    key: tuple[int, int]
    began_at: float
    hopes_until: float
    asked: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    contradicted: dict[str, int] = field(default_factory=dict)
    hurried: bool = False

    def about(self, key: tuple[int, int]) -> None:
        """Set the state to be written; if it changes, pending requests become void."""
        if key != self.key:
            self.key = key
            self.asked.clear()

    def keep(self, names: Collection[str]) -> None:
        """Drop requests to all workers but these, which are present and hold the state."""
        self.asked = {name: at for name, at in self.asked.items() if name in names}

    def failed(self, name: str, reason: str, now: float) -> None:
        """Record that a worker could not write, and schedule the retry."""
        self.asked.pop(name, None)
        times = self.failures[name].times + 1 if name in self.failures else 1
        pause_s = min(FIRST_RETRY_S * 2 ** min(times - 1, 16), MAX_RETRY_S)
        self.failures[name] = Failure(reason, times, now + pause_s)

    def contradicts(self, name: str, now: float) -> None:
        """Record that a worker has written a state that is not the one that the ranks hold."""
        self.contradicted[name] = self.contradicted.get(name, 0) + 1
        self.failed(name, "what it has written is not what the ranks hold", now)

    def faulty(self) -> list[str]:
        """The workers that write another state again and again: it is not a fault of a disk."""
        return [name for name, times in self.contradicted.items() if times >= MOST_CONTRADICTED]

    def answered(self, name: str) -> None:
        """Record that a worker has written a state."""
        self.asked.pop(name, None)
        self.failures.pop(name, None)

    def slept(self, gap_s: float) -> None:
        """Postpone deadlines: no answer could be read for `gap_s`."""
        self.began_at += gap_s
        self.hopes_until += gap_s
        self.asked = {name: at + gap_s for name, at in self.asked.items()}

    def may_be_asked(self, name: str, now: float) -> bool:
        """Whether a worker is not writing now and its pause after a failure, if any, is over."""
        failure = self.failures.get(name)
        return name not in self.asked and (failure is None or now >= failure.retry_at)

    def writing(self, now: float) -> int:
        """Number of workers that are writing and not overdue."""
        return len(self.writers(now))

    def writers(self, now: float) -> list[str]:
        """Names of the workers that are writing and not overdue."""
        return [name for name, at in self.asked.items() if now - at < WRITING_S]

    def next_deadline(self, now: float) -> float | None:
        """Return when the next request becomes overdue, or a retry or `hopes_until` is due."""
        times = [at + WRITING_S for at in self.asked.values()]
        times += [failure.retry_at for failure in self.failures.values()]
        times.append(self.hopes_until)
        return min((moment for moment in times if moment > now), default=None)

    def why(self) -> str:
        """Why workers cannot write, as a message for the operator; empty if none has failed."""
        return "; ".join(
            f"{name} cannot write: {failure.reason}"
            for name, failure in sorted(self.failures.items())
        )
