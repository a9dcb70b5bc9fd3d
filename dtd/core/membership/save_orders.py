"""Who was asked to write the last state of a job, who could not, and when that one is asked again.

Pure bookkeeping; whom to ask is decided in `membership.saving`.  Times are the coordinator's clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
WRITING_S: Final = 60.0
"""Who has not answered for so long may write on, but somebody else is asked as well."""


@dataclass(slots=True)
class Failure:
    """A worker could not write: why, how often in a row, and when it is asked again."""

    reason: str
    times: int
    retry_at: float


@dataclass(slots=True, kw_only=True)
class SaveOrders:
    """The orders of one job's end.

    Attributes:
        key: of the state that is to be written.
        began_at: when the job was to end.
        hopes_until: until then somebody may come back with the state.
        asked: when each worker was asked that has not answered.
        failures: of those who could not write, by name.
        hurried: the operator does not want to wait for it.
    """

    key: tuple[int, int]
    began_at: float
    hopes_until: float
    asked: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    hurried: bool = False

    def about(self, key: tuple[int, int]) -> None:
        """Somebody has come who holds another state: what was ordered before is void."""
        if key != self.key:
            self.key = key
            self.asked.clear()

    def keep(self, names: Collection[str]) -> None:
        """Only these are there and hold the state."""
        self.asked = {name: at for name, at in self.asked.items() if name in names}

    def failed(self, name: str, reason: str, now: float) -> None:
        """A worker could not write."""
        self.asked.pop(name, None)
        times = self.failures[name].times + 1 if name in self.failures else 1
        pause_s = min(FIRST_RETRY_S * 2 ** min(times - 1, 16), MAX_RETRY_S)
        self.failures[name] = Failure(reason, times, now + pause_s)

    def answered(self, name: str) -> None:
        """A worker has written something."""
        self.asked.pop(name, None)
        self.failures.pop(name, None)

    def may_be_asked(self, name: str, now: float) -> bool:
        """It does not write at the moment, and has had its pause if it could not."""
        failure = self.failures.get(name)
        return name not in self.asked and (failure is None or now >= failure.retry_at)

    def writing(self, now: float) -> int:
        """How many are at it and not overdue."""
        return sum(now - at < WRITING_S for at in self.asked.values())

    def next_deadline(self, now: float) -> float | None:
        """When one is overdue, or may be asked again."""
        times = [at + WRITING_S for at in self.asked.values()]
        times += [failure.retry_at for failure in self.failures.values()]
        times.append(self.hopes_until)
        return min((moment for moment in times if moment > now), default=None)

    def why(self) -> str:
        """What keeps them from writing, in words; empty while nothing does."""
        return "; ".join(
            f"{name} cannot write: {failure.reason}"
            for name, failure in sorted(self.failures.items())
        )
