"""What the job recovers from: told in one record when it commits again.

What happened, to whom, how long it took to notice, how long until the next committed step, and what
it cost.  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class Recovery:
    """From the end of one generation to the first step of a later one.

    Attributes:
        cause: in words.
        worker: to whom it happened; empty when it was nobody in particular.
        began_at: when the coordinator learned of it.
        detected_after_s: silence before that, at most what has passed since the cause.
        at_boundary: the generation ended between two steps.
        running: it had begun to train.
        steps_redone: steps begun and given up.
        steps_lost: committed steps that nobody holds any more.
    """

    cause: str
    worker: str
    began_at: float
    detected_after_s: float
    at_boundary: bool
    running: bool
    steps_redone: int = 0
    steps_lost: int = 0

    def again(self, *, at_boundary: bool, running: bool) -> None:
        """Another generation ends before the job has committed."""
        self.at_boundary, self.running = at_boundary, running

    def breaks(self, cause: str, now: float, *, worker: str, silent_s: float) -> None:
        """A generation that was to end at a step boundary has broken before."""
        if self.at_boundary:
            self.cause, self.worker, self.began_at = cause, worker, now
            self.detected_after_s, self.at_boundary = silent_s, False

    def details(self, now: float) -> dict[str, Any]:
        """The figures, once the job has committed again."""
        return {
            "cause": self.cause,
            "detected_after_s": round(self.detected_after_s, 3),
            "recovered_after_s": round(now - self.began_at, 3),
            "steps_redone": self.steps_redone,
            "steps_lost": self.steps_lost,
        }
