"""Tags: what proves that a frame is whole, and on a data connection whose it is and in which place.

Pure (protocol.md, "Frames" and "Data connections").  A tag is computed over prefix and header
together, then the payload.  `CHECKSUM` has no key: control connections, and all that is said before
two sides have a key; after that it is `dtd.wire.keyed_tag`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final, Protocol

import xxhash

TAG_BYTES: Final = 16
FLAG_XXH3: Final = 0x01
FLAG_GCM: Final = 0x02
TAG_FLAGS: Final = (FLAG_XXH3, FLAG_GCM)
"""The weaker first."""


class Tag(Protocol):
    """How the frames of one direction of a connection are sealed, in their order.

    Attributes:
        flag: what the next frame states in its flags.
        admits: the flags with which a frame is received at all.
        digest: 16 bytes for the next frame, of prefix + header and payload.
        same: whether two digests are; with a key, without telling by its time how far they are.
    """

    flag: int
    admits: tuple[int, ...]
    digest: Callable[[bytes, bytes | memoryview], bytes]
    same: Callable[[bytes, bytes], bool]


def checksum(head: bytes, payload: bytes | memoryview) -> bytes:
    """XXH3, 128 bits: finds damage, authenticates nobody."""
    if not payload:
        return xxhash.xxh3_128_digest(head)
    hasher = xxhash.xxh3_128(head)
    hasher.update(payload)
    return hasher.digest()


class Checksum:
    """The tag without a key."""

    def __init__(self, *, admits: tuple[int, ...] = (FLAG_XXH3,)) -> None:
        self.flag = FLAG_XXH3
        self.admits = admits
        self.digest: Callable[[bytes, bytes | memoryview], bytes] = checksum
        self.same: Callable[[bytes, bytes], bool] = operator.eq


CHECKSUM: Final = Checksum()

UNDECIDED: Final = Checksum(admits=(FLAG_XXH3, FLAG_GCM))
"""For an opener whose HELLO is under way: a refusal has no key, and WELCOME brings one."""
