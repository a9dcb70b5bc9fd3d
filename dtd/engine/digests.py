"""The digest of a sharded state, from what each rank can hash by itself.

No rank has the whole state.  Each hashes the common part, which all ranks have, and each segment
that it holds (`dtd.engine.shards`), its own one and those that it mirrors.  The ranks exchange
these hashes, and every rank computes the digest of the state: a hash over the common part and all
segments.  Where holders of a segment differ, more than half of them may have the same: that is
right, and the others differ from the state.  Otherwise nobody knows which of them is right, and all
of them differ.  The digest of a rank that differs also covers its rank, so that it is none other's.

Before shards change hands, holders compare in the same way what is about to travel (`compared`):
from one damaged copy it would reach the new owner and the new mirror alike, and nothing that they
compare afterwards would differ.

Pure.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dtd.engine.control_word import DIGEST_BYTES, NO_DIGEST_STEP, read_words
from dtd.engine.shards import ShardSet
from dtd.engine.step_protocol import StateKey
from dtd.errors import ErrorCode, ProtocolError, UnreadableWord

_HEAD: Final = struct.Struct("<HH")
_SEGMENT: Final = struct.Struct(f"<H{DIGEST_BYTES}s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDigests:
    """The hashes that one rank takes of one state.

    Attributes:
        cut: number of segments into which the state is cut.
        common: 16-byte hash of the part that all ranks have.
        segments: 16-byte hash of each segment that the rank holds, by its index.
    """

    cut: int
    common: bytes
    segments: Mapping[int, bytes]

    def encode(self) -> bytes:
        parts = [_HEAD.pack(self.cut, len(self.segments)), self.common]
        parts += [_SEGMENT.pack(index, one) for index, one in sorted(self.segments.items())]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> ShardDigests:
        """Return what `encode` was called on; raises ProtocolError if it was not."""
        begin = _HEAD.size + DIGEST_BYTES
        if len(data) < begin:
            raise _refused(f"{len(data)} bytes")
        cut, count = _HEAD.unpack_from(data)
        if len(data) != begin + count * _SEGMENT.size:
            raise _refused(f"{len(data)} bytes for {count} segments")
        pairs = [_SEGMENT.unpack_from(data, begin + n * _SEGMENT.size) for n in range(count)]
        if len(dict(pairs)) != count or any(index >= cut for index, _ in pairs):
            raise _refused(f"the segments {[index for index, _ in pairs]} of {cut}")
        return cls(cut=cut, common=data[_HEAD.size : begin], segments=dict(pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A part of a state that several ranks hold."""

    part: ShardSet
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The result of comparing the hashes of all ranks.

    Attributes:
        digests: the digest of the state as each rank has to report it, in rank order.
        disputed: the first shards in which their holders differ; None if there are none.
    """

    digests: tuple[bytes, ...]
    disputed: Shared | None


def combined(words: Sequence[bytes], cut: int) -> Tally:
    """Return the digests of a state from all ranks' `ShardDigests`, in rank order.

    Raises:
        UnreadableWord: a rank's word cannot be read, or is of another cut.
    """
    said = read_words(words, lambda word: _cut_alike(word, cut))
    shares = []
    for index in range(cut):
        hashes = {r: one.segments[index] for r, one in enumerate(said) if index in one.segments}
        shares.append((ShardSet.segments([index], cut), hashes))
    return _tally([one.common for one in said], shares)


def compared(shared: Sequence[Shared], words: Sequence[bytes]) -> Tally:
    """Return digests of parts that are about to travel, from the hashes of those that hold them.

    Args:
        shared: the parts.
        words: of all ranks, in rank order: the 16-byte hash of each part that the rank holds.

    Raises:
        UnreadableWord: a rank has not hashed just the parts that it holds.
    """
    hashes: list[dict[int, bytes]] = [{} for _ in shared]
    for rank, word in enumerate(words):
        held = [hashes[at] for at, one in enumerate(shared) if rank in one.holders]
        if len(word) != DIGEST_BYTES * len(held):
            raise UnreadableWord(rank, f"{len(word)} bytes are no hashes of {len(held)} parts")
        for at, known in enumerate(held):
            known[rank] = word[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]
    parts = (one.part for one in shared)
    return _tally([b""] * len(words), zip(parts, hashes, strict=True))


def _tally(
    commons: Sequence[bytes], shares: Iterable[tuple[ShardSet, Mapping[int, bytes]]]
) -> Tally:
    """Tally hashes of parts by holder, beside a hash of what else each rank has."""
    differing: set[int] = set()
    disputed: Shared | None = None
    right = []
    for part, hashes in shares:
        votes = list(hashes.values())
        most = max(votes, key=lambda one: (votes.count(one), one))
        right.append(most)
        majority = 2 * votes.count(most) > len(votes)
        wrong = {rank for rank, one in hashes.items() if not majority or one != most}
        if wrong and disputed is None:
            disputed = Shared(part=part, holders=tuple(sorted(hashes)))
        differing |= wrong
    digests = []
    for rank, common in enumerate(commons):
        content = hashlib.blake2b(common, digest_size=DIGEST_BYTES)
        for one in right:
            content.update(one)
        content.update(struct.pack("<q", rank if rank in differing else -1))
        digests.append(content.digest())
    return Tally(digests=tuple(digests), disputed=disputed)


def _cut_alike(word: bytes, cut: int) -> ShardDigests:
    said = ShardDigests.decode(word)
    if said.cut != cut:
        raise _refused(f"a state cut into {said.cut} segments instead of {cut}")
    return said


def _refused(what: str) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_PAYLOAD, f"hashes of shards are described by {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDigest:
    """A digest on which the ranks have not agreed yet.

    Attributes:
        step: number of committed steps of the state.
        digest: 16 bytes; empty until `combine`, if the state is sharded.
        shards: this rank's hashes of a sharded state; None for any other.
        key: the state's key, if it is to be saved; None if it is only compared.
    """

    step: int
    digest: bytes
    key: StateKey | None = None
    shards: ShardDigests | None = None


class DeferredDigest:
    """Holds at most one digest that waits for an exchange.

    Attributes:
        pending: that digest; None if none waits.
    """

    def __init__(self) -> None:
        self.pending: PendingDigest | None = None

    def take(self, step: int, taken: bytes | ShardDigests, key: StateKey | None = None) -> None:
        """Compare a digest next, replacing a pending one; that of shards is not known yet."""
        if isinstance(taken, bytes):
            self.pending = PendingDigest(step=step, digest=taken, key=key)
        else:
            self.pending = PendingDigest(step=step, digest=b"", key=key, shards=taken)

    @property
    def uncombined(self) -> tuple[int, ShardDigests] | None:
        """(step, hashes) that the ranks exchange before they can compare the pending digest."""
        pending = self.pending
        if pending is None or pending.digest or pending.shards is None:
            return None
        return pending.step, pending.shards

    def combine(self, step: int, shards: ShardDigests, digest: bytes) -> None:
        """The ranks have exchanged these hashes, which come to this digest: the pending one's?

        Hashes of an earlier generation are of other segments; their digest is not known.
        """
        if self.pending is not None and self.uncombined == (step, shards):
            self.pending = replace(self.pending, digest=digest)

    def awaits(self, step: int) -> bool:
        """Whether the state after `step` steps awaits agreement; equal on all ranks."""
        return self.pending is not None and self.pending.step == step

    def known(self, step: int) -> bytes | None:
        """The digest of the state after `step` steps, if it has been taken."""
        if self.pending is None or not self.awaits(step):
            return None
        return self.pending.digest or None

    @property
    def said(self) -> tuple[int, bytes]:
        """(step, digest) for the next control word."""
        if self.pending is None:
            return NO_DIGEST_STEP, b""
        return self.pending.step, self.pending.digest

    def matches(self, step: int, digest: bytes) -> bool:
        return self.pending is not None and (self.pending.step, self.pending.digest) == (
            step,
            digest,
        )

    def settled(self) -> PendingDigest | None:
        """Return the pending digest, on which all ranks have agreed, and clear it."""
        pending, self.pending = self.pending, None
        return pending

    def drop(self) -> None:
        self.pending = None


FAN_OUT: Final = 32
HASH_BYTES: Final = 8
_COUNT: Final = struct.Struct("!I")

Search = Generator[bytes, Sequence[bytes], int | None]


def search(hashes: Sequence[bytes], among: Collection[int] | None = None) -> Search:
    """Yields this rank's words and receives all ranks' words; returns the first differing index.

    Args:
        hashes: hashes of this rank's entries, in an order that is equal on all ranks.
        among: the ranks that have these entries; None for all.  The others pass words on.

    Returns:
        None if no entry differs.  An index may be beyond a list that is shorter than another's.

    Raises:
        UnreadableWord: a word is of another size than the round has.
    """
    counts = yield _COUNT.pack(len(hashes))
    _check(counts, _COUNT.size)
    ranks = range(len(counts)) if among is None else among
    low, high = 0, max(_COUNT.unpack(counts[rank])[0] for rank in ranks)
    while low < high:
        width = -(-(high - low) // FAN_OUT)
        starts = range(low, high, width)
        words = yield b"".join(_hash(hashes[at : min(at + width, high)]) for at in starts)
        _check(words, HASH_BYTES * len(starts))
        said = [words[rank] for rank in ranks]
        differing = (at for part, at in enumerate(starts) if len(_column(said, part)) > 1)
        first = next(differing, None)
        if first is None:
            return None
        if width == 1:
            return first
        low, high = first, min(first + width, high)
    return None


def _column(words: Sequence[bytes], part: int) -> set[bytes]:
    return {word[part * HASH_BYTES : (part + 1) * HASH_BYTES] for word in words}


def _hash(hashes: Sequence[bytes]) -> bytes:
    content = hashlib.blake2b(digest_size=HASH_BYTES)
    for one in hashes:
        content.update(one)
    return content.digest()


def _check(words: Sequence[bytes], size: int) -> None:
    for rank, word in enumerate(words):
        if len(word) != size:
            raise UnreadableWord(rank, f"word of {len(word)} bytes, not {size}, in a search")
