"""The lies of a worker: to the coordinator of steps, digests and other members, or to the ring.

The worker trains correctly, since false gradients are a separate subject.  Its lies are drawn at
random from the reports that its credential permits, whether or not they can be true.  In the ring
it lies about digests, hashes of shards, and which shards it holds.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from dtd.engine.control_word import DIGEST_BYTES, decode_entry, encode_entry
from dtd.engine.shard_digests import ShardDigests
from dtd.engine.shards import ShardSet
from dtd.wire import messages as m

TRUTHFUL: Final = 0.4
"""Share of true reports; a worker that always lies is soon disconnected and does little harm."""

SLANDERS: Final = 0.1
"""Share of heartbeats replaced by a claim that another member is gone or its state differs."""

SHARDS: Final = 0.5
"""Share of lies about which shards it holds, where the state is sharded."""

FORGED: Final = 0.4
"""Share of its words in the ring that a liar forges."""

MOST_WORKERS: Final = 7
FAR: Final = (3, 40, 5_000, 10**9)
"""Distances of false steps from the true one, within and beyond the length of the job."""


class Word(StrEnum):
    """Data of a rank in a small gather."""

    OTHER = "other"
    ENTRY = "entry"
    DIGEST = "digest"
    SHARDS = "shards"
    HELD = "held"
    HASHES = "hashes"


def in_ring(kind: Word, word: bytes, rng: random.Random) -> bytes:
    """A rank's word, or a lie in its place."""
    if kind is Word.OTHER or rng.random() >= FORGED:
        return word
    if kind is Word.ENTRY:
        return _entry(word, rng)
    if kind is Word.SHARDS:
        return _shard_digests(ShardDigests.decode(word), rng).encode()
    if kind is Word.HELD:
        claimed = _claimed(rng)
        return json.dumps(rng.choice(([], claimed or ShardSet.segments([0], 1).to_wire()))).encode()
    return rng.randbytes(len(word))


def _entry(word: bytes, rng: random.Random) -> bytes:
    """A control word with a false digest, one of another step, or a veto."""
    said = decode_entry(word)
    if rng.random() < 0.3:
        return encode_entry(replace(said, vote=False))
    step = said.digest_step if said.digest and rng.random() < 0.8 else rng.randint(0, 60)
    return encode_entry(replace(said, digest_step=step, digest=rng.randbytes(DIGEST_BYTES)))


def _shard_digests(said: ShardDigests, rng: random.Random) -> ShardDigests:
    """Hashes of which one is false, or further ones of shards that the rank does not hold."""
    how = rng.randrange(3)
    if how == 0 or not said.segments:
        return replace(said, common=rng.randbytes(DIGEST_BYTES))
    if how == 1:
        wrong = {rng.choice([*said.segments]): rng.randbytes(DIGEST_BYTES)}
        return replace(said, segments={**said.segments, **wrong})
    more = {index: rng.randbytes(DIGEST_BYTES) for index in range(said.cut)}
    return replace(said, segments={**more, **said.segments})


def instead_of(message: m.Message, rng: random.Random) -> m.Message:
    """The message, or a lie in its place."""
    if rng.random() < TRUTHFUL:
        return message
    if _parts(message) and rng.random() < SHARDS:
        return _of_shards(message, rng)
    if isinstance(message, m.Heartbeat) and message.generation and rng.random() < SLANDERS:
        return _slander(message, rng)
    if isinstance(message, m.Frozen) and rng.random() < 0.5:
        return replace(message, **_accusation(rng))
    return _other(message, rng.choice(FAR) * rng.choice((1, 1, -1)))


def _parts(message: m.Message) -> bool:
    """Whether a report names shards of a state."""
    if isinstance(message, m.Frozen | m.Warmed):
        return any(one.part for one in message.held)
    return isinstance(message, m.CheckpointSaved | m.Finished) and bool(message.part)


def _of_shards(message: m.Message, rng: random.Random) -> m.Message:
    """Claims to hold other shards, perhaps all, of another digest or of another size."""
    if isinstance(message, m.Frozen | m.Warmed):
        held = tuple(
            replace(one, part=_claimed(rng), digest=rng.choice((one.digest, "f0" * 16)))
            for one in message.held
        )
        return replace(message, held=held)
    if isinstance(message, m.CheckpointSaved):
        size_bytes = rng.choice((0, 1, 10**12))
        return replace(message, part=_claimed(rng), size_bytes=size_bytes)
    assert isinstance(message, m.Finished)
    return replace(message, part=_claimed(rng))


def _claimed(rng: random.Random) -> tuple[int, ...]:
    """Some shards, as messages name them; none stands for all."""
    world_size = rng.randint(1, MOST_WORKERS)
    first = rng.randrange(world_size)
    last = rng.randint(first, world_size - 1)
    part = ShardSet.segments(range(first, last + 1), world_size)
    return () if part.is_whole else tuple(part.to_wire())


def _slander(beat: m.Heartbeat, rng: random.Random) -> m.Frozen:
    """A claim to have left the generation because of a fault of another member."""
    held = m.Held(
        job=beat.job, generation=beat.generation, step=beat.step, digest="", where="memory"
    )
    return m.Frozen(
        job=beat.job,
        generation=beat.generation,
        roster_id=0,
        prepared_generation=beat.generation,
        prepared_step=beat.step,
        held=(held,),
        reason="slander",
        **_accusation(rng),
        diverged_step=beat.step,
        compared_step=beat.step,
    )


def _accusation(rng: random.Random) -> dict[str, Any]:
    """Claims that a member's process has ended, that its state differs, or that all states do."""
    suspect = rng.choice(("", f"worker-{rng.randint(1, MOST_WORKERS)}"))
    return {
        "suspect": suspect,
        "evidence": rng.choice(("diverged", "ended")) if suspect else "diverged",
        "compared_digest": rng.choice(("", "f0" * 16)),
    }


def _other(message: m.Message, by: int) -> m.Message:
    if isinstance(message, m.Frozen):
        held = tuple(replace(one, step=_moved(one.step, by)) for one in message.held)
        prepared: dict[str, Any] = {}
        if held:
            prepared = {"prepared_generation": held[0].generation, "prepared_step": held[0].step}
        return replace(message, held=held, **prepared)
    if isinstance(message, m.Warmed):
        known = m.Held(
            job=message.job, generation=1, step=_moved(0, by), digest="forged", where="checkpoint"
        )
        return replace(message, held=(known,))
    if isinstance(message, m.Agreed):
        return replace(message, digest="forged")
    if isinstance(message, m.Heartbeat | m.Running | m.Progress | m.CheckpointSaved | m.Finished):
        return replace(message, step=_moved(message.step, by))
    return message


def _moved(step: int, by: int) -> int:
    return max(0, step + by)
