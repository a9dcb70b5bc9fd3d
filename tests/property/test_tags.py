"""On a data connection no frame can be damaged, dropped, repeated, moved or brought in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.errors import ErrorCode, ProtocolError
from dtd.wire import messages as m
from dtd.wire.frames import FrameDecoder
from dtd.wire.keyed_tag import KeyedTag
from dtd.wire.tags import FLAG_GCM, FLAG_XXH3, TAG_FLAGS

KEY = bytes(range(16))
# A frame that does not bear the tag that was agreed on is refused before its tag is looked at.
NOT_GENUINE = {ErrorCode.BAD_TAG, ErrorCode.BAD_FLAGS}

payloads = st.lists(st.binary(max_size=300), min_size=1, max_size=6)
later = st.sampled_from(TAG_FLAGS)


def sealed(contents: list[bytes], later: int, key: bytes = KEY) -> list[bytes]:
    tag = KeyedTag(key, later=later)
    word = m.SmallGather(generation=1, step=2, sequence=3, hop=0, origin=0, source=0)
    return [m.message_bytes(word, content, tag) for content in contents]


def opened(frames: list[bytes], later: int) -> tuple[list[bytes], ErrorCode | None]:
    """The delivered frames, and how they end."""
    delivered = []
    decoder = FrameDecoder(tag=KeyedTag(KEY, later=later))
    try:
        for frame in frames:
            delivered.extend(bytes(whole.payload) for whole in decoder.feed(frame))
        decoder.end()
    except ProtocolError as error:
        return delivered, error.code
    return delivered, None


@given(payloads, later)
def test_what_is_sealed_is_delivered(contents: list[bytes], later: int) -> None:
    assert opened(sealed(contents, later), later) == (contents, None)


@given(payloads, later, st.data())
def test_a_flipped_bit_is_never_delivered(
    contents: list[bytes], later: int, data: st.DataObject
) -> None:
    frames = sealed(contents, later)
    at = data.draw(st.integers(0, len(frames) - 1))
    bit = data.draw(st.integers(0, 8 * len(frames[at]) - 1))
    damaged = bytearray(frames[at])
    damaged[bit // 8] ^= 1 << bit % 8
    frames[at] = bytes(damaged)
    delivered, code = opened(frames, later)
    assert delivered == contents[:at]
    assert code is not None


@given(payloads, later, st.data())
def test_a_dropped_frame_is_noticed_with_the_next(
    contents: list[bytes], later: int, data: st.DataObject
) -> None:
    frames = sealed([*contents, b"one more"], later)
    at = data.draw(st.integers(0, len(contents) - 1))
    del frames[at]
    delivered, code = opened(frames, later)
    assert delivered == contents[:at]
    assert code in NOT_GENUINE


@given(payloads, later, st.data())
def test_a_repeated_frame_is_not_delivered_twice(
    contents: list[bytes], later: int, data: st.DataObject
) -> None:
    frames = sealed(contents, later)
    at = data.draw(st.integers(0, len(frames) - 1))
    frames.insert(data.draw(st.integers(at + 1, len(frames))), frames[at])
    delivered, code = opened(frames, later)
    assert delivered == contents[: len(delivered)]
    assert code in NOT_GENUINE


@given(payloads, later, st.data())
def test_swapped_frames_are_noticed(contents: list[bytes], later: int, data: st.DataObject) -> None:
    frames = sealed([*contents, b"one more"], later)
    one, other = data.draw(
        st.lists(st.integers(0, len(contents)), min_size=2, max_size=2, unique=True).map(sorted)
    )
    frames[one], frames[other] = frames[other], frames[one]
    delivered, code = opened(frames, later)
    assert delivered == contents[:one]
    assert code in NOT_GENUINE


@given(payloads, later, st.data())
def test_a_frame_of_another_connection_or_direction_is_refused(
    contents: list[bytes], later: int, data: st.DataObject
) -> None:
    """Another connection, and the other direction of this one, have other keys."""
    frames = sealed(contents, later)
    at = data.draw(st.integers(0, len(frames) - 1))
    frames[at] = sealed(contents, later, key=bytes(16))[at]
    delivered, code = opened(frames, later)
    assert delivered == contents[:at]
    assert code is ErrorCode.BAD_TAG


@given(payloads)
def test_the_weaker_tag_is_refused_where_the_stronger_was_agreed(contents: list[bytes]) -> None:
    delivered, code = opened(sealed([b"first", *contents], FLAG_XXH3), FLAG_GCM)
    assert delivered == [b"first"]
    assert code is ErrorCode.BAD_FLAGS


@pytest.mark.parametrize("later", TAG_FLAGS)
def test_a_frame_without_a_key_is_refused(later: int) -> None:
    assert opened([m.message_bytes(m.Goodbye())], later) == ([], ErrorCode.BAD_FLAGS)
