"""Codes are good once, sessions end, and no secret is kept."""

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


def test_neither_secret_is_kept(kept: Sessions) -> None:
    begun = kept.begin("the-cookie", "the-key", ADA, 0.0)
    kept.offer("the-code", ADA, 0.0)
    assert begun.holder == ADA
    assert kept.known("the-cookie", 1.0) == begun
    assert kept.known("other", 1.0) is None
    assert "the-" not in repr(vars(kept)) + repr(kept.records(""))


def test_sessions_are_taken_over(kept: Sessions) -> None:
    begun = kept.begin("the-cookie", "the-key", ADA, 0.0)
    later = Sessions()
    later.restore(kept.records("settings"), "others")
    assert later.known("the-cookie", 1.0) == begun


def test_a_session_ends_by_itself_and_by_its_holder(kept: Sessions) -> None:
    first, second = (kept.begin(cookie, "k", ADA, 0.0) for cookie in ("a", "b"))
    kept.end(second)
    kept.end(second)
    assert second not in kept
    assert first in kept
    assert kept.known("a", SESSION_LIFE_S) is None
    kept.begin("c", "k", ADA, SESSION_LIFE_S)
    assert first not in kept
