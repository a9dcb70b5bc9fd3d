"""The table at the end of a chaos run, and the same as one JSON object.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from scripts.chaosrun.checks import Check
from scripts.chaosrun.harness import Growth
from scripts.chaosrun.outcomes import Outcome, Rejoin, spread

_HEAD = (
    "| fault | count | detected: median, p99, max | evicted: median, p99, max |"
    " recovered: median, p99, max | steps lost |"
)


def kinds_of(found: Sequence[Outcome]) -> list[str]:
    """Kinds in the order in which they first happened."""
    return [*dict.fromkeys(outcome.injection.kind for outcome in found)]


def fault_table(found: Sequence[Outcome]) -> list[str]:
    """One Markdown row per kind of fault."""
    rows = [_HEAD, "|" + "---|" * 6]
    for kind in kinds_of(found):
        own = [outcome for outcome in found if outcome.injection.kind == kind]
        cells = [
            kind,
            str(len(own)),
            in_words(spread(outcome.detected_s for outcome in own)),
            in_words(spread(outcome.evicted_s for outcome in own)),
            in_words(spread(outcome.recovered_s for outcome in own)),
            str(sum(outcome.steps_lost for outcome in own)),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def phase_table(found: Sequence[Outcome], kind: str) -> list[str]:
    """What the victims of one kind of fault were doing, and how long the others then paused."""
    own = [outcome for outcome in found if outcome.injection.kind == kind]
    rows = ["| phase | count | recovered: median, p99, max |", "|---|---|---|"]
    for phase, count in Counter(outcome.injection.phase for outcome in own).most_common():
        values = spread(o.recovered_s for o in own if o.injection.phase == phase)
        rows.append(f"| {phase} | {count} | {in_words(values)} |")
    return rows


def growth_table(growths: Sequence[Growth]) -> list[str]:
    """What daemons held, first against last third."""
    rows = ["| daemon | memory, MB | descriptors | threads |", "|---|---|---|---|"]
    for one in growths:
        memory = f"{one.resident_bytes[0] / 1e6:.0f} -> {one.resident_bytes[1] / 1e6:.0f}"
        counts = (f"{pair[0]:g} -> {pair[1]:g}" for pair in (one.descriptors, one.threads))
        rows.append(f"| {one.name} | {memory} | {' | '.join(counts)} |")
    return rows


def rejoin_lines(found: Sequence[Rejoin]) -> list[str]:
    """How workers came back."""
    largest = max(one.received_bytes for one in found) / 1e6
    imported = in_words(spread(one.imported_s for one in found))
    joined = in_words(spread(one.joined_s for one in found))
    paused = in_words(spread(one.paused_s for one in found))
    return [
        "| workers that came back | median, p99, max |",
        "|---|---|",
        f"| how often | {len(found)} |",
        f"| from process start to the end of imports | {imported} |",
        f"| from the end of imports to the first step | {joined} |",
        f"| pause of the others, less a median step | {paused} |",
        f"| state received | {largest:.1f} MB |",
    ]


def in_words(values: tuple[float, float, float] | None) -> str:
    """Three durations."""
    return "-" if values is None else ", ".join(f"{value:.3f}" for value in values) + " s"


def as_object(
    found: Sequence[Outcome], verdicts: Sequence[Check], growths: Sequence[Growth], **more: Any
) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "faults": [
            {
                "kind": outcome.injection.kind,
                "victims": list(outcome.injection.victims),
                "at_s": outcome.injection.at_s,
                "phase": outcome.injection.phase,
                "generation": outcome.injection.generation,
                "note": outcome.injection.note,
                "detected_s": outcome.detected_s,
                "evicted_s": outcome.evicted_s,
                "reason": outcome.reason,
                "recovered_s": outcome.recovered_s,
                "steps_lost": outcome.steps_lost,
            }
            for outcome in found
        ],
        "checks": [
            {"name": one.name, "holds": one.holds, "failures": list(one.failures)}
            for one in verdicts
        ],
        "growth": [
            {
                "daemon": one.name,
                "samples": one.samples,
                "resident_bytes": list(one.resident_bytes),
                "descriptors": list(one.descriptors),
                "threads": list(one.threads),
            }
            for one in growths
        ],
        **more,
    }
