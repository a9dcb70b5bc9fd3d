"""What was measured, as a table with the aims beside it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Final

from scripts import markdown

SLOWER_AT_MOST: Final = 0.05
STATUS_WITHIN_S: Final = 1.0
COMMAND_WITHIN_S: Final = 0.150
GROWTH_BYTES: Final = 64 * 1024 * 1024
REVOKED_WITHIN_S: Final = 1.0
_MIB: Final = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Measured:
    """One kind of time, calm or under attack, all its blocks together.

    Attributes:
        steps_per_s: of the job, in each block.
        status_s: of each connection that an operator opened for one question.
        revoked_s: of each credential that was taken back.
        commands_s: wall time of `dtdctl status`.
        resident_bytes: the most memory that the coordinator was seen to hold, in each block.
    """

    steps_per_s: list[float] = field(default_factory=list)
    status_s: list[float] = field(default_factory=list)
    revoked_s: list[float] = field(default_factory=list)
    commands_s: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    what: str
    aim: str
    calm: str
    attacked: str
    holds: bool


def lines(calm: Measured, attacked: Measured) -> list[Line]:
    """What is told, with whether its aim is met."""
    ratios = [
        under / before for before, under in zip(calm.steps_per_s, attacked.steps_per_s, strict=True)
    ]
    ratio = statistics.median(ratios)
    command_s = statistics.median(calm.commands_s)
    before, most = calm.resident_bytes[0], max(attacked.resident_bytes)
    return [
        Line(
            what="steps of the job a second",
            aim=f"ratio at least {1 - SLOWER_AT_MOST:.2f}",
            calm=f"{statistics.median(calm.steps_per_s):.2f}",
            attacked=f"{statistics.median(attacked.steps_per_s):.2f}, ratio {ratio:.3f}"
            f" ({min(ratios):.3f} to {max(ratios):.3f})",
            holds=ratio >= 1 - SLOWER_AT_MOST,
        ),
        Line(
            what="an operator connects, asks for the status and has it",
            aim=f"under {STATUS_WITHIN_S:g} s",
            calm=_times(calm.status_s),
            attacked=_times(attacked.status_s),
            holds=max(attacked.status_s) < STATUS_WITHIN_S,
        ),
        Line(
            what="`dtdctl status`, the whole command",
            aim=f"calm under {COMMAND_WITHIN_S * 1000:.0f} ms",
            calm=_times(calm.commands_s),
            attacked=_times(attacked.commands_s),
            holds=command_s < COMMAND_WITHIN_S,
        ),
        Line(
            what="a credential is revoked",
            aim=f"under {REVOKED_WITHIN_S:g} s",
            calm=_times(calm.revoked_s),
            attacked=_times(attacked.revoked_s),
            holds=max(attacked.revoked_s) < REVOKED_WITHIN_S,
        ),
        Line(
            what="memory of the coordinator",
            aim=f"grows by less than {GROWTH_BYTES // _MIB} MiB",
            calm=f"{before / _MIB:.0f} MiB before the first attack",
            attacked=f"{most / _MIB:.0f} MiB, {(most - before) / _MIB:+.0f} MiB",
            holds=most - before < GROWTH_BYTES,
        ),
    ]


def table(told: list[Line]) -> str:
    """Markdown."""
    return markdown.table(
        ["what", "aim", "calm", "under attack", ""],
        (
            [one.what, one.aim, one.calm, one.attacked, "met" if one.holds else "**missed**"]
            for one in told
        ),
    )


def _times(seconds: list[float]) -> str:
    median, most = statistics.median(seconds) * 1000, max(seconds) * 1000
    return f"median {median:.0f} ms, slowest {most:.0f} ms"
