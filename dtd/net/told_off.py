"""What an ERROR of the other side becomes here.

It may come from somebody who has not proved who he is, and it goes into logs, status lines and
refusals of ours: so it is one text of bounded length that says nothing but what it says.
"""

from __future__ import annotations

from typing import Final

from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.shown import escaped
from dtd.wire import messages as m

MOST_CHARACTERS: Final = 2000
_CODES: Final = frozenset(ErrorCode)


def told_off(error: m.Error) -> ProtocolError:
    """The error as one of this side."""
    code = ErrorCode(error.code) if error.code in _CODES else ErrorCode.INTERNAL
    return ProtocolError(code, _said(error.message), remedy=_said(error.remedy))


def answered_with(error: m.Error) -> DtdError:
    """As `told_off`; but REFUSED is a plain no, and no sign that the two do not understand.

    Nor is INTERNAL, said as such: the other side understood, and failed at it.
    """
    told = told_off(error)
    if error.code in (ErrorCode.REFUSED, ErrorCode.INTERNAL):
        return RequestRefused(told.message, remedy=told.remedy)
    return told


def _said(text: str) -> str:
    return escaped(text[:MOST_CHARACTERS])
