"""Chunks that one link still has to bring in one phase of a step: a strict cursor.

The chunks of one phase come over a link bucket by bucket in index order, and chunk by chunk.  So
one position says which chunk is the only possible next one; every other is out of order, a
repetition, or nothing that its sender has to send.
"""

from __future__ import annotations

from collections.abc import Callable

from dtd.exchange.ring.position import refused
from dtd.wire.messages import Chunk


class Lane:
    """The chunks of one phase from one rank in one step.

    Args:
        segment: the segment that they belong to.
        chunks_of: how many of them a bucket has, by its index; 0 if it has none, None if there is
            no such bucket, or not yet.

    Attributes:
        received: chunks that have arrived in this step.
    """

    def __init__(self, segment: int, chunks_of: Callable[[int], int | None]) -> None:
        self.segment = segment
        self.received = 0
        self._chunks_of = chunks_of
        self._at = 0
        self._chunk = 0
        self._chunks: int | None = None

    @property
    def finished(self) -> bool:
        """Whether everything known has arrived."""
        return self._expected() is None

    @property
    def bucket(self) -> int | None:
        """The bucket of the next chunk; None if everything has arrived."""
        return None if self.finished else self._at

    def _expected(self) -> int | None:
        """Return the chunks of the next bucket that has any; None if there is none."""
        while not self._chunks:
            self._chunks = self._chunks_of(self._at)
            if self._chunks is None:
                return None
            self._at += self._chunks == 0
        return self._chunks

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
        if self._chunk == self._chunks:
            self._at, self._chunk, self._chunks = self._at + 1, 0, None

    def __str__(self) -> str:
        """The next chunk, in words."""
        chunks = self._expected()
        if chunks is None:
            return "nothing more"
        return f"chunk {self._chunk} of {chunks} of bucket {self._at}"
