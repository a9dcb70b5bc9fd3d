"""Tags: proof of a frame's integrity and, on a data connection, of its sender and position.

Pure (protocol.md, "Frames" and "Data connections").  A tag is computed over prefix and header
together, then the payload.  `CHECKSUM` has no key: it is used on control connections, and until two
sides have a key; afterwards `dtd.wire.keyed_tag` is used.
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
"""In order of strength, weakest first."""


class Tag(Protocol):
    """The tag of the frames of one direction of a connection, in their order.

    Attributes:
        flag: the value of the next frame's flags.
        admits: the flags with which a frame is accepted.
        digest: 16 bytes for the next frame, of prefix + header and payload.
        same: whether two digests are equal; with a key, in constant time.
    """

    flag: int
    admits: tuple[int, ...]
    digest: Callable[[bytes, bytes | memoryview], bytes]
    same: Callable[[bytes, bytes], bool]


def checksum(head: bytes, payload: bytes | memoryview) -> bytes:
    """XXH3, 128 bits: detects damage, authenticates nothing."""
    if not payload:
        return xxhash.xxh3_128_digest(head)
    hasher = xxhash.xxh3_128(head)
    hasher.update(payload)
    return hasher.digest()


class Checksum:
    """The unkeyed tag."""

    def __init__(self, *, admits: tuple[int, ...] = (FLAG_XXH3,)) -> None:
        self.flag = FLAG_XXH3
        self.admits = admits
        self.digest: Callable[[bytes, bytes | memoryview], bytes] = checksum
        self.same: Callable[[bytes, bytes], bool] = operator.eq


CHECKSUM: Final = Checksum()

UNDECIDED: Final = Checksum(admits=(FLAG_XXH3, FLAG_GCM))
"""For an opener that has sent HELLO: a refusal is unkeyed, WELCOME is keyed."""
