"""Finds the first entry of the state in which ranks differ, and its probable cause.

Called when digests differ, on all ranks alike: each hashes its entries one by one, and the ranks
search the list together (`dtd.engine.difference`).  What becomes of the job is decided by the
coordinator; nothing of the state is changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import xxhash

from dtd.checkpoint.format import canonical_json
from dtd.engine.difference import search
from dtd.engine.shard_digests import Shared
from dtd.engine.shards import ShardSet
from dtd.errors import ProtocolError, RingBroken
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.optimizer.task_schedule import SCHEDULE
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import (
    AVERAGE,
    GROUPS,
    MODEL,
    OPTIMIZER,
    STRATEGY,
    TASK,
    dtype_name,
    metadata,
    named_tensors,
    on_host,
)
from dtd.train.state.weights import plain_name

Gather = Callable[[bytes], list[bytes]]

_MORE: Final = "(more entries)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first entry in which ranks differ.

    Attributes:
        entry: its name; empty if it was not found.
        meaning: the entry and the probable cause, for a person; empty without an entry.
    """

    entry: str = ""
    meaning: str = ""


def first_difference(
    replica: Replica,
    gather: Gather,
    progress: Callable[[], None] = lambda: None,
    *,
    rank: int = 0,
    disputed: Shared | None = None,
) -> Difference:
    """Search the states of all ranks; finds nothing if the ring breaks meanwhile.

    Args:
        replica: this rank's state.
        gather: gathers bytes from all ranks, which all search as well.
        progress: called with every entry that is hashed.
        rank: this one.
        disputed: shards of the state in which their holders differ, which are searched if the
            common part is equal; None if there are none.
    """
    try:
        entry = _searched(_entries(replica, progress), None, gather)
        if entry or disputed is None:
            return Difference(entry=entry, meaning=_meaning(replica, entry) if entry else "")
        held = rank in disputed.holders
        names = _shard_names(replica)
        entries = _shard_entries(replica, disputed.part, progress) if held else []
        entry = _searched(entries, disputed.holders, gather, list(names))
    except (RingBroken, ProtocolError):
        return Difference()
    return Difference(entry=entry, meaning=_meaning(replica, entry, names.get(entry, "")))


def _searched(
    entries: Sequence[tuple[str, bytes]],
    among: Collection[int] | None,
    gather: Gather,
    names: Sequence[str] | None = None,
) -> str:
    """Return the name of the first entry that differs; empty if none does.

    Args:
        entries: names and hashes of this rank's entries.
        among: the ranks that have them; None for all.
        gather: gathers bytes from all ranks.
        names: of all entries, where ranks may have none themselves.
    """
    looking = search([content for _, content in entries], among)
    try:
        word = next(looking)
        while True:
            word = looking.send(gather(word))
    except StopIteration as found:
        index: int | None = found.value
    known = [name for name, _ in entries] if names is None else names
    if index is None:
        return ""
    return known[index] if index < len(known) else _MORE


def _entries(replica: Replica, progress: Callable[[], None]) -> list[tuple[str, bytes]]:
    """Names and hashes of all that a digest covers, in the digest's order; counters come last."""
    found = []
    for name, tensor in named_tensors(replica).items():
        content = xxhash.xxh3_64()
        content.update(canonical_json([name, dtype_name(name, tensor.dtype), list(tensor.shape)]))
        content.update(tensor_bytes(on_host(tensor)))
        found.append((name, content.digest()))
        progress()
    for name, value in metadata(replica).items():
        found.append((name, xxhash.xxh3_64(canonical_json([name, value])).digest()))
    return found


def _shard_names(replica: Replica) -> dict[str, str]:
    """Names of the sharded entries, and of the parameter that each of them is about."""
    assert replica.shards is not None, "the state is not sharded"
    tensors = replica.shards.tensors()
    of_place = {
        one.place: one.name.removeprefix(MODEL) for one in tensors if one.name.startswith(MODEL)
    }
    return {one.name: of_place[one.place] for one in tensors}


def _shard_entries(
    replica: Replica, part: ShardSet, progress: Callable[[], None]
) -> list[tuple[str, bytes]]:
    """Names and hashes of the sharded entries, as far as they are in a part that is held here."""
    assert replica.shards is not None, "the state is not sharded"
    found, elements = [], replica.shards.buckets()
    for tensor in replica.shards.tensors():
        content, at = xxhash.xxh3_64(tensor.name.encode()), tensor.place
        for start, stop in part.ranges(elements[at.bucket]):
            for piece in tensor.pieces:
                begin = max(start - at.start, piece.start) - piece.start
                end = min(stop - at.start, piece.stop) - piece.start
                if begin < end:
                    content.update(tensor_bytes(on_host(piece.values[begin:end])))
        found.append((tensor.name, content.digest()))
        progress()
    return found


def _meaning(replica: Replica, entry: str, parameter: str = "") -> str:
    """Describe an entry; `parameter` names the one that sharded optimizer state is about."""
    if entry == _MORE:
        return "some ranks have optimizer state that others lack"
    if entry.startswith(MODEL):
        return _of_model(replica, entry.removeprefix(MODEL))
    if entry.startswith(TASK) or entry == "task":
        return (
            f"{entry.removeprefix(TASK)} of what the task keeps itself; it must be changed alike on"
            " all ranks, not by the rows of each"
        )
    if entry.startswith(OPTIMIZER):
        index, _, key = entry.removeprefix(OPTIMIZER).partition(".")
        names = [*chain.from_iterable(replica.grouped)]
        return (
            f"{key} in the optimizer's state of {parameter or names[int(index)]};"
            " all ranks give"
            " the optimizer the same gradients, so it probably draws at random, or keeps state"
            " that dtd does not know"
        )
    if entry.startswith(STRATEGY):
        return (
            f"{entry.removeprefix(STRATEGY)} of the strategy {replica.strategy}; all ranks compute"
            " it from the same sums, so a machine probably computes wrongly"
        )
    if entry.startswith(AVERAGE):
        return (
            f"the average of {entry.removeprefix(AVERAGE)}; only its parameter moves it, so a"
            " machine probably computes wrongly"
        )
    if entry == "schedule" or entry.startswith(SCHEDULE):
        return (
            "the state of the schedule that build_schedule() made; it probably depends on the rank"
            " or draws at random"
        )
    kind = "" if entry.startswith(GROUPS) else ", which is no tensor"
    return (
        f"{entry}{kind}; the task probably changes the optimizer's groups by itself, not alike on"
        " all ranks"
    )


def _of_model(replica: Replica, name: str) -> str:
    if name in {plain_name(trained) for trained, _ in replica.trained}:
        return (
            f"the parameter {name}; all ranks update it by the same gradients, so something else"
            " probably changes it: an optimizer that the task steps itself, an assignment in"
            " loss(), a random draw; or a machine computes wrongly"
        )
    if name in {plain_name(known) for known, _ in replica.model.named_parameters()}:
        return (
            f"the parameter {name}, which dtd does not train; the task probably changes it itself,"
            " by the rows of each rank"
        )
    return (
        f"the buffer {name}; probably it is changed outside of forward, or by a random draw or"
        " rows of one rank in a way that cannot be averaged"
    )
