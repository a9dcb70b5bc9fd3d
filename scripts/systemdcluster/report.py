"""The result, as a table for people and as an object for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtd.ctl import figures, output
from scripts.systemdcluster.drill import Outcome

_HEADINGS = ("FAULT", "HOST", "DETECTED", "RECOVERED", "WHOLE", "REDONE", "LOST", "AGREE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All faults, and how the job ended.

    Attributes:
        outcomes: a fault each.
        job: the job as `dtdctl jobs` has it.
        gaps: what does not fit together of all that was written down, in words.
    """

    outcomes: Sequence[Outcome]
    job: dict[str, Any]
    gaps: Sequence[str]

    @property
    def problems(self) -> list[str]:
        """All that is not as it must be."""
        found = [f"{o.fault}: {text}" for o in self.outcomes for text in o.disagreements]
        found += self.gaps
        if self.job["state"] != "done":
            found.append(f"job {self.job['id']} is {self.job['state']}: {self.job['reason']}")
        lost = sum(outcome.steps_lost for outcome in self.outcomes)
        if lost:
            found.append(f"{lost} steps are lost")
        return found


def lines(result: Result) -> list[str]:
    """A line a fault; then the job, then what is not as it must be."""
    rows = [
        (
            outcome.fault,
            outcome.host,
            figures.span(outcome.detected_after_s),
            figures.span(outcome.recovered_after_s),
            figures.span(outcome.whole_after_s),
            str(outcome.steps_redone),
            str(outcome.steps_lost),
            "no" if outcome.disagreements else "yes",
        )
        for outcome in result.outcomes
    ]
    job = result.job
    return [
        *output.table_lines(_HEADINGS, rows, colour=False),
        "",
        f"job {job['id']} is {job['state']} after {job['step']} of {job['total_steps']} steps",
        *(f"not as it must be: {problem}" for problem in result.problems),
    ]


def as_object(result: Result) -> dict[str, Any]:
    """The same for programs."""
    job = result.job
    return {
        "faults": [dataclasses.asdict(outcome) for outcome in result.outcomes],
        "job": {key: job[key] for key in ("id", "state", "step", "total_steps")},
        "problems": result.problems,
    }
