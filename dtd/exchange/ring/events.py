"""The events and effects of a ring, and the places for received payloads.

The vocabulary between the pure machine (`dtd.exchange.ring.machine`) and its shells
(`dtd.exchange.ring_node`, the simulation).  Indices only, never bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtd.exchange.ring.chunks import BucketShape
from dtd.wire.messages import Chunk, ShmReleased, SmallGather

# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOpened:
    """The training thread begins a step with these buckets.

    Attributes:
        loan: the number under which the next rank may read this step's buckets in shared memory.
        lent: indices of the buckets that it may read; those that travel whole are sent anyway.
        may_add: most buckets that may be added during the step; equal on all ranks.
    """

    step: int
    buckets: tuple[BucketShape, ...]
    loan: int = 0
    lent: frozenset[int] = frozenset()
    may_add: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketsAdded:
    """The open step has further buckets, on all ranks, numbered after the existing ones."""

    buckets: tuple[BucketShape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStarted:
    """The bucket's own contribution is complete."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReceived:
    """A chunk's payload is at the place given by `place`, and its tag was correct."""

    chunk: Chunk
    slot: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTaken:
    """The next rank has read all of the bucket in shared memory."""

    taken: ShmReleased


@dataclass(frozen=True, slots=True, kw_only=True)
class WordOffered:
    """This rank's word for the next exchange is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordReceived:
    """Another rank's word arrived."""

    word: SmallGather


Event = (
    StepOpened
    | BucketsAdded
    | BucketStarted
    | ChunkReceived
    | BucketTaken
    | WordOffered
    | WordReceived
)


# --- effects ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Add scratch slot `slot` to elements [start, stop) of the bucket, and free the slot."""

    bucket: int
    start: int
    stop: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceLent:
    """Add elements [start, stop) of the previous rank's shared bucket to this rank's."""

    bucket: int
    start: int
    stop: int
    loan: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLent:
    """Copy elements [start, stop) of the previous rank's shared bucket to this rank's."""

    bucket: int
    start: int
    stop: int
    loan: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTaken:
    """Tell the previous rank that its shared memory is no longer read."""

    taken: ShmReleased


@dataclass(frozen=True, slots=True, kw_only=True)
class SendChunk:
    """Send elements [start, stop) of the bucket to the next rank; only the header if shared."""

    chunk: Chunk
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOwn:
    """Copy the bucket to this rank's place among the contributions."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendContribution:
    """Send the contribution of rank `origin` to the next rank."""

    chunk: Chunk
    origin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SumContributions:
    """Replace the bucket by the sum of its contributions, added in rank order."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendWord:
    """Send the word of `word.origin` to the next rank."""

    word: SmallGather


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketDone:
    """The bucket holds the sum; its memory may change once everything sent has drained."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsDone:
    """Every rank's word of this exchange has arrived."""

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A held frame may be placed now."""


Effect = (
    Reduce
    | ReduceLent
    | CopyLent
    | SendTaken
    | SendChunk
    | KeepOwn
    | SendContribution
    | SumContributions
    | SendWord
    | BucketDone
    | WordsDone
    | Resume
)


# --- places for payloads ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InScratch:
    """Receive into this scratch slot."""

    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InBucket:
    """Receive straight into elements [start, stop) of the bucket."""

    bucket: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InLent:
    """There is no payload to receive: the elements are in the previous rank's shared memory.

    A chunk to be added that arrives before its bucket has started still takes a slot, whose memory
    is not used: slots bound what must be read at once when the bucket starts.
    """

    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InContributions:
    """Receive into the place of rank `origin` among the bucket's contributions."""

    bucket: int
    origin: int


Place = InScratch | InBucket | InLent | InContributions
