"""What happens to a ring, what it answers, and where it lets a payload be received.

The vocabulary between the pure machine (`dtd.core.ring.machine`) and its shells
(`dtd.transport.ring_node`, the simulation).  Indices only, never bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtd.core.ring.chunks import BucketShape
from dtd.wire.messages import Chunk, Taken, Word

# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOpened:
    """The training thread begins a step with these buckets.

    Attributes:
        loan: the number under which the next rank may read buckets of this step.
        lent: the buckets that it may, by index; those that travel whole are sent all the same.
        may_add: most buckets that are added before the step is over; equal on all ranks.
    """

    step: int
    buckets: tuple[BucketShape, ...]
    loan: int = 0
    lent: frozenset[int] = frozenset()
    may_add: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketsAdded:
    """The open step has further buckets, on all ranks; they are numbered after those it has."""

    buckets: tuple[BucketShape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStarted:
    """The bucket's own contribution is complete."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReceived:
    """A chunk's payload lies where `place` said, and its tag was right."""

    chunk: Chunk
    slot: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTaken:
    """The next rank has read all that it was lent of the bucket."""

    taken: Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class WordOffered:
    """This rank's word for the next exchange is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordReceived:
    """Another rank's word arrived."""

    word: Word


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
    """Add scratch slot `slot` to elements [start, stop) of the bucket; the slot is free then."""

    bucket: int
    start: int
    stop: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceLent:
    """Add elements [start, stop) of the previous rank's bucket, which it lends, to ours."""

    bucket: int
    start: int
    stop: int
    loan: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLent:
    """Copy elements [start, stop) of the previous rank's bucket, which it lends, to ours."""

    bucket: int
    start: int
    stop: int
    loan: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTaken:
    """Tell the previous rank that its memory is its own again."""

    taken: Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class SendChunk:
    """Send elements [start, stop) of the bucket to the next rank; with a loan, only their name."""

    chunk: Chunk
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOwn:
    """Copy the bucket to its own place among its contributions."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendContribution:
    """Send the contribution of rank `origin` to the next rank."""

    chunk: Chunk
    origin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SumContributions:
    """The bucket becomes the sum of its contributions, added one after another in rank order."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendWord:
    """Send the word of `word.origin` to the next rank."""

    word: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketDone:
    """The bucket holds the sum; its memory is free once everything sent has drained."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsDone:
    """Every rank's word of this exchange is here."""

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A frame that was held may be placed now."""


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


# --- where a payload goes --------------------------------------------------------------------


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
    """There is no payload to receive: it lies in the previous rank's memory.

    A chunk to be added that comes before its bucket has started has a slot all the same, whose
    memory is not used: slots bound what must be read at once when the bucket starts.
    """

    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InContributions:
    """Receive into the place of rank `origin` among the bucket's contributions."""

    bucket: int
    origin: int


Place = InScratch | InBucket | InLent | InContributions
