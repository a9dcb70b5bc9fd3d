"""Codes are good once, sessions need both secrets, and neither is kept for ever."""

from __future__ import annotations

import pytest

from dtd.observe.web.logins import CODE_LIFE_S, SESSION_LIFE_S, Sessions
from dtd.security.identity import Identity

ADA = Identity(role="viewer", name="ada", where="token", workers=("w0",))


@pytest.fixture
def kept() -> Sessions:
    return Sessions()


def test_a_code_is_good_once_and_for_a_while(kept: Sessions) -> None:
    assert kept.offer("code", ADA, 10.0) == 10.0 + CODE_LIFE_S
    assert kept.redeem("other", 11.0) is None
    assert kept.redeem("code", 11.0) == ADA
    assert kept.redeem("code", 11.0) is None
    kept.offer("late", ADA, 0.0)
    assert kept.redeem("late", CODE_LIFE_S) is None


def test_both_secrets_are_needed_and_neither_is_kept(kept: Sessions) -> None:
    begun = kept.begin("the-cookie", "the-key", ADA, 0.0)
    kept.offer("the-code", ADA, 0.0)
    assert begun.holder == ADA
    assert kept.find("the-cookie", "the-key", 1.0) == begun
    assert kept.find("the-cookie", "other", 1.0) is None
    assert kept.find("other", "the-key", 1.0) is None
    assert kept.has_cookie("the-cookie", 1.0)
    assert not kept.has_cookie("other", 1.0)
    assert "the-" not in repr(vars(kept)) + repr(kept.records("", 0.0))


def test_a_session_ends_by_itself_and_by_its_holder(kept: Sessions) -> None:
    first, second = (kept.begin(cookie, "k", ADA, 0.0) for cookie in ("a", "b"))
    kept.end(second)
    kept.end(second)
    assert second not in kept
    assert first in kept
    assert kept.find("a", "k", SESSION_LIFE_S) is None
    assert not kept.has_cookie("a", SESSION_LIFE_S)
    kept.begin("c", "k", ADA, SESSION_LIFE_S)
    assert first not in kept
