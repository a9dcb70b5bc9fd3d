"""Who is in the next generation, in which order, and who holds the state it starts from.

Pure functions over what the workers have reported; each choice comes with its reason.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

from dtd.core.membership_events import Worker
from dtd.wire import messages as m

NOTHING_HELD = m.Held(job="", generation=0, step=0, digest="", where="none")


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts worker-10 after worker-9."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    )


def choose(workers: Iterable[Worker], *, max_workers: int) -> list[Worker]:
    """The members of the next roster in rank order: by name, so that ranks do not depend on luck.

    Holders of the newest state come first in the choice when there are more than `max_workers`.
    Those who leave as soon as they have handed their state over do not count.
    """
    candidates = list(workers)
    newest = max((held_key(w) for w in candidates), default=(0, 0))
    candidates.sort(key=lambda w: (held_key(w) != newest, natural_key(w.name)))
    leaving = [worker for worker in candidates if worker.leaving]
    staying = [worker for worker in candidates if not worker.leaving]
    chosen = leaving + staying[: min(max_workers, m.MAX_WORLD - len(leaving))]
    return sorted(chosen, key=lambda w: natural_key(w.name))


def held_key(worker: Worker) -> tuple[int, int]:
    """(generation, step) of the newest state a worker holds."""
    held = worker.held or NOTHING_HELD
    return held.generation, held.step


def held_by(message: m.Frozen | m.Finished) -> m.Held:
    """What a worker holds that has left its generation."""
    if isinstance(message, m.Frozen):
        return message.held[0] if message.held else NOTHING_HELD
    return m.Held(
        job=message.job,
        generation=message.generation,
        step=message.step,
        digest=message.digest,
        where="memory",
    )


def source_rank(roster: Sequence[Worker]) -> int:
    """The lowest rank that holds the newest state; in memory rather than on disk."""
    newest = max(held_key(worker) for worker in roster)
    holders = [rank for rank, worker in enumerate(roster) if held_key(worker) == newest]
    in_memory = [rank for rank in holders if (roster[rank].held or NOTHING_HELD).where == "memory"]
    return (in_memory or holders)[0]


def roster_id(job: str, generation: int, roster: Sequence[Worker]) -> int:
    """An id that no other roster has: incarnations are drawn at random by the workers."""
    text = f"{job}\0{generation}\0" + "\0".join(f"{w.name}={w.incarnation}" for w in roster)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def reference(reports: Sequence[m.Warmed]) -> m.Warmed:
    """The report that most workers agree with; of equally common ones the first."""
    return max(reports, key=lambda one: sum(not disagreement(one, other) for other in reports))


def disagreement(reference: m.Warmed, other: m.Warmed) -> str:
    """Why two workers must not train together; empty when they may."""
    if reference.dataset_rows != other.dataset_rows:
        return f"its dataset has {other.dataset_rows} rows, not {reference.dataset_rows}"
    if reference.dataset_fingerprint != other.dataset_fingerprint:
        return "sampled rows of its dataset differ from the other workers'"
    if reference.plan_digest != other.plan_digest:
        return "its model has other parameters than the other workers'"
    if reference.numerics_fingerprint != other.numerics_fingerprint:
        return (
            "its numerics differ (another torch version, device type or processor):"
            f" {other.numerics_fingerprint}, not {reference.numerics_fingerprint}"
        )
    return ""
