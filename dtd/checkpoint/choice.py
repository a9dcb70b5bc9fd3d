"""The choice of a job's checkpoint, and of the parts that make it whole.  Pure.

The coordinator lists an entry for each worker that has a checkpoint, or a part of it.  Entries with
the same generation, step and digest are of one checkpoint.  A part that was saved when no ring was
left to compare it has no digest; it belongs to the one checkpoint of its generation and step, and
is compared with the other parts where they overlap, when they are merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dtd.cluster.generation.checkpoints import CONTRADICTED, VERIFIED
from dtd.engine.shards import NOTHING, WHOLE, ShardSet, united
from dtd.errors import RequestRefused
from dtd.job.tables import lower_is_better
from dtd.rules import did_you_mean

Entry = TypeVar("Entry", bound=Mapping[str, Any])


def fewest(parts: Sequence[ShardSet]) -> list[int]:
    """Indices of parts that hold together as much as all, in the order to take them.

    The part that adds most comes first, of equal ones the first.  With parts of a ring's ranks
    these are as few as can be, or one more.
    """
    chosen: list[int] = []
    covered, wanted = NOTHING, united(parts)
    while not covered.covers(wanted):
        best = max(range(len(parts)), key=lambda i: (_share(parts[i] - covered), -i))
        chosen.append(best)
        covered |= parts[best]
    return chosen


def missing(parts: Sequence[ShardSet]) -> ShardSet:
    """Return the shards that no part holds."""
    return WHOLE - united(parts)


def checkpoint_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """The checkpoint that an entry of the list is of."""
    return entry["job"], entry["generation"], entry["step"], entry["digest"]


def by_checkpoint(listed: Sequence[Entry]) -> list[list[Entry]]:
    """The entries of each checkpoint, those with a digest first.

    A part without a digest is on its own if parts of its generation and step have several.
    """
    digests: dict[tuple[Any, ...], set[str]] = {}
    for one in listed:
        if one.get("part") and one["digest"]:
            digests.setdefault(checkpoint_of(one)[:-1], set()).add(one["digest"])
    grouped: dict[tuple[Any, ...], list[Entry]] = {}
    for one in listed:
        *key, digest = checkpoint_of(one)
        known = digests.get(tuple(key), set())
        if one.get("part") and not digest and len(known) == 1:
            (digest,) = known
        grouped.setdefault((*key, digest), []).append(one)
    return [sorted(group, key=lambda one: not one["digest"]) for group in grouped.values()]


def part_of(entry: Mapping[str, Any]) -> ShardSet:
    """Return the shards that the worker of an entry has.

    Raises:
        ProtocolError: the entry names no shards.
    """
    return ShardSet.from_wire(entry["part"]) if entry.get("part") else WHOLE


def complete(listed: Sequence[Entry]) -> list[list[Entry]]:
    """The entries of each checkpoint of which some worker has each part, in the list's order."""
    groups = by_checkpoint(listed)
    return [group for group in groups if not missing([part_of(one) for one in group])]


def _share(one: ShardSet) -> float:
    return float(sum(stop - start for start, stop in one.intervals))


Checkpoint = Mapping[str, Any]


def confirmation_of(group: Sequence[Checkpoint]) -> str:
    """Return a checkpoint's confirmation: confirmed if parts with a confirmed digest hold all."""
    confirmed = united(part_of(one) for one in group if one["confirmation"] == VERIFIED)
    if confirmed.covers(united(map(part_of, group))):
        return VERIFIED
    return str(next(one["confirmation"] for one in group if one["confirmation"] != VERIFIED))


def holders_of(
    known: Sequence[Checkpoint], *, job: str, step: int, best_metric: str, mode: str = ""
) -> list[Checkpoint]:
    """The holders of the requested checkpoint, connected or not.

    A checkpoint that all ranks agreed on is preferred to unconfirmed ones.

    Args:
        known: the coordinator's list.
        job: for messages.
        step: this step's; 0 for any.
        best_metric: the best by this metric instead of the newest.
        mode: whether a greater ("max") or a smaller ("min") value is better; empty: as the job
            file's reference says of an empty `best_mode`.

    Raises:
        RequestRefused: there is none.
    """
    wanted = [one for one in known if one["confirmation"] != CONTRADICTED]
    wanted = [one for one in wanted if step in (0, one["step"])]
    groups = by_checkpoint(wanted)
    if not step:
        groups = [group for group in groups if not missing([*map(part_of, group)])]
    if best_metric and groups:
        groups = _with_metric(groups, best_metric, job)
    if not groups:
        what = f"of step {step} " if step else ""
        raise RequestRefused(
            f"job {job} has no checkpoint {what}that agrees with the digests of its ranks",
            remedy=f"list its checkpoints with: dtdctl checkpoints {job}",
        )
    confirmed = [group for group in groups if confirmation_of(group) == VERIFIED]
    return max(confirmed or groups, key=lambda group: _rating(group, best_metric, mode))


def _with_metric(
    groups: Sequence[list[Checkpoint]], metric: str, job: str
) -> list[list[Checkpoint]]:
    found = [group for group in groups if _values(group, metric)]
    if not found:
        known = sorted({name for group in groups for one in group for name in one["metrics"]})
        raise RequestRefused(
            f"job {job} has no checkpoint with the metric {metric!r}{did_you_mean(metric, known)}",
            remedy=f"its checkpoints have: {', '.join(known) or 'none'}",
        )
    return found


def _values(group: Sequence[Checkpoint], metric: str) -> list[float]:
    """A checkpoint's value of a metric, from all workers that have saved it."""
    return [one["metrics"][metric] for one in group if one["metrics"].get(metric) is not None]


def _rating(group: Sequence[Checkpoint], best_metric: str, mode: str) -> tuple[Any, ...]:
    age = (group[0]["generation"], group[0]["step"])
    if not best_metric:
        return age
    value = _values(group, best_metric)[0]
    return (-value if lower_is_better(best_metric, mode) else value, *age)
