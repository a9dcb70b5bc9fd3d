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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dtd.engine.control_word import DIGEST_BYTES, read_words
from dtd.engine.shards import Division, ShardSet
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
        """Return it as a word of the ring."""
        parts = [_HEAD.pack(self.cut, len(self.segments)), self.common]
        parts += [_SEGMENT.pack(index, one) for index, one in sorted(self.segments.items())]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> ShardDigests:
        """Return what `encode` was called on.

        Raises:
            ProtocolError: BAD_PAYLOAD if it was not.
        """
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
    """A part of a state that several ranks hold.

    Attributes:
        part: the shards.
        holders: the ranks, in ascending order.
    """

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


def combined(words: Sequence[bytes], division: Division) -> Tally:
    """Return the digests of a state that all ranks have hashed, each the segments that it holds.

    Args:
        words: `ShardDigests` of all ranks, in rank order.
        division: which rank holds which segments.

    Raises:
        UnreadableWord: a rank's word cannot be read, lacks the segment that the rank owns, or has
            one that the rank does not hold: otherwise a rank could dispute any.
    """
    cut = division.segments
    said = read_words(words, lambda word: _cut_alike(word, cut))
    _check_holders(said, division)
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


def _check_holders(said: Sequence[ShardDigests], division: Division) -> None:
    """Check that each rank has hashed the segment that it owns, and none that it does not hold."""
    for rank, one in enumerate(said):
        held = division.held(rank)
        lacks = [index for index in held[:1] if index not in one.segments]
        if lacks:
            raise UnreadableWord(rank, f"it lacks the hash of its own segment {lacks[0]}")
        strange = sorted(one.segments.keys() - set(held))
        if strange:
            raise UnreadableWord(rank, f"it has a hash of segment {strange[0]}, of another's")


def _refused(what: str) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_PAYLOAD, f"hashes of shards are described by {what}")
