"""Tags: what they are computed over, and how a keyed one counts frames."""

from __future__ import annotations

import pytest
import xxhash
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dtd.wire.keyed_tag import KeyedTag
from dtd.wire.tags import (
    CHECKSUM,
    FLAG_GCM,
    FLAG_XXH3,
    TAG_FLAGS,
    UNDECIDED,
)

KEY = bytes(range(16))
SIZES = [0, 1, 100, 64 * 1024, 64 * 1024 + 1, 1 << 20]


def keyed(later: int = FLAG_GCM, key: bytes = KEY) -> KeyedTag:
    return KeyedTag(key, later=later)


def past_the_first(later: int) -> KeyedTag:
    tag = keyed(later)
    tag.digest(b"first", b"")
    return tag


@pytest.mark.parametrize("size", SIZES)
def test_a_checksum_is_xxh3_over_all_of_the_frame(size: int) -> None:
    payload = bytes(size)
    assert CHECKSUM.digest(b"head", payload) == xxhash.xxh3_128_digest(b"head" + payload)
    assert CHECKSUM.digest(b"head", memoryview(payload)) == CHECKSUM.digest(b"head", payload)


@pytest.mark.parametrize("size", SIZES)
def test_a_keyed_tag_is_that_of_gcm_numbered_from_zero(size: int) -> None:
    payload, tag = bytes(size), keyed()
    for number in range(3):
        nonce = number.to_bytes(12)
        expected = AESGCM(KEY).encrypt(nonce, b"head", payload)[len(b"head") :]
        assert tag.digest(b"head", memoryview(payload)) == expected
        assert (tag.flag, tag.admits) == (FLAG_GCM, (FLAG_GCM,))


@pytest.mark.parametrize("later", TAG_FLAGS)
def test_the_first_frame_is_always_gcm(later: int) -> None:
    tag = keyed(later)
    assert tag.flag == FLAG_GCM
    assert tag.digest(b"head", b"") == keyed().digest(b"head", b"")
    assert (tag.flag, tag.admits) == (later, (later,))


@pytest.mark.parametrize("later", TAG_FLAGS)
@pytest.mark.parametrize("size", SIZES)
def test_head_and_payload_are_both_covered(later: int, size: int) -> None:
    """Also where a frame has no payload, and where either is all that differs."""
    contents = [(b"head", bytes(size)), (b"heap", bytes(size)), (b"head", bytes(size) + b"1")]
    tags = [past_the_first(later).digest(head, payload) for head, payload in contents]
    assert len(set(tags)) == len(contents)


def test_a_peer_that_awaits_a_welcome_takes_a_refusal_without_a_key() -> None:
    assert UNDECIDED.admits == TAG_FLAGS
    assert UNDECIDED.flag == FLAG_XXH3
    assert UNDECIDED.digest(b"head", b"") == CHECKSUM.digest(b"head", b"")
