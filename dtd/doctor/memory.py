"""The memory of a worker's training by part: measured beside predicted.  Pure.

Workers measure in one step (`dtd.train.memory`) and report with their heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dtd.wire import messages as m

PARTS: Final[Mapping[str, str]] = {
    "parameters": "Parameters and running buffers, as far as they are held after backward.",
    "gradients": "Gradients after backward, with the buckets that they lie in.",
    "optimizer": "State of the optimizer, averages of weights, and what a strategy adds.",
    "activations": "The most that forward and backward had allocated at once, beyond what lay there"
    " before.",
    "buckets": "What else travels or waits to: narrow copies, residuals of a codec, scalars.",
    "snapshots": "The copy of the state that was made for the newest checkpoint.",
    "process": "All of it at its peak: on a CPU the most resident memory of the process so far, on"
    " a GPU the most that torch had allocated in the step.",
}
"""Every part, in the order of tables, and its measurement."""

PREDICTED: Final = frozenset({"parameters", "gradients", "optimizer", "snapshots"})
"""Parts that the strategy determines (`dtd.doctor.state_memory`)."""


def memory_of(reported: Iterable[m.MemoryPart]) -> dict[str, dict[str, int | None]] | None:
    """Return {part: {"measured_bytes", "predicted_bytes"}} in the order of `PARTS`; None if empty.

    Args:
        reported: by one worker.
    """
    known = {one.name: one for one in reported}
    listed = {name: known[name] for name in PARTS if name in known}
    return {
        name: {
            "measured_bytes": one.measured_bytes,
            "predicted_bytes": one.predicted_bytes if name in PREDICTED else None,
        }
        for name, one in listed.items()
    } or None
