"""Between workers: a rank and the next one; a fetching client and a holder (protocol.md)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Final

from dtd.wire.fields import U8, U16, U32, U64, Flag, Generation, Octets, Text, list_of
from dtd.wire.messages.registry import Message, message

MAX_LENT: Final = 3072
"""Most buckets that one SHM_OFFER can name: their offsets fit in a header, at any size."""


class Phase(enum.IntEnum):
    """The two phases of a segmented ring all-reduce, the exchange of a small bucket, and the star.

    On a star (protocol.md, "Star") ranks push their contributions to servers, which pass sums on to
    the mirrors and let all ranks pull what they own.
    """

    REDUCE_SCATTER = 0
    ALL_GATHER = 1
    EXCHANGE = 2
    PUSH = 3
    SUMMED = 4
    PULL = 5


@message
class Chunk(Message):
    """One chunk of one bucket on its way around the ring; the payload is its elements.

    With shared memory there is no payload: the elements are in memory that the sender shares.
    """

    generation: Generation
    step: U64
    phase: U8
    hop: U16
    bucket: U16
    chunk: U32
    source: U16
    loan: U64 = 0


@message
class CodedChunk(Message):
    """A chunk whose payload is coded: the fields of CHUNK, and the form of the elements."""

    generation: Generation
    step: U64
    phase: U8
    hop: U16
    bucket: U16
    chunk: U32
    source: U16
    plain_bytes: U32
    item_bytes: U8


@message
class SmallGather(Message):
    """One rank's word of a small gather on its way down its tree; the payload is the word."""

    generation: Generation
    step: U64
    sequence: U64
    hop: U16
    origin: U16
    source: U16


@message
class LinkHeartbeat(Message):
    """Sent in both directions of a ring link at the heartbeat interval: this side is alive."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class ShmRegion:
    """Place of one bucket in shared memory: bytes from the file's beginning; 0: not shared."""

    offset: U64


@message
class ShmOffer(Message):
    """To a next rank on the same host: the file that holds this process's buckets.

    `lots` has one entry for each bucket of a step, in their order.
    """

    generation: Generation
    number: U64
    nonce: Octets
    size_bytes: U64
    lots: Annotated[tuple[ShmRegion, ...], list_of(ShmRegion, MAX_LENT)]


@message
class ShmRequest(Message):
    """The next rank asks for the file of this SHM_OFFER, to be sent to the socket at this path."""

    generation: Generation
    number: U64
    socket: Text


@message
class ShmMapped(Message):
    """The next rank has mapped the file of the SHM_OFFER of this number."""

    generation: Generation
    number: U64


@message
class ShmReleased(Message):
    """The next rank has read everything that was shared with it of a bucket."""

    generation: Generation
    step: U64
    bucket: U16


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInfo:
    """One piece of fetchable bytes."""

    name: Text
    size_bytes: U64


@message
class FetchOpen(Message):
    """Ask for a resource: "state/GENERATION", "checkpoint/DIRECTORY/NAME" or "model/VERSION"."""

    resource: Text


@message
class FetchInfo(Message):
    """The blobs of the resource, in order; the payload is its manifest."""

    blobs: Annotated[tuple[BlobInfo, ...], list_of(BlobInfo, 16384)]
    more: Flag = False


@message
class FetchRange(Message):
    """Ask for a range of one blob of the open resource."""

    blob: U32
    offset: U64
    length: U32


@message
class FetchData(Message):
    """The requested range, as payload; coded if `plain_bytes`, its own length, is not 0."""

    blob: U32
    offset: U64
    plain_bytes: U32 = 0
    item_bytes: U8 = 0
