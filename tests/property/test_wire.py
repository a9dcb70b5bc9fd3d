"""Whatever arrives, the decoder yields frames or raises ProtocolError, in bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.errors import ErrorCode, ProtocolError
from dtd.event_names import NOTICES
from dtd.text.names import NAME
from dtd.wire import fields, frames
from dtd.wire import messages as m
from dtd.wire.frames import HOLD, FrameDecoder, Header, Hold, _any_map, _flat_map
from dtd.wire.step_rows import STEP_ROW_BYTES

LIMIT_BYTES = 4096
TYPES = sorted(m.message_types().values(), key=m.message_name)

plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def nesting(value: Any) -> int:
    """Containers on the longest way down."""
    inside = value.values() if isinstance(value, dict) else value
    return 1 + max(map(nesting, inside), default=0) if isinstance(value, dict | list) else 0


maps = st.dictionaries(st.text(max_size=9), plain_values, max_size=4).filter(
    lambda value: nesting(value) <= 7
)
PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "u8": st.integers(0, 2**8 - 1),
    "u16": st.integers(0, 2**16 - 1),
    "u32": st.integers(0, 2**32 - 1),
    "u64": st.integers(0, 2**63 - 1),
    "generation": st.integers(0, 2**63 - 1),
    "f64": st.floats(allow_nan=False, allow_infinity=False),
    "figure": st.floats(),
    "seconds": st.just(0.0) | st.floats(1e-9, 1e9),
    "bool": st.booleans(),
    "line<=255": st.text(PRINTABLE, max_size=255),
    "name": st.from_regex(NAME, fullmatch=True),
    "notice": st.sampled_from(sorted(NOTICES)),
    "text<=4096": st.text(max_size=300),
    "text<=16384": st.text(max_size=300),
    "words<=4096": st.text(max_size=300),
    "host": st.from_regex(r"[A-Za-z0-9._:%-]{0,253}", fullmatch=True),
    "hosts<=8": st.lists(st.ip_addresses().map(str), max_size=8).map(tuple),
    "octets<=64": st.binary(max_size=64),
    "octets<=16384": st.integers(0, 2).map(lambda rows: bytes(rows * STEP_ROW_BYTES)),
    "map": maps,
    "names<=2048": st.lists(st.text(PRINTABLE, max_size=9), max_size=4).map(tuple),
    "shards<=256": st.lists(st.integers(0, 65536), max_size=8).map(tuple),
    "map of figure": st.dictionaries(
        st.text(PRINTABLE, min_size=1, max_size=9), st.floats(), max_size=4
    ),
}


def records(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Records and messages with any valid values."""
    return st.builds(
        cls, **{name: values(kind) for name, kind, _check, _required in fields.layout(cls)}
    )


def values(kind: str) -> st.SearchStrategy[Any]:
    if kind in KINDS:
        return KINDS[kind]
    limit, name = kind.removeprefix("list<=").split(" of ")
    return st.lists(records(getattr(m, name)), max_size=min(3, int(limit))).map(tuple)


messages = st.sampled_from(TYPES).flatmap(records)
payloads = st.binary(max_size=LIMIT_BYTES)
streams = st.lists(st.tuples(messages, payloads), min_size=1, max_size=4)


def cut(data: bytes, lengths: list[int]) -> list[bytes]:
    """The data in pieces of these lengths, again and again."""
    pieces = []
    start = turn = 0
    while start < len(data):
        length = lengths[turn % len(lengths)]
        pieces.append(data[start : start + length])
        start, turn = start + length, turn + 1
    return pieces


def same(ours: Any, theirs: Any) -> bool:
    """Equal, with NaN equal to itself."""
    return repr(ours) == repr(theirs)


@pytest.mark.parametrize("cls", TYPES, ids=m.message_name)
def test_every_message_with_any_values_comes_back(cls: type[Any]) -> None:
    @settings(max_examples=15, deadline=None)
    @given(message=records(cls))
    def check(message: Any) -> None:
        [frame] = FrameDecoder().feed(m.message_bytes(message))
        again = m.decode_message(frame.header)
        assert same(again, message)
        assert m.encode_header(again) == m.encode_header(message)

    check()


@settings(max_examples=75, deadline=None)
@given(
    stream=streams,
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    staging_bytes=st.integers(0, 600),
)
def test_streams_come_back_in_any_split(
    stream: list[tuple[Any, bytes]], lengths: list[int], staging_bytes: int
) -> None:
    data = b"".join(m.message_bytes(message, payload) for message, payload in stream)
    decoder = FrameDecoder(max_payload_bytes=LIMIT_BYTES, staging_bytes=staging_bytes)
    found = [frame for piece in cut(data, lengths) for frame in decoder.feed(piece)]
    decoder.end()
    assert len(found) == len(stream)
    for frame, (message, payload) in zip(found, stream, strict=True):
        assert same(m.decode_message(frame.header), message)
        assert bytes(frame.payload) == payload


@settings(max_examples=50, deadline=None)
@given(
    stream=streams,
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    answers=st.lists(st.booleans(), min_size=1),
)
def test_holding_now_and_then_changes_nothing(
    stream: list[tuple[Any, bytes]], lengths: list[int], answers: list[bool]
) -> None:
    asked = 0

    def place(_header: Header, payload_bytes: int) -> memoryview | Hold:
        nonlocal asked
        asked += 1
        hold = answers[asked % len(answers)] and asked % 3
        return HOLD if hold else memoryview(bytearray(payload_bytes))

    decoder = FrameDecoder(place, max_payload_bytes=LIMIT_BYTES)
    waiting = b"".join(m.message_bytes(message, payload) for message, payload in stream)
    found: list[frames.Frame] = []
    turn = 0
    while waiting or decoder.held:
        if decoder.held:
            found += decoder.resume()
            continue
        buffer = decoder.next_buffer()
        count = min(len(buffer), len(waiting), lengths[turn % len(lengths)])
        turn += 1
        buffer[:count] = waiting[:count]
        waiting = waiting[count:]
        found += decoder.received(count)
    decoder.end()
    assert [bytes(frame.payload) for frame in found] == [payload for _, payload in stream]


# --- hostile ---------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Good frames with bytes flipped, inserted and deleted."""
    data = bytearray(
        b"".join(m.message_bytes(message, payload) for message, payload in draw(streams))
    )
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["flip", "insert", "delete"]))
        if how == "insert":
            data[position:position] = draw(st.binary(min_size=1, max_size=20))
        elif how == "delete":
            del data[position : position + draw(st.integers(1, 20))]
        elif position < len(data):
            data[position] ^= draw(st.integers(1, 255))
    return bytes(data)


@st.composite
def framed_garbage(draw: st.DrawFn) -> bytes:
    """A frame whose prefix and tag are right and whose header is anything."""
    return frames.frame_bytes(draw(st.binary(max_size=200)), draw(st.binary(max_size=50)))


garbage = st.binary(max_size=300)
hostile = damaged() | framed_garbage() | garbage | garbage.map(lambda data: frames.MAGIC + data)


@settings(max_examples=150, deadline=None)
@given(data=hostile, lengths=st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_hostile_bytes_give_frames_or_protocol_errors(data: bytes, lengths: list[int]) -> None:
    def connect(pieces: list[bytes]) -> ProtocolError | None:
        decoder = FrameDecoder(max_payload_bytes=LIMIT_BYTES)
        try:
            for piece in pieces:
                for frame in decoder.feed(piece):
                    m.decode_message(frame.header)
            decoder.end()
        except ProtocolError as error:
            return error
        return None

    error = connect(cut(data, lengths))
    if error is not None:
        answer = m.Error(code=error.code, message=error.message, remedy=error.remedy)
        assert len(m.encode_header(answer)) < 1000


@settings(max_examples=100, deadline=None)
@given(header=maps, rest=garbage)
def test_one_pass_over_a_header_finds_what_two_would(header: dict[str, Any], rest: bytes) -> None:
    whole = msgpack.packb(header)
    nested = any(
        type(value) is dict or (type(value) is list and value) for value in header.values()
    )
    assert (_flat_map(whole) is None) == nested
    for data in (whole, rest, whole[:-1] + rest):
        flat = _flat_map(data)
        assert flat is None or same(flat, _any_map(data))


@settings(max_examples=75, deadline=None)
@given(data=hostile)
def test_hostile_bytes_take_bounded_memory(data: bytes) -> None:
    decoder = FrameDecoder(max_payload_bytes=LIMIT_BYTES)
    tracemalloc.start()
    try:
        for frame in decoder.feed(data):
            del frame
    except ProtocolError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 60_000 + 60 * len(data) + LIMIT_BYTES


@settings(max_examples=60, deadline=None)
@given(data=damaged())
def test_damage_is_seen_the_same_way_in_any_split(data: bytes) -> None:
    assert outcome([data]) == outcome(cut(data, [1]))


def outcome(pieces: list[bytes]) -> tuple[list[bytes], ErrorCode | None]:
    decoder = FrameDecoder(max_payload_bytes=LIMIT_BYTES)
    found: list[bytes] = []
    try:
        for piece in pieces:
            found.extend(bytes(frame.payload) for frame in decoder.feed(piece))
        decoder.end()
    except ProtocolError as error:
        return found, error.code
    return found, None


@settings(max_examples=50, deadline=None)
@given(header=maps, number=st.sampled_from(sorted(m.message_types())))
def test_any_map_is_a_message_or_a_protocol_error(header: dict[str, Any], number: int) -> None:
    try:
        message = m.decode_message({**header, "t": number})
    except ProtocolError:
        return
    assert m.message_types()[number] is type(message)
