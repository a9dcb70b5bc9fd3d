"""The effects of a machine, and the places for received payloads.

The vocabulary between the pure machine (`dtd.exchange.schedule.machine`) and its shells
(`dtd.exchange.node`, the simulation).  Indices only, never bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtd.wire.messages import Chunk, ShmReleased, SmallGather


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Add scratch slot `slot` to elements [start, stop) of the bucket, and free the slot."""

    bucket: int
    start: int
    stop: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceShared:
    """Add elements [start, stop) of the previous rank's shared bucket to this rank's."""

    bucket: int
    start: int
    stop: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyShared:
    """Copy elements [start, stop) of the previous rank's shared bucket to this rank's."""

    bucket: int
    start: int
    stop: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReleased:
    """Tell the previous rank that its shared memory is no longer read."""

    released: ShmReleased


@dataclass(frozen=True, slots=True, kw_only=True)
class SendChunk:
    """Send elements [start, stop) of the bucket to a rank; only the header if shared."""

    rank: int
    chunk: Chunk
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOwn:
    """Copy the bucket to this rank's place among the contributions."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendContribution:
    """Send the contribution of rank `origin` to a rank."""

    rank: int
    chunk: Chunk
    origin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SumContributions:
    """Replace the bucket by the sum of its contributions."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendGather:
    """Send the entry of `gather.origin` to a rank."""

    rank: int
    gather: SmallGather


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketDone:
    """The bucket holds the result; its memory may change once everything sent has drained."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherDone:
    """Every rank's entry of this small gather has arrived."""

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The held frame of a rank's link may be placed now."""

    rank: int


Effect = (
    Reduce
    | ReduceShared
    | CopyShared
    | SendReleased
    | SendChunk
    | KeepOwn
    | SendContribution
    | SumContributions
    | SendGather
    | BucketDone
    | GatherDone
    | Resume
)


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
class InShared:
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


Place = InScratch | InBucket | InShared | InContributions
