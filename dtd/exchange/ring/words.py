"""The words of one step: every rank contributes one, every rank receives all, unchanged.

An all-gather of small payloads (protocol.md, "Words"): a word is forwarded as soon as it arrives,
and after N - 1 hops it has reached every rank.  Exchanges of a step are numbered; no rank is ever
more than one ahead, so the stored words are bounded.  Indices only: the shell holds the words.
"""

from __future__ import annotations

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.ring.events import Effect, SendWord, WordsDone
from dtd.exchange.ring.position import RingPosition
from dtd.wire.messages import SmallGather


class Words:
    """One rank's part in one step's exchanges of words.

    Attributes:
        offered: this rank's word of the current exchange has been sent, others are missing.
    """

    def __init__(self, seat: RingPosition, *, step: int) -> None:
        self.offered = False
        self._seat = seat
        self._step = step
        self._sequence = 0
        self._here: dict[int, int] = {}

    def check(self, word: SmallGather) -> None:
        """Check an announced word of this step.

        Raises:
            ProtocolError: the word is not possible now.
        """
        seat = self._seat
        expected_hop = (seat.previous - word.origin) % seat.world_size
        if word.origin >= seat.world_size or word.hop != expected_hop or word.origin == seat.rank:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"word of rank {word.origin} at hop {word.hop}: not possible at rank {seat.rank}",
            )
        expected = self._here.get(word.origin, 0)
        if word.sequence != expected:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"word {word.sequence} of rank {word.origin} in step {self._step}:"
                f" expected number {expected}",
            )
        if word.sequence > self._sequence + self.offered:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"word {word.sequence} of rank {word.origin} in step {self._step}:"
                f" it has not seen our word {word.sequence - 1}",
            )

    def offer(self) -> list[Effect]:
        """This rank's word of the next exchange is ready."""
        if self.offered or self._step < self._seat.first_step:
            raise LocalProtocolError(
                f"word {self._sequence} of step {self._step} offered twice, or before the step"
            )
        self.offered = True
        effects: list[Effect] = []
        if self._seat.world_size > 1:
            effects.append(SendWord(word=self._word(self._sequence, 0, self._seat.rank)))
        return effects + self._finish()

    def received(self, word: SmallGather) -> list[Effect]:
        """Another rank's word has arrived."""
        self._here[word.origin] = word.sequence + 1
        effects: list[Effect] = []
        if word.hop + 1 < self._seat.hops:
            effects.append(SendWord(word=self._word(word.sequence, word.hop + 1, word.origin)))
        return effects + self._finish()

    def missing(self) -> list[int]:
        """The ranks whose words of the current exchange are missing."""
        return [
            rank
            for rank in range(self._seat.world_size)
            if rank != self._seat.rank and self._here.get(rank, 0) <= self._sequence
        ]

    def _word(self, sequence: int, hop: int, origin: int) -> SmallGather:
        return SmallGather(
            generation=self._seat.generation,
            step=self._step,
            sequence=sequence,
            hop=hop,
            origin=origin,
            source=self._seat.rank,
        )

    def _finish(self) -> list[Effect]:
        if not self.offered or self.missing():
            return []
        done = WordsDone(sequence=self._sequence)
        self._sequence += 1
        self.offered = False
        return [done]
