"""Selects the ranks of a generation that write its checkpoints.

Disks may be local, so copies go to different hosts as long as there are any; rank 0 always writes
one.  Of a sharded state each owner has a part, and all owners write theirs.  A function of the
roster, so every rank can compute its own part.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence


def checkpoint_writers(
    hosts: Sequence[str], copies: int, *, sharded: bool = False, servers: int = 0
) -> frozenset[int]:
    """The ranks that write.

    Args:
        hosts: the host of each rank, in rank order.
        copies: wanted number of copies; limited by the number of ranks.
        sharded: no rank has the whole state.
        servers: how many of the last ranks are parameter servers, which have all of it.
    """
    if sharded:
        return frozenset(range(len(hosts) - servers if servers else 0, len(hosts)))
    firsts = [rank for rank, host in enumerate(hosts) if host not in hosts[:rank]]
    others = [rank for rank in range(len(hosts)) if rank not in firsts]
    return frozenset((firsts + others)[:copies])
