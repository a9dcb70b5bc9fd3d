"""The small gathers of one step: every rank contributes an entry, every rank receives all.

An all-gather of small payloads (protocol.md, "Small gathers"): each entry goes down a tree
(`tree.py`), forwarded as soon as it arrives.  The gathers of a step are numbered; no rank is ever
more than one ahead, so the stored entries are bounded.  Indices only: the shell holds the entries.
"""

from __future__ import annotations

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.schedule.effects import Effect, GatherDone, SendGather
from dtd.exchange.schedule.tree import Tree
from dtd.wire.messages import SmallGather


class SmallGathers:
    """One rank's part in one step's small gathers.

    Attributes:
        offered: this rank's entry of the current gather has been sent, others are missing.
    """

    def __init__(self, tree: Tree, *, generation: int, step: int) -> None:
        self.offered = False
        self._tree = tree
        self._rank = tree.rank
        self._world_size = tree.world_size
        self._generation = generation
        self._step = step
        self._sequence = 0
        self._here: dict[int, int] = {}

    def check(self, gather: SmallGather) -> None:
        """Check an announced entry of this step."""
        known = gather.origin < self._world_size and gather.origin != self._rank
        if not known or (gather.source, gather.hop) != (
            self._tree.source(gather.origin),
            self._tree.distance(gather.origin) - 1,
        ):
            raise self._refused(gather, f"not possible at rank {self._rank}")
        expected = self._here.get(gather.origin, 0)
        if gather.sequence != expected:
            raise self._refused(gather, f"expected number {expected}")
        if gather.sequence > self._sequence + self.offered:
            raise self._refused(gather, f"it has not seen our entry {gather.sequence - 1}")

    def _refused(self, gather: SmallGather, why: str) -> ProtocolError:
        return ProtocolError(
            ErrorCode.UNEXPECTED_CHUNK,
            f"entry {gather.sequence} of rank {gather.origin} from rank {gather.source} at hop"
            f" {gather.hop} in step {self._step}: {why}",
        )

    def offer(self) -> list[Effect]:
        """This rank's entry of the next gather is ready."""
        if self.offered:
            raise LocalProtocolError(f"entry {self._sequence} of step {self._step} offered twice")
        self.offered = True
        return self._send(self._sequence, self._rank) + self._finish()

    def received(self, gather: SmallGather) -> list[Effect]:
        self._here[gather.origin] = gather.sequence + 1
        return self._send(gather.sequence, gather.origin) + self._finish()

    def missing(self) -> list[int]:
        """The ranks whose entries of the current gather are missing."""
        return [
            rank
            for rank in range(self._world_size)
            if rank != self._rank and self._here.get(rank, 0) <= self._sequence
        ]

    def _send(self, sequence: int, origin: int) -> list[Effect]:
        return [
            SendGather(
                rank=rank,
                gather=SmallGather(
                    generation=self._generation,
                    step=self._step,
                    sequence=sequence,
                    hop=distance - 1,
                    origin=origin,
                    source=self._rank,
                ),
            )
            for rank, distance in self._tree.onward(origin)
        ]

    def _finish(self) -> list[Effect]:
        if not self.offered or self.missing():
            return []
        done = GatherDone(sequence=self._sequence)
        self._sequence += 1
        self.offered = False
        return [done]
