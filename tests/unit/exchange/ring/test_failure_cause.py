"""What a closed link says of whoever was at its other end."""

from __future__ import annotations

import pytest

from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.exchange.ring.neighbours import is_no_room, of_a_closed_link


@pytest.mark.parametrize(
    ("error", "was_open", "evidence"),
    [
        (None, True, "reset"),
        (DtdError("connection lost"), True, "reset"),
        (ProtocolError(ErrorCode.TRUNCATED, "it died inside a frame"), True, "reset"),
        (ProtocolError(ErrorCode.RECALLED, "it has left"), True, "reset"),
        (ProtocolError(ErrorCode.BAD_TAG, "damaged"), True, "corrupt"),
        (ProtocolError(ErrorCode.BAD_TAG, "another key"), False, "reset"),
    ],
)
def test_only_bytes_that_are_no_good_are_corrupt(error, was_open, evidence):
    assert of_a_closed_link(error, was_open=was_open) == evidence


def test_a_refusal_is_no_room():
    assert is_no_room(ProtocolError(ErrorCode.REFUSED, "too many wait"))
    assert not is_no_room(ProtocolError(ErrorCode.BAD_TAG, "damaged"))
    assert not is_no_room(None)
