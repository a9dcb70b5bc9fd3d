"""The small gathers of one step: every rank contributes an entry, every rank receives all.

An all-gather of small payloads on the ring (protocol.md, "Small gathers"): an entry is forwarded as
soon as it arrives, and after N - 1 hops it has reached every rank.  The gathers of a step are
numbered; no rank is ever more than one ahead, so the stored entries are bounded.  Indices only: the
shell holds the entries.
"""

from __future__ import annotations

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.schedule.events import Effect, GatherDone, SendGather
from dtd.wire.messages import SmallGather


class SmallGathers:
    """One rank's part in one step's small gathers.

    Attributes:
        offered: this rank's entry of the current gather has been sent, others are missing.
    """

    def __init__(self, rank: int, world_size: int, *, generation: int, step: int) -> None:
        self.offered = False
        self._rank = rank
        self._world_size = world_size
        self._generation = generation
        self._step = step
        self._sequence = 0
        self._here: dict[int, int] = {}

    def check(self, gather: SmallGather) -> None:
        """Check an announced entry of this step.

        Raises:
            ProtocolError: the entry is not possible now.
        """
        hop = (self._rank - 1 - gather.origin) % self._world_size
        if gather.origin >= self._world_size or gather.origin == self._rank or gather.hop != hop:
            raise self._refused(gather, f"not possible at rank {self._rank}")
        expected = self._here.get(gather.origin, 0)
        if gather.sequence != expected:
            raise self._refused(gather, f"expected number {expected}")
        if gather.sequence > self._sequence + self.offered:
            raise self._refused(gather, f"it has not seen our entry {gather.sequence - 1}")

    def _refused(self, gather: SmallGather, why: str) -> ProtocolError:
        return ProtocolError(
            ErrorCode.UNEXPECTED_CHUNK,
            f"entry {gather.sequence} of rank {gather.origin} at hop {gather.hop} in step"
            f" {self._step}: {why}",
        )

    def offer(self) -> list[Effect]:
        """This rank's entry of the next gather is ready."""
        if self.offered:
            raise LocalProtocolError(f"entry {self._sequence} of step {self._step} offered twice")
        self.offered = True
        effects: list[Effect] = []
        if self._world_size > 1:
            effects.append(self._send(self._sequence, 0, self._rank))
        return effects + self._finish()

    def received(self, gather: SmallGather) -> list[Effect]:
        """Another rank's entry has arrived."""
        self._here[gather.origin] = gather.sequence + 1
        effects: list[Effect] = []
        if gather.hop + 2 < self._world_size:
            effects.append(self._send(gather.sequence, gather.hop + 1, gather.origin))
        return effects + self._finish()

    def missing(self) -> list[int]:
        """The ranks whose entries of the current gather are missing."""
        return [
            rank
            for rank in range(self._world_size)
            if rank != self._rank and self._here.get(rank, 0) <= self._sequence
        ]

    def _send(self, sequence: int, hop: int, origin: int) -> SendGather:
        gather = SmallGather(
            generation=self._generation,
            step=self._step,
            sequence=sequence,
            hop=hop,
            origin=origin,
            source=self._rank,
        )
        return SendGather(gather=gather)

    def _finish(self) -> list[Effect]:
        if not self.offered or self.missing():
            return []
        done = GatherDone(sequence=self._sequence)
        self._sequence += 1
        self.offered = False
        return [done]
