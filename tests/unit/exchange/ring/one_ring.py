"""One ring machine, driven by hand."""

from __future__ import annotations

import pytest

from dtd.errors import ProtocolError
from dtd.exchange.ring.chunks import BucketShape, cut
from dtd.exchange.ring.events import (
    BucketStarted,
    BucketTaken,
    ChunkReceived,
    Effect,
    InBucket,
    InLent,
    InScratch,
    StepOpened,
    WordReceived,
)
from dtd.exchange.ring.machine import Ring
from dtd.wire.messages import Chunk, Phase, ShmReleased, SmallGather

SCATTER, GATHER = Phase.REDUCE_SCATTER, Phase.ALL_GATHER
GENERATION = 5
ITEM_BYTES = 4
CHUNK_BYTES = 8  # two elements
LOAN = 7


def make(
    rank: int = 0,
    world_size: int = 3,
    *,
    slots: int = 4,
    first_step: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
) -> Ring:
    return Ring(
        rank=rank,
        world_size=world_size,
        generation=GENERATION,
        first_step=first_step,
        chunk_bytes=chunk_bytes,
        scratch_slots=slots,
    )


def open_step(
    ring: Ring, *elements: int, step: int = 0, loan: int = 0, lent: tuple[int, ...] = ()
) -> list[Effect]:
    shapes = tuple(BucketShape(elements=count, item_bytes=ITEM_BYTES) for count in elements)
    event = StepOpened(step=step, buckets=shapes, loan=loan, lent=frozenset(lent))
    return ring.handle(event, 0.0)


def start(ring: Ring, bucket: int = 0) -> list[Effect]:
    return ring.handle(BucketStarted(bucket=bucket), 0.0)


def incoming(
    ring: Ring, phase: int, hop: int, chunk: int = 0, *, bucket: int = 0, **changed: int
) -> Chunk:
    values = {"generation": GENERATION, "step": ring.step, "source": _before(ring)} | changed
    return Chunk(phase=phase, hop=hop, bucket=bucket, chunk=chunk, **values)


def word(ring: Ring, origin: int, sequence: int = 0, **changed: int) -> SmallGather:
    values = {
        "generation": GENERATION,
        "step": ring.step,
        "source": _before(ring),
        "hop": (_before(ring) - origin) % ring.world_size,
    } | changed
    return SmallGather(origin=origin, sequence=sequence, **values)


def _before(ring: Ring) -> int:
    return (ring.rank - 1) % ring.world_size


def chunk_bytes(ring: Ring, chunk: Chunk, elements: int) -> int:
    offset = 1 if chunk.phase == SCATTER else 0
    segment = (ring.rank - chunk.hop - offset) % ring.world_size
    shape = BucketShape(elements=elements, item_bytes=ITEM_BYTES)
    first, last = cut(shape, world_size=ring.world_size, chunk_bytes=CHUNK_BYTES).chunk(
        segment, chunk.chunk
    )
    return (last - first) * ITEM_BYTES


def deliver(ring: Ring, chunk: Chunk, elements: int) -> list[Effect]:
    place = ring.place(chunk, 0 if chunk.loan else chunk_bytes(ring, chunk, elements))
    assert isinstance(place, InScratch | InBucket | InLent)
    slot = place.slot if isinstance(place, InScratch | InLent) else None
    effects = ring.handle(ChunkReceived(chunk=chunk, slot=slot), 0.0)
    ring.check_invariants()
    return effects


def deliver_word(ring: Ring, message: SmallGather) -> list[Effect]:
    assert ring.accept_word(message) is None
    return ring.handle(WordReceived(word=message), 0.0)


def refusal(ring: Ring, chunk: Chunk, payload_bytes: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        ring.place(chunk, payload_bytes)
    ring.check_invariants()
    return caught.value


def word_refusal(ring: Ring, message: SmallGather) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        ring.accept_word(message)
    return caught.value


def takes(ring: Ring, bucket: int = 0, **changed: int) -> list[Effect]:
    """The next rank says that it has read what it was lent."""
    values = {"generation": GENERATION, "step": ring.step} | changed
    effects = ring.handle(BucketTaken(taken=ShmReleased(bucket=bucket, **values)), 0.0)
    ring.check_invariants()
    return effects


def lent_refusal(ring: Ring, bucket: int = 0, **changed: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        takes(ring, bucket, **changed)
    return caught.value
