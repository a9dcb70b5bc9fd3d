"""A rank's seat in a ring: whom it hears, how it signs, and which frames it lets in at all.

Every frame passes here first (protocol.md, "Ring"): its generation, source and step are looked at
before anything else in it is believed.  What may come within a step is for the bucket
(`dtd.core.ring.segments`, `dtd.core.ring.exchange`) or the words (`dtd.core.ring.words`) to say.
"""

from __future__ import annotations

from dtd.errors import ErrorCode, ProtocolError
from dtd.wire.messages import Chunk, Phase, Taken, Word


class RingPosition:
    """Where a rank sits.

    Args:
        rank: this rank.
        world_size: number of ranks.
        generation: carried by every frame; others are refused.
        first_step: the first step that will be opened.

    Attributes:
        previous: the only rank that this one hears.
        hops: number of hops after which a frame has been everywhere.
    """

    def __init__(self, *, rank: int, world_size: int, generation: int, first_step: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.generation = generation
        self.first_step = first_step
        self.previous = (rank - 1) % world_size
        self.hops = world_size - 1

    def is_early(self, frame: Chunk | Word, *, step: int) -> bool:
        """Whether a frame belongs to the step after the open one.

        Raises:
            ProtocolError: it belongs to neither, to another generation, or comes from elsewhere.
        """
        if frame.generation != self.generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION,
                f"frame of generation {frame.generation}; this ring is generation"
                f" {self.generation}",
            )
        if frame.source != self.previous or self.world_size == 1:
            raise ProtocolError(
                ErrorCode.WRONG_SOURCE,
                f"frame from rank {frame.source}; rank {self.rank} hears rank {self.previous} only",
            )
        if frame.step not in (step, step + 1) or frame.step < self.first_step:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"frame of step {frame.step}; this ring is at step {max(step, self.first_step)}",
            )
        return frame.step == step + 1

    def chunk(
        self, phase: Phase, hop: int, *, step: int, bucket: int, chunk: int = 0, loan: int = 0
    ) -> Chunk:
        """The header of a chunk that this rank sends."""
        return Chunk(
            generation=self.generation,
            step=step,
            phase=phase,
            hop=hop,
            bucket=bucket,
            chunk=chunk,
            source=self.rank,
            loan=loan,
        )

    def check_taken(self, taken: Taken, *, step: int) -> None:
        """Look at what the next rank says before it is believed.

        Raises:
            ProtocolError: it belongs to another generation or step.
        """
        if taken.generation != self.generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION, f"bucket taken in generation {taken.generation}"
            )
        if taken.step != step:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"bucket {taken.bucket} of step {taken.step} taken; this ring is at step {step}",
            )

    def taken(self, *, step: int, bucket: int) -> Taken:
        """What this rank says when it has read all that it was lent."""
        return Taken(generation=self.generation, step=step, bucket=bucket)


def refused(chunk: Chunk, why: str, code: ErrorCode = ErrorCode.UNEXPECTED_CHUNK) -> ProtocolError:
    """The error that says why a chunk cannot be taken."""
    return ProtocolError(
        code,
        f"chunk {chunk.chunk} of bucket {chunk.bucket}, phase {chunk.phase} hop {chunk.hop},"
        f" step {chunk.step}: {why}",
    )


def check_payload(chunk: Chunk, payload_bytes: int, expected_bytes: int) -> None:
    """Refuse a chunk of another length than it must have.

    Raises:
        ProtocolError: BAD_PAYLOAD.
    """
    if payload_bytes != expected_bytes:
        why = f"payload is {payload_bytes} bytes, not {expected_bytes}"
        raise refused(chunk, why, ErrorCode.BAD_PAYLOAD)
