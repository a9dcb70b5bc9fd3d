"""Requests to write a job's last state: pending ones, failed ones, and the times of retries.

Pure bookkeeping; `dtd.cluster.saving` decides which workers to ask.  Times are on the coordinator's
clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

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
    """The requests at the end of one job.

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
