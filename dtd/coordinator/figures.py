"""Recent history of each job for displays: losses, rates, times of a step, links.

Made of workers' usual reports, and bounded: when a curve is full, every second point of it is
dropped and from then on only every second step counts.  It is lost with this process; what must be
kept is in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dtd.wire import messages as m

MAX_POINTS: Final = 600
MAX_JOBS: Final = 64
"""Jobs whose curves are kept; the one that has been silent for the longest time is forgotten."""


class Curve:
    """Points over steps, thinned out as they become many."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []
        self._every = 1
        self._last: tuple[int, float] | None = None

    def add(self, step: int, value: float) -> None:
        """Add a point; what was known from this step on is forgotten, the step was done again."""
        while self.points and self.points[-1][0] >= step:
            self.points.pop()
        self._last = (step, value)
        if self.points and step - self.points[-1][0] < self._every:
            return
        self.points.append(self._last)
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self._every = max(2 * self._every, self.points[-1][0] - self.points[-2][0])

    def values(self) -> list[list[float]]:
        """[step, value] of all points, the newest one too."""
        newest = [self._last] if self._last and self._last not in self.points[-1:] else []
        return [[step, value] for step, value in (*self.points, *newest)]


class _OfJob:
    """The reports of one job."""

    def __init__(self) -> None:
        self.loss, self.rate = Curve(), Curve()
        self.progress: m.Progress | None = None


class Figures:
    """The reports of the newest jobs."""

    def __init__(self) -> None:
        self._jobs: dict[str, _OfJob] = {}

    def progress(self, message: m.Progress) -> None:
        """Rank 0 tells of a committed step."""
        known = self._jobs.pop(message.job, None) or _OfJob()
        self._jobs[message.job] = known  # the newest one last
        while len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        known.progress = message
        known.loss.add(message.step, message.loss)
        if message.step_s > 0:
            known.rate.add(message.step, message.rows / message.step_s)

    def answer(
        self, beats: Mapping[str, m.Heartbeat | None], roster: Sequence[str], *, job: str = ""
    ) -> dict[str, Any]:
        """The answer to GET_FIGURES.

        Args:
            beats: last heartbeat of each worker by name.
            roster: the running generation's names by rank; its links are told of.
            job: id of the job; empty: the one that reported last.
        """
        job = job or next(reversed(self._jobs), "")
        known = self._jobs.get(job) or _OfJob()
        progress = known.progress
        heard = {name: beat for name, beat in beats.items() if beat is not None}
        return {
            "job": job,
            "loss": known.loss.values(),
            "rates": known.rate.values(),
            "learning_rate": progress.learning_rate if progress is not None else None,
            "grad_norm": progress.grad_norm if progress is not None else None,
            "workers": [
                {
                    "name": name,
                    "step_s": beat.step_s,
                    "data_s": beat.data_s,
                    "compute_s": beat.compute_s,
                    "exposed_s": beat.exposed_s,
                    "optimizer_s": beat.optimizer_s,
                    "own_s": beat.own_s,
                }
                for name, beat in heard.items()
                if beat.step_s > 0
            ],
            "links": _links(heard, roster),
        }


def _links(beats: Mapping[str, m.Heartbeat], roster: Sequence[str]) -> list[dict[str, Any]]:
    """Return each rank's figures of the link to the next one."""
    if len(roster) < 2:
        return []
    return [
        {
            "from": name,
            "to": roster[(rank + 1) % len(roster)],
            "rtt_s": beats[name].rtt_s,
            "bytes_per_s": beats[name].link_bytes_per_s,
        }
        for rank, name in enumerate(roster)
        if name in beats
    ]
