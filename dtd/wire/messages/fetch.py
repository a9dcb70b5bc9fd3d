"""A client that fetches a state or a checkpoint, and the worker that holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dtd.wire.fields import U32, U64, Flag, Text, list_of
from dtd.wire.messages.registry import Message, message


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
    """The requested range, as payload."""

    blob: U32
    offset: U64
