"""A rank's position in a ring: its previous rank, its frame headers, and the frames it accepts.

Every frame passes here first (protocol.md, "Ring"): its generation, source and step are checked
before anything else in it is used.  Within a step, the bucket (`dtd.exchange.ring.segments`,
`dtd.exchange.ring.exchange`) or the words (`dtd.exchange.ring.words`) decide what may arrive.
"""

from __future__ import annotations

from dtd.errors import ErrorCode, ProtocolError
from dtd.wire.messages import Chunk, Phase, ShmReleased, SmallGather


class RingPosition:
    """The position of a rank.

    Args:
        rank: this rank.
        world_size: number of ranks.
        generation: carried by every frame; frames of others are rejected.
        first_step: the first step that will be opened.

    Attributes:
        previous: the only rank from which this one receives.
        hops: number of hops after which a frame has reached every rank.
    """

    def __init__(self, *, rank: int, world_size: int, generation: int, first_step: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.generation = generation
        self.first_step = first_step
        self.previous = (rank - 1) % world_size
        self.hops = world_size - 1

    def is_early(self, frame: Chunk | SmallGather, *, step: int) -> bool:
        """Whether a frame belongs to the step after the open one.

        Raises:
            ProtocolError: it belongs to neither step, to another generation, or to another rank.
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
        """The header of a chunk sent by this rank."""
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

    def check_taken(self, taken: ShmReleased, *, step: int) -> None:
        """Check a release by the next rank before acting on it.

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

    def taken(self, *, step: int, bucket: int) -> ShmReleased:
        """The message for when this rank has read all of the shared bucket."""
        return ShmReleased(generation=self.generation, step=step, bucket=bucket)


def refused(chunk: Chunk, why: str, code: ErrorCode = ErrorCode.UNEXPECTED_CHUNK) -> ProtocolError:
    """The error for a chunk that cannot be accepted."""
    return ProtocolError(
        code,
        f"chunk {chunk.chunk} of bucket {chunk.bucket}, phase {chunk.phase} hop {chunk.hop},"
        f" step {chunk.step}: {why}",
    )


def check_payload(chunk: Chunk, payload_bytes: int, expected_bytes: int) -> None:
    """Reject a chunk of the wrong length.

    Raises:
        ProtocolError: BAD_PAYLOAD.
    """
    if payload_bytes != expected_bytes:
        why = f"payload is {payload_bytes} bytes, not {expected_bytes}"
        raise refused(chunk, why, ErrorCode.BAD_PAYLOAD)
