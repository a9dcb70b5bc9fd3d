"""Which ranks of a generation write its checkpoints.

Disks may be local, so copies go to different hosts as long as there are any; rank 0 always writes
one.  A function of the roster, so every rank knows its own part without being told.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence


def checkpoint_writers(hosts: Sequence[str], copies: int) -> frozenset[int]:
    """Ranks that write.

    Args:
        hosts: of each rank, in rank order.
        copies: how many are wanted; there are as many ranks at most.
    """
    firsts = [rank for rank, host in enumerate(hosts) if host not in hosts[:rank]]
    others = [rank for rank in range(len(hosts)) if rank not in firsts]
    return frozenset((firsts + others)[:copies])
