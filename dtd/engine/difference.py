"""Finds the first entry of a state in which ranks differ: an in-band search over hashes.

Every rank has a list of entries (parameters, buffers, optimizer state, counters) and a short hash
of each.  A round exchanges the hashes of a few ranges of that list; the first range that is not the
same everywhere is searched in the next round.  All ranks see the same words and take the same path,
so a state of a million entries takes four rounds of 256 bytes.  Pure: words in, words out; the
shells are `dtd.train.agreement` and the simulation.  The words are in protocol.md, "Control
word".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Generator, Sequence
from typing import Final

from dtd.errors import UnreadableWord

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
