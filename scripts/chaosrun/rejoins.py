"""How workers came back: from process start to first step, and what that cost the others.  Pure."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.chaosrun.log_tail import Line
from scripts.chaosrun.scene import Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin:
    """One worker's way back.

    Attributes:
        worker: its name.
        imported_s: from process start to the end of its imports.
        joined_s: from the end of its imports to its first committed step.
        paused_s: the others' longest time between commits meanwhile, less a median step.
        received_bytes: the state that it got from them.
    """

    worker: str
    imported_s: float
    joined_s: float
    paused_s: float
    received_bytes: int


def rejoins(
    starts: Sequence[tuple[str, int, float]],
    imports: Sequence[tuple[int, float]],
    commits: Sequence[Commit],
    received: Sequence[Line],
) -> list[Rejoin]:
    """Every start of a worker that led to a committed step while others trained.

    Args:
        starts: (worker, pid, time).
        imports: when each process had imported everything, as (pid, time).
        commits: of all workers.
        received: `state_received` lines.
    """
    commits = sorted(commits, key=lambda commit: commit.at_s)
    median_s = statistics.median([one.step_s for one in commits]) if commits else 0.0
    found: list[Rejoin] = []
    for name, pid, at_s in starts:
        ended_s = min((s for other, _, s in starts if other == name and s > at_s), default=math.inf)
        first = next(
            (one for one in commits if one.worker == name and at_s < one.at_s < ended_s), None
        )
        if first is None:
            continue
        done = [done_s for one, done_s in imports if one == pid and at_s < done_s <= first.at_s]
        if not done:
            continue
        imported_at_s = done[-1]
        state = [x for x in received if x.daemon == name and at_s < x.at_s <= first.at_s]
        others = [one.at_s for one in commits if one.worker != name and one.job == first.job]
        if not state or not others or others[0] > at_s:
            continue
        found.append(
            Rejoin(
                worker=name,
                imported_s=imported_at_s - at_s,
                joined_s=first.at_s - imported_at_s,
                paused_s=max(0.0, _gap_before(others, first.at_s) - median_s),
                received_bytes=int(state[-1].fields.get("bytes", 0)),
            )
        )
    return found


def _gap_before(times_s: Sequence[float], at_s: float) -> float:
    """The time between the last commit before a joiner's first step and the one before it.

    The first step of the new generation is committed by all within a moment: what lies before the
    moment is the pause.
    """
    distinct = [
        at for index, at in enumerate(times_s) if not index or at - times_s[index - 1] > 1e-3
    ]
    end = bisect.bisect_right(distinct, at_s)
    return max((distinct[i] - distinct[i - 1] for i in range(max(1, end - 8), end)), default=0.0)
