"""The events and effects of a star, and the places for received payloads.

The vocabulary between the pure machine (`dtd.exchange.star.machine`) and its shell
(`dtd.exchange.star_node`).  Steps and buckets are announced as to a ring
(`dtd.exchange.ring.events`); links are named by the rank at their other end.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtd.exchange.ring.events import BucketDone, BucketsAdded, BucketStarted, InBucket, StepOpened
from dtd.wire.messages import Chunk

# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkArrived:
    """A chunk's payload is at the place given by `place`, and its tag was correct."""

    chunk: Chunk


Event = StepOpened | BucketsAdded | BucketStarted | ChunkArrived


# --- effects ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTo:
    """Send elements [start, stop) of the bucket to a rank."""

    rank: int
    chunk: Chunk
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFrom:
    """Add what has arrived in the scratch memory of a rank's link to [start, stop)."""

    rank: int
    bucket: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeLink:
    """The held frame of a rank's link may be placed now."""

    rank: int


Effect = SendTo | AddFrom | BucketDone | ResumeLink


# --- places for payloads ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InScratchOf:
    """Receive into the scratch memory of this rank's link, of which each link has one."""

    rank: int


Place = InBucket | InScratchOf
