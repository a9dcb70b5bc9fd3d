"""What one link still has to bring in one phase of a step: a strict cursor.

The chunks of one phase come over a link bucket by bucket in index order, and chunk by chunk.  So
one position says which chunk is the only possible next one; every other is out of order, a
repetition, or nothing that its sender has to send.
"""

from __future__ import annotations

from dtd.core.ring.position import refused
from dtd.wire.messages import Chunk


class Lane:
    """The chunks of one phase from one rank in one step.

    Args:
        segment: the segment that they belong to.

    Attributes:
        received: chunks that have arrived in this step.
    """

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.received = 0
        self._buckets: list[tuple[int, int]] = []
        self._at = 0
        self._chunk = 0

    def add(self, bucket: int, chunks: int) -> None:
        """This bucket comes next, in this many chunks."""
        self._buckets.append((bucket, chunks))

    @property
    def finished(self) -> bool:
        """Whether everything known has arrived."""
        return self._at == len(self._buckets)

    @property
    def bucket(self) -> int | None:
        """The bucket of the next chunk; None if everything has arrived."""
        return None if self.finished else self._buckets[self._at][0]

    def check(self, chunk: Chunk) -> None:
        """Check that an announced chunk is the next one.

        Raises:
            ProtocolError: it is not.
        """
        if (chunk.bucket, chunk.chunk) != (self.bucket, self._chunk):
            raise refused(chunk, f"expected {self}")

    def advance(self) -> None:
        """The next chunk has arrived."""
        self.received += 1
        self._chunk += 1
        if self._chunk == self._buckets[self._at][1]:
            self._at, self._chunk = self._at + 1, 0

    def __str__(self) -> str:
        """The next chunk, in words."""
        if self.finished:
            return "nothing more"
        bucket, chunks = self._buckets[self._at]
        return f"chunk {self._chunk} of {chunks} of bucket {bucket}"
