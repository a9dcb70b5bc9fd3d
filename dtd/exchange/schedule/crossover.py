"""The size up to which a bucket travels whole, down the trees, rather than in segments.

With N ranks, a hop of a seconds and a link of R bytes per second, a bucket of B bytes takes

    in segments, around the ring:   2 (N - 1) (a + B / (N R))
    whole, down trees of h hops:    h a + (N - 1) B / R

so the crossover depends on a R alone, what a link carries in the time of a hop.  Each rank measures
that on its link to the next one (`HopMeter`); the coordinator decides for each generation
(`dtd.cluster.generation.roster`), and ASSIGN names the size, the same to all ranks.  Pure
arithmetic; protocol.md, "Two ways round".
"""

from __future__ import annotations

from typing import Final

EXCHANGE_BYTES: Final = 256 * 1024
"""Most bytes that one link carries for a bucket that travels whole, (N - 1) * its size, before
links have shown anything.

At 1 Gbit/s with eight ranks these take 2.1 ms, as long as the hops that they save.
"""

ONE_HOST_EXCHANGE_BYTES: Final = 512 * 1024
"""The same where all ranks are on one host, whatever links show: larger buckets are read from
shared memory.  On loopback, where a frame costs more time than its bytes, eight ranks gain even at
448 KiB a link; buckets of 4 to 32 KiB are 1.5 to 1.8 times as fast whole.
"""

MOST_EXCHANGE_BYTES: Final = 4 * 1024 * 1024
"""The most that links may show: memory for contributions is 16 times as large."""

HOP_S: Final = 0.1e-3
"""Time of a small frame from one rank's program to the next one's, beside that on the network."""

PROGRAM_BYTES_PER_S: Final = 500e6
"""Rate at which a program tags, copies and adds what it exchanges."""

ASSUMED_BYTES_PER_S: Final = 125e6
"""Rate of a link that has not shown its own: most networks are at least so fast."""

MEASURED_S: Final = 0.02
"""Time for which a link is busy before its rate is read: the kernel counts it in milliseconds."""

_MEMORY: Final = 0.7
_KEPT_FACTOR: Final = 2.0


def whole_bytes(world_size: int, hops: int, *, hop_bytes: int = 0, one_host: bool = False) -> int:
    """Most bytes of a bucket that travels whole.

    Args:
        world_size: number of ranks.
        hops: most hops of the tree (`Tree.hops`).
        hop_bytes: what a link carries in the time of a hop; 0: links have not shown it.
        one_host: all ranks are on one host.
    """
    if world_size == 1:
        return 0
    link_bytes = ONE_HOST_EXCHANGE_BYTES if one_host else EXCHANGE_BYTES
    if hop_bytes and not one_host:
        saved_bytes = hop_bytes * (2 * (world_size - 1) - hops) * world_size
        least_bytes = EXCHANGE_BYTES if world_size == 2 else 0  # two send the same in either way
        link_bytes = max(saved_bytes // max(1, world_size - 2), least_bytes)
    return min(link_bytes, MOST_EXCHANGE_BYTES) // (world_size - 1)


def settled(before: int, shown: int) -> int:
    """The `hop_bytes` of the next generation: those of the last one, unless others are clear."""
    is_near = before <= shown * _KEPT_FACTOR and shown <= before * _KEPT_FACTOR
    return before if before and (is_near or not shown) else shown


class HopMeter:
    """Bytes that a link carries in the time of a hop, by what the kernel counts on it.

    While a link is busy, it carries bytes or waits for the acknowledgement of the last ones.  Bytes
    by busy time are its rate only where frames are long beside a round trip; otherwise they are
    less, and the rate is assumed.
    """

    def __init__(self) -> None:
        self._seen = (0, 0.0, 0)
        self._acked_bytes = self._busy_s = self._waited_s = 0.0

    def hop_bytes(
        self, acked_bytes: int, busy_s: float, frames: int, least_round_trip_s: float
    ) -> int:
        """Return it; 0 when it is not known.

        Args:
            acked_bytes: bytes that the other side has acknowledged.
            busy_s: how long that took (`Link.transmitted`).
            frames: number of frames sent.
            least_round_trip_s: the least that the kernel has measured, without queues.
        """
        if not least_round_trip_s:
            return 0
        seen = self._seen
        if busy_s - seen[1] >= MEASURED_S:
            self._seen = acked_bytes, busy_s, frames
            waited_s = (frames - seen[2]) * (least_round_trip_s + HOP_S)
            self._acked_bytes = self._acked_bytes * _MEMORY + acked_bytes - seen[0]
            self._busy_s = self._busy_s * _MEMORY + busy_s - seen[1]
            self._waited_s = self._waited_s * _MEMORY + waited_s
        rate = self._acked_bytes / self._busy_s if self._busy_s else 0.0
        if self._busy_s < 2 * self._waited_s:
            rate = max(rate, ASSUMED_BYTES_PER_S)
        hop_s = least_round_trip_s / 2 + HOP_S
        carried_bytes = hop_s / (1 / (rate or ASSUMED_BYTES_PER_S) + 1 / PROGRAM_BYTES_PER_S)
        return max(1, min(int(carried_bytes), MOST_EXCHANGE_BYTES))
