"""Signs of activity in a worker whose training thread has made no progress for a while.

A thread that computes, compiles or reads is slow, not stuck. The observations of one moment are
`Evidence`; `motion` compares two of them and describes the activity in words, if any. A glance is
the processor time of everything but the event loop; only when that shows nothing does the shell
look closely (`dtd.worker.evidence`), because that costs system calls.

Pure. The consequences are decided in `dtd.cluster.progress`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOVING_SHARE: Final = 0.05
"""Share of one processor; a loop that polls once a millisecond stays below it."""

READING_BYTES_PER_S: Final = 16 * 1024
"""A thread that occasionally reads a few small files stays below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closely:
    """The observations of a close look; counts have any origin and only grow.

    Attributes:
        children_cpu_s: processor time of all child processes, ended ones too.
        read_bytes: bytes read by child processes and threads other than the event loop's.
        page_faults: pages for which the training thread waited.
        runnable: the thread would run if a processor were free.
        waits_for: what a thread or child waits for in the kernel, such as "a disk"; else empty.
        compiles: a compiler is on its stack.
        gpu_use: share of time in which its GPU works; negative: unknown.
    """

    children_cpu_s: float = 0.0
    read_bytes: int = 0
    page_faults: int = 0
    runnable: bool = False
    waits_for: str = ""
    compiles: bool = False
    gpu_use: float = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Observations of a training thread and its helpers at one moment.

    Attributes:
        at_s: time of the observation, on the clock of the marks.
        cpu_s: processor time of the process without its event loop.
        closely: None after a mere glance.
    """

    at_s: float
    cpu_s: float
    closely: Closely | None = None


def computes(before: Evidence, after: Evidence) -> bool:
    """Whether a glance suffices, because the process itself computes."""
    return _cpu_share(before.cpu_s, after.cpu_s, before, after) >= MOVING_SHARE


def motion(before: Evidence | None, after: Evidence) -> str:
    """The activity in words; empty when there is none.

    Args:
        before: an earlier observation of the same pause, if any.
        after: the newest observation.
    """
    if before is not None and computes(before, after):
        share = _cpu_share(before.cpu_s, after.cpu_s, before, after)
        return f"it computes ({share:.0%} of a processor)"
    now = after.closely
    if now is None:
        return ""
    standing = _state(now)
    if standing or before is None or before.closely is None:
        return standing
    return _counts(before, before.closely, after, now)


def _state(now: Closely) -> str:
    """The activity that a single observation shows."""
    if now.compiles:
        return "it compiles"
    if now.waits_for:
        return f"it waits for {now.waits_for}"
    if now.gpu_use >= MOVING_SHARE:
        return f"its GPU works ({now.gpu_use:.0%})"
    return "it waits for a processor" if now.runnable else ""


def _counts(before: Evidence, then: Closely, after: Evidence, now: Closely) -> str:
    """The counters that have grown between two close looks."""
    share = _cpu_share(then.children_cpu_s, now.children_cpu_s, before, after)
    if share >= MOVING_SHARE:
        return f"its child processes compute ({share:.0%} of a processor)"
    rate = (now.read_bytes - then.read_bytes) / max(after.at_s - before.at_s, 1e-9)
    if rate >= READING_BYTES_PER_S:
        return f"it reads ({rate / 1e6:.2f} MB/s)"
    return "it reads memory from a disk" if now.page_faults > then.page_faults else ""


def _cpu_share(then_s: float, now_s: float, before: Evidence, after: Evidence) -> float:
    return (now_s - then_s) / max(after.at_s - before.at_s, 1e-9)
