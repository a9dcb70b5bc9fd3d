"""Spans of ring and star while the job is profiled: buckets, words, chunks.  Pure.

Used in the thread of the nodes, which report each event with its time.
"""

from __future__ import annotations

from typing import Protocol

from dtd.observe.profiling.spans import BUCKET, CHUNK, STAR_BUCKET, STAR_CHUNK, WORD, SpanLog


class ChunkFields(Protocol):
    """The fields of a CHUNK that are read."""

    @property
    def step(self) -> int:
        """Its step."""
        ...

    @property
    def phase(self) -> int:
        """Its phase."""
        ...

    @property
    def hop(self) -> int:
        """Its hop within the phase."""
        ...

    @property
    def bucket(self) -> int:
        """Its bucket."""
        ...

    @property
    def source(self) -> int:
        """The rank that sent it."""
        ...


class RingSpans:
    """Turns the events of a ring's node into spans.

    Attributes:
        log: their log; spans that began before the recording are left out.
        star: for the star of the same generation, if it has one; its spans are in the same log.
    """

    def __init__(self) -> None:
        self.log = SpanLog()
        self.star = StarSpans(self.log)
        self._buckets: dict[int, int] = {}
        self._word_ns: int | None = None
        self._chunk_ns: int | None = None

    def bucket_started(self, bucket: int, now_ns: int) -> None:
        """This rank's contribution is complete."""
        self._buckets[bucket] = now_ns

    def bucket_done(self, bucket: int, now_ns: int) -> None:
        """The bucket holds the result."""
        begun_ns = self._buckets.pop(bucket, None)
        if begun_ns is not None:
            self.log.add(BUCKET, begun_ns, now_ns, bucket)

    def word_offered(self, now_ns: int) -> None:
        """An exchange of words begins; there is one at a time."""
        self._word_ns = now_ns

    def words_done(self, sequence: int, now_ns: int) -> None:
        """All words of an exchange are here."""
        if self._word_ns is not None:
            self.log.add(WORD, self._word_ns, now_ns, sequence)
        self._word_ns = None

    def chunk_announced(self, now_ns: int) -> None:
        """A chunk's header has arrived; chunks come one after the other."""
        self._chunk_ns = now_ns

    def chunk_done(self, chunk: ChunkFields, now_ns: int) -> None:
        """The chunk is here, and added where it is to be."""
        if self._chunk_ns is not None:
            detail = (chunk.step, chunk.phase, chunk.hop)
            self.log.add(CHUNK, self._chunk_ns, now_ns, chunk.bucket, detail)
        self._chunk_ns = None


class StarSpans:
    """Turns the events of a star's node into spans.

    Args:
        log: their log; spans that began before the recording are left out.
    """

    def __init__(self, log: SpanLog) -> None:
        self._log = log
        self._buckets: dict[int, int] = {}
        self._chunks: dict[int, int] = {}

    def bucket_started(self, bucket: int, now_ns: int) -> None:
        """This rank's part of it is complete, or may be written to."""
        self._buckets[bucket] = now_ns

    def bucket_done(self, bucket: int, now_ns: int) -> None:
        """The bucket holds this rank's part of the result."""
        begun_ns = self._buckets.pop(bucket, None)
        if begun_ns is not None:
            self._log.add(STAR_BUCKET, begun_ns, now_ns, bucket)

    def chunk_announced(self, source: int, now_ns: int) -> None:
        """A chunk's header has arrived; those of one rank come one after the other."""
        self._chunks[source] = now_ns

    def chunk_done(self, chunk: ChunkFields, now_ns: int) -> None:
        """The chunk is here, and added where it is to be."""
        begun_ns = self._chunks.pop(chunk.source, None)
        if begun_ns is not None:
            detail = (chunk.step, chunk.phase, chunk.source)
            self._log.add(STAR_CHUNK, begun_ns, now_ns, chunk.bucket, detail)
