"""What another side's ERROR becomes, whoever that is."""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, ProtocolError, RequestRefused
from dtd.net.told_off import MOST_CHARACTERS, answered_with, told_off
from dtd.wire import messages as m

HOSTILE = "no\x1b[2J\x9b2J\u202e\r\nerror: forged"


def test_a_text_of_somebody_unknown_is_escaped_and_bounded() -> None:
    error = told_off(m.Error(code=1, message=HOSTILE, remedy="x" * 16384))
    assert error.message == "no\\x1b[2J\\x9b2J\\u202e\nerror: forged"
    assert len(error.remedy) == MOST_CHARACTERS


@pytest.mark.parametrize("code", [0, 999, 65535])
def test_a_code_that_is_not_known_is_an_internal_one(code: int) -> None:
    assert told_off(m.Error(code=code, message="")).code is ErrorCode.INTERNAL


def test_a_plain_no_is_a_refusal() -> None:
    said = m.Error(code=ErrorCode.REFUSED, message=HOSTILE, remedy="ask")
    error = answered_with(said)
    assert isinstance(error, RequestRefused)
    assert (error.message, error.remedy) == (told_off(said).message, "ask")
    assert isinstance(answered_with(m.Error(code=1, message="")), ProtocolError)
