"""Whether a job fits the memory of the hosts, and which settings would make it fit.  Pure.

Workers measure one step and say what each part takes; those that share a host, or a GPU, share its
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dtd import figures
from dtd.ctl.doctor.checks import Finding
from dtd.doctor.forecast import memory_bytes
from dtd.doctor.memory_remedy import Need, remedies
from dtd.doctor.state_memory import REPLICATED, Division, StateSize
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED, SHARDED_STAGES
from dtd.shown import counted

PARTS: Final = (
    *("parameters", "gradients", "buckets", "optimizer", "activations", "snapshot", "runtime"),
)
HEADINGS: Final = ("MEMORY OF", *(part.upper() for part in PARTS), "ALL", "AVAILABLE")
_CAN_BE_DIVIDED: Final = (*SHARDED, "replicated")

Values = Mapping[str, Any]


def check_memory(
    needs: Sequence[Values], steps: Mapping[str, Values], spec: JobSpec
) -> Iterator[Finding]:
    """Every host, or GPU, has room for the job in all the workers that share it.

    Args:
        needs: {"worker", "place", "parts", "available_bytes"} of each worker.
        steps: the measurements of each.
        spec: the job.
    """
    places: dict[str, list[Values]] = {}
    for need in needs:
        places.setdefault(need["place"], []).append(need)
    for place, here in places.items():
        needed = sum(memory_bytes(need["parts"]) for need in here)
        available = min(need["available_bytes"] for need in here)
        who = counted(len(here), "worker")
        said = f"{who} on {place} will need {figures.size(needed)} of {figures.size(available)}"
        if needed <= available:
            yield Finding(check="memory", state="ok", message=said)
            continue
        largest = max(here, key=lambda need: memory_bytes(need["parts"]))
        parts = largest["parts"]
        yield Finding(
            check="memory",
            state="warn",
            message=f"{said}: {figures.size(needed - available)} are missing, most is used by"
            f" {max(parts, key=lambda part: parts[part])}",
            remedy=_remedy(largest, steps, spec, available=available, workers_here=len(here)),
        )


def _remedy(
    largest: Values,
    steps: Mapping[str, Values],
    spec: JobSpec,
    *,
    available: int,
    workers_here: int,
) -> str:
    step = steps[largest["worker"]]
    found = []
    if "state" in step:  # older workers do not say it
        own = spec.strategy.stage if spec.strategy.name in SHARDED else REPLICATED
        need = Need(
            parts=largest["parts"],
            size=StateSize(**step["state"]),
            division=Division(stage=own, mirrors=spec.strategy.mirrors),
            world_size=len(steps),
            accumulation=spec.train.grad_accumulation,
            rows=spec.job.global_batch_size // len(steps),
        )
        stages = SHARDED_STAGES if spec.strategy.name in _CAN_BE_DIVIDED else ()
        found = remedies(need, available_bytes=available, workers_here=workers_here, stages=stages)
    if found:
        listed = "; or ".join(
            f"{one.setting} ({figures.size(one.needed_bytes)} each)" for one in found
        )
        return f"it fits with {listed}"
    recomputes = spec.train.activation_checkpointing or not largest["parts"].get("activations")
    first = "" if recomputes else "set train.activation_checkpointing and examine again, "
    return (
        f"{first}lower job.global_batch_size, or use more workers or hosts with more memory:"
        " neither smaller pieces of the batch nor a divided state are enough"
    )


def need_rows(needs: Sequence[Values]) -> list[tuple[str, ...]]:
    """Return the lines of the table under `HEADINGS`."""
    return [
        (
            need["worker"],
            *(figures.size(need["parts"].get(part, 0)) for part in PARTS),
            figures.size(need["needed_bytes"]),
            figures.size(need["available_bytes"]),
        )
        for need in needs
    ]
