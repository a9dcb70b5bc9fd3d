"""Times of a job's step with every strategy and codec, and which one to choose.  Pure.

Workers report each codec's bytes and cost (`dtd.train.measure_codecs`); nothing here knows any of
them by name.  A choice that keeps all numbers the same is recommended as it is.  Another one is
recommended for a trial, with its risk, and only if none of the first kind helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dtd import figures
from dtd.ctl.doctor.checks import Finding
from dtd.doctor.forecast import Exchanged, sent_bytes
from dtd.doctor.travel import Coded, Exchange, Star
from dtd.job import JobSpec

LEAST_GAIN: Final = 0.05
"""A step that is shorter by less is not worth a change."""

LEAST_LOSSY_SPEEDUP: Final = 1.25
"""A choice that changes the numbers has to be worth the risk."""

STAGE_OF_PARAMETERS: Final = 3
SAME_NUMBERS: Final = "same numbers"
HEADINGS: Final = ("STRATEGY", "CODEC", "SENT/STEP", "STEP", "SPEEDUP", "RISK")

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A strategy with a codec.

    Attributes:
        strategy: `strategy.name` in a job file.
        codec: `strategy.codec`.
        every_steps: between two exchanges.
        own: whether it is the job's own.
        bytes_per_step: that one worker sends; None if it cannot be said.
        step_s: expected, in the largest world; None likewise.
        speedup: the job's own step over this one; None likewise.
        risk: what a job may lose, or why the choice has no figures.
        lossless: whether it keeps all numbers the same.
        for_memory: whether it is chosen to save memory, never to save time.
    """

    strategy: str
    codec: str
    every_steps: int
    own: bool
    bytes_per_step: int | None
    step_s: float | None
    speedup: float | None
    risk: str
    lossless: bool
    for_memory: bool = False


def exchanged(steps: Sequence[Values], candidate: Values) -> Exchanged | None:
    """Return the exchanges of a step of these workers; None if one did not report them.

    Args:
        steps: each rank's measurements.
        candidate: as a worker lists it: "codec", "every_steps", "overlaps", and of a state that is
            divided "stage" and "mirrors".
    """
    whole = _exchanged(steps, candidate)
    if whole is None or not candidate.get("stage"):
        return whole
    return _divided(whole, plain(steps[0])["buckets"][:-1], candidate)


def _divided(whole: Exchanged, sizes: Sequence[int], candidate: Values) -> Exchanged:
    """Return the halves of its sums: gradients are scattered, parameters gathered as they are."""
    mirrors = candidate["mirrors"]
    gathers = [
        Exchange(bucket=bucket, size_bytes=size, gathers=True, copies=mirrors)
        for bucket, size in enumerate(sizes)
    ]
    *sums, scalars = whole.coded.exchanges
    travelling: list[Exchange] = []
    for one in sums:
        if candidate["stage"] == STAGE_OF_PARAMETERS:  # they are gathered for backward, too
            travelling.append(gathers[one.bucket])
        travelling.append(replace(one, scatters=True, copies=mirrors))
    ordered = [replace(one, bucket=at) for at, one in enumerate(reversed(gathers))]
    return replace(
        whole,
        coded=replace(whole.coded, exchanges=(*travelling, scalars)),
        parameters=Coded(exchanges=tuple(ordered), decode_s=(0.0,) * len(ordered)),
    )


def _exchanged(steps: Sequence[Values], candidate: Values) -> Exchanged | None:
    every_steps, overlaps = candidate["every_steps"], candidate["overlaps"]
    codec, world = candidate["codec"], str(len(steps))
    *sizes, scalars = plain(steps[0])["buckets"]
    if codec == "none":
        coded = Coded.plain([*sizes, scalars])
        return Exchanged(coded=coded, every_steps=every_steps, overlaps=overlaps)
    measured = [step.get("codecs", {}).get(codec) for step in steps]
    if not all(one is not None and world in one["worlds"] for one in measured):
        return None
    first = measured[0]
    encode_s, add_s, decode_s = (
        [max(times) for times in zip(*(one[key] for one in measured), strict=True)]
        for key in ("encode_s", "add_s", "decode_s")
    )
    exchanges = [
        Exchange(bucket=bucket, gathers=gathers, size_bytes=size, encode_s=encode, add_s=add)
        for bucket, gathers, size, encode, add in zip(
            first["buckets"], first["gathers"], first["worlds"][world], encode_s, add_s, strict=True
        )
    ]
    last = Exchange(bucket=len(sizes), size_bytes=scalars)
    coded = Coded(exchanges=(*exchanges, last), decode_s=(*decode_s, 0.0))
    return Exchanged(coded=coded, every_steps=every_steps, overlaps=overlaps)


def plain(step: Values) -> Values:
    """A worker's steps while gradients travel as they are: sizes of buckets, and worlds."""
    found: Values = step.get("plain", step)
    return found


def choices(
    spec: JobSpec,
    steps: Sequence[Values],
    step_s: Mapping[tuple[str, str], float],
    star: Star | None = None,
) -> list[Choice]:
    """All choices for [strategy], the fastest first.

    Args:
        spec: the job.
        steps: each rank's measurements.
        step_s: expected steps, by strategy and codec.
        star: the parameter servers of a divided state; None without.
    """
    own = (spec.strategy.name, spec.codec)
    listed: list[Choice] = []
    for one in steps[0].get("candidates", []):
        at = (one["strategy"], one["codec"])
        took_s, own_s = step_s.get(at), step_s.get(own)
        what = exchanged(steps, one)
        over = star if one.get("stage") else None
        listed.append(
            Choice(
                strategy=at[0],
                codec=at[1],
                every_steps=one["every_steps"],
                own=at == own,
                bytes_per_step=sent_bytes(what, len(steps), over) if took_s and what else None,
                step_s=took_s,
                speedup=own_s / took_s if own_s and took_s else None,
                risk=one["reason"] or one["risk"] or SAME_NUMBERS,
                lossless=not (one["risk"] or one["reason"]),
                for_memory=bool(one.get("stage")),
            )
        )
    return sorted(listed, key=lambda one: (one.step_s is None, one.step_s or 0.0))


def check_choice(listed: Sequence[Choice], spec: JobSpec) -> Iterator[Finding]:
    """One recommendation, or none if nothing helps much."""
    better = [one for one in listed if one.speedup and 1 - 1 / one.speedup >= LEAST_GAIN]
    own = next((one for one in listed if one.own), None)
    # Who saves memory needs it, and who does not gains no time by it.
    better = [one for one in better if own is not None and one.for_memory == own.for_memory]
    better = [one for one in better if one.lossless] or [
        one for one in better if (one.speedup or 0.0) >= LEAST_LOSSY_SPEEDUP
    ]
    if not better or own is None:
        return
    # Of those that are about as fast as the fastest, the one that leaves least out.
    fastest_s = min(one.step_s or 0.0 for one in better)
    near = [one for one in better if (one.step_s or 0.0) * (1 - LEAST_GAIN) <= fastest_s]
    best = max(near, key=lambda one: one.bytes_per_step or 0)
    write = f'under [strategy] write name = "{best.strategy}" and codec = "{best.codec}"'
    if spec.sync.wire_dtype:
        write += ", and leave out sync.wire_dtype"
    if not best.lossless:
        write = f"compare the loss of short runs first; {write}"
    yield Finding(
        check="strategy",
        state="ok",
        message=f"with strategy {best.strategy} and codec {best.codec} a step should take"
        f" {figures.span(best.step_s)} instead of {figures.span(own.step_s)}"
        f" ({best.speedup:.2f} times as fast): {best.risk}",
        remedy=write,
    )


def choice_row(one: Values) -> tuple[str, ...]:
    """A line of the table under `HEADINGS`."""
    sent, speedup = one["bytes_per_step"], one["speedup"]
    return (
        one["strategy"] + (f", {every} steps" if (every := one["every_steps"]) > 1 else ""),
        one["codec"] + (" (the job's)" if one["own"] else ""),
        figures.size(sent) if sent is not None else figures.NOTHING,
        figures.span(one["step_s"]),
        f"{speedup:.2f} x" if speedup is not None else figures.NOTHING,
        one["risk"],
    )
