"""The control word: what every rank says, and the one verdict that all ranks reach."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.engine.control_word import (
    DIGEST_BYTES,
    NO_DIGEST_STEP,
    Comparison,
    ControlEntry,
    ControlWord,
    Flags,
    compare,
    decode_entry,
    encode_entry,
    reduce_entries,
)
from dtd.errors import ErrorCode, ProtocolError

A, B, C = (bytes([value]) * DIGEST_BYTES for value in (1, 2, 3))
ENTRY = struct.Struct("!BBq16s")


def reduced(*entries: ControlEntry) -> ControlWord:
    return reduce_entries([encode_entry(entry) for entry in entries])


def with_digest(digest: bytes, step: int = 7) -> ControlEntry:
    return ControlEntry(digest=digest, digest_step=step)


# --- entries ---------------------------------------------------------------------------------

digests = st.one_of(
    st.just((NO_DIGEST_STEP, b"")),
    st.tuples(st.integers(0, 2**63 - 1), st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)),
)


@st.composite
def control_entries(draw: st.DrawFn) -> ControlEntry:
    step, digest = draw(digests)
    return ControlEntry(
        flags=Flags(*(draw(st.booleans()) for _ in Flags._fields)),
        digest_step=step,
        digest=digest,
    )


@given(entry=control_entries())
def test_an_entry_survives_the_wire(entry: ControlEntry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


def test_the_layout_is_the_documented_one() -> None:
    entry = ControlEntry(flags=Flags(checkpoint=True), digest_step=7, digest=A)
    assert encode_entry(entry) == ENTRY.pack(1, 0x04, 7, A)


def raw(layout: int = 1, flags: int = 0x04, step: int = -1) -> bytes:
    return ENTRY.pack(layout, flags, step, bytes(16))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes, not 26"),
        (raw()[:-1], "25 bytes, not 26"),
        (raw() + b"\0", "27 bytes, not 26"),
        (raw(layout=2), "format 2"),
        (raw(flags=0x41), "flags 0x41"),
        (raw(flags=0x03), "flags 0x03"),
        (raw(step=-2), "digest of step -2"),
    ],
)
def test_a_payload_that_is_no_entry_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why) as caught:
        decode_entry(data)
    assert caught.value.code == ErrorCode.BAD_PAYLOAD


@given(
    data=st.binary(max_size=80) | st.binary(max_size=17).map(lambda tail: (raw()[:9] + tail)[:26])
)
def test_any_bytes_are_an_entry_or_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(decode_entry(data).digest) in (0, DIGEST_BYTES)


# --- the verdict -----------------------------------------------------------------------------


def test_a_digest_of_another_step_dissents_though_its_bytes_are_equal() -> None:
    word = reduced(with_digest(A, step=7), with_digest(A, step=7), with_digest(A, step=6))
    assert word.compared == Comparison(dissenters=(2,), majority=True)


@given(tied=st.permutations([with_digest(A), with_digest(A), with_digest(B), with_digest(B)]))
def test_a_tie_is_decided_by_the_digests_not_by_the_ranks(tied: list[ControlEntry]) -> None:
    compared = reduced(*tied).compared
    assert compared is not None
    assert [tied[rank].digest for rank in compared.dissenters] == [A, A]


@given(entries=st.lists(control_entries(), min_size=1, max_size=9))
def test_the_verdict_is_the_and_or_or_of_the_entries(entries: list[ControlEntry]) -> None:
    word = reduced(*entries)
    for field in Flags._fields:
        assert getattr(word.flags, field) == any(getattr(e.flags, field) for e in entries)
    if word.compared is None:
        assert word.commit
        assert not any(entry.digest for entry in entries)
    else:
        assert word.commit == (not word.compared.dissenters)
        assert len(word.compared.dissenters) < len(entries)


@pytest.mark.parametrize(
    ("digests", "dissenters", "majority"),
    [
        ([A], (), True),
        ([A, A, A], (), True),
        ([A, B, A], (1,), True),
        ([A, B], (0,), False),
        ([B, A, A, B], (1, 2), False),
        ([A, B, B, B], (0,), True),
        ([b"1" * 16, b"2" * 16, b"3" * 16], (0, 1), False),
    ],
)
def test_a_majority_is_more_than_half(
    digests: list[bytes], dissenters: tuple[int, ...], majority: bool
) -> None:
    expected = Comparison(dissenters=dissenters, majority=majority)
    assert reduced(*(with_digest(digest) for digest in digests)).compared == expected
    assert compare([(3, digest) for digest in digests]) == expected


@pytest.mark.parametrize(
    ("digests", "voters", "dissenters", "majority"),
    [
        ([A, B, A], {0, 1}, (0, 2), False),
        ([A, B, B], {0, 1}, (0,), False),
        ([A, A, B], {0, 1}, (2,), True),
        ([A, B], {0}, (1,), True),
        ([A, B, C], {0}, (1, 2), True),
        ([A, B, B, B], {0}, (0,), True),
        ([A, A, A, B], {0}, (3,), True),
        ([A, B, B, C], {0}, (1, 2, 3), True),
        ([A, B, A, A], {0, 1, 2}, (1,), True),
    ],
)
def test_a_worker_that_has_copied_a_state_helps_it_to_no_majority(
    digests: list[bytes], voters: set[int], dissenters: tuple[int, ...], majority: bool
) -> None:
    expected = Comparison(dissenters=dissenters, majority=majority)
    assert compare([(3, digest) for digest in digests], voters=voters) == expected


def test_what_was_asked_stays_asked() -> None:
    """A worker leaves while the job is being cancelled: two FREEZEs, the second without stop."""
    flags = Flags().asked(stop=True, leave=False)
    assert flags == Flags(stop=True)
    flags = flags.asked(stop=False, leave=True)
    assert flags == Flags(stop=True, leave=True, yield_=True)
    assert flags.asked(stop=False, leave=False) == flags


@pytest.mark.parametrize(
    ("said", "ending"),
    [
        ([Flags(), Flags()], None),
        ([Flags(), Flags(checkpoint=True)], None),
        ([Flags(), Flags(yield_=True)], "yielded"),
        ([Flags(), Flags(leave=True, yield_=True)], "yielded"),
        ([Flags(leave=True), Flags(yield_=True)], "left"),
        ([Flags(leave=True), Flags(stop=True)], "stopped"),
    ],
)
def test_how_a_generation_ends_for_the_first_rank(said, ending) -> None:
    word = reduce_entries([encode_entry(ControlEntry(flags=flags)) for flags in said])
    assert word.ending(said[0]) == ending
