"""The keyed tag that authenticates each side of a data connection to the other (protocol.md).

Pure.  A `KeyedTag` belongs to one direction of one connection and counts its frames, so that a
dropped, repeated, reordered or foreign frame is detected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from hmac import compare_digest
from typing import Final

import xxhash
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dtd.wire import messages as m
from dtd.wire.data_keys import ACCEPTOR, OPENER, session_key
from dtd.wire.tags import FLAG_GCM, FLAG_XXH3, TAG_BYTES

_NUMBER_BYTES: Final = 12
_SALT_BYTES: Final = 16


class KeyedTag:
    """The tag of one direction of a data connection; the first frame's is always GCM.

    Args:
        key: the key of this direction, 16 bytes (`dtd.wire.data_keys.session_key`).
        later: FLAG_GCM or FLAG_XXH3, the tag of all frames but the first.
    """

    def __init__(self, key: bytes, *, later: int) -> None:
        self.flag = FLAG_GCM
        self.admits: tuple[int, ...] = (FLAG_GCM,)
        self.digest: Callable[[bytes, bytes | memoryview], bytes] = self._first
        self.same: Callable[[bytes, bytes], bool] = compare_digest
        self._cipher = AESGCM(key)
        self._later = later
        self._salt = int.from_bytes(hashlib.blake2b(key, digest_size=_SALT_BYTES - 1).digest())
        self._number = 0

    def _first(self, head: bytes, payload: bytes | memoryview) -> bytes:
        tag = self._gcm(head, payload)
        if self._later == FLAG_XXH3:
            self.flag, self.admits, self.digest = FLAG_XXH3, (FLAG_XXH3,), self._salted
        else:
            self.digest = self._gcm
        return tag

    def _gcm(self, head: bytes, payload: bytes | memoryview) -> bytes:
        """AES-128-GCM of the head, with the payload as additional authenticated data.

        One call covers both without copying; the head's ciphertext is not sent.
        """
        nonce = self._number.to_bytes(_NUMBER_BYTES)
        self._number += 1
        return self._cipher.encrypt(nonce, head, payload)[-TAG_BYTES:]

    def _salted(self, head: bytes, payload: bytes | memoryview) -> bytes:
        """XXH3 over a salt that is known only to the two sides and that counts the frames.

        It detects damage, loss and confusion of frames, and stops no attacker: XXH3 is no MAC, and
        an attacker who can change a frame needs no salt.
        """
        self._number += 1
        head = (self._salt + self._number).to_bytes(_SALT_BYTES) + head
        if not payload:
            return xxhash.xxh3_128_digest(head)
        hasher = xxhash.xxh3_128(head)
        hasher.update(payload)
        return hasher.digest()


def keyed_tags(
    secret: bytes, hello: m.Hello, hello_header: bytes, welcome: m.Welcome
) -> tuple[KeyedTag, KeyedTag]:
    """The tags of the frames sent by the opening side, and of those sent by the accepting side.

    Args:
        secret: the secret shared by both sides, 32 bytes.
        hello: the opening side's HELLO.
        hello_header: the header of that frame as it was on the wire.
        welcome: the accepting side's answer; it states the tag of all later frames.
    """

    def tag(sender: str) -> KeyedTag:
        key = session_key(
            secret,
            hello=hello_header,
            hello_nonce=hello.nonce,
            welcome_nonce=welcome.nonce,
            sender=sender,
        )
        return KeyedTag(key, later=welcome.tag)

    return tag(OPENER), tag(ACCEPTOR)
