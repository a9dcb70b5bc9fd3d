"""Codes are good once, sessions need both secrets, and neither is kept for ever."""

from __future__ import annotations

from dtd.observe.web.sessions import (
    CODE_LIFE_S,
    SESSION_LIFE_S,
    WebSessions,
)


def test_a_code_is_good_once() -> None:
    kept = WebSessions()
    assert kept.offer("code", "ada", 10.0) == 10.0 + CODE_LIFE_S
    assert kept.redeem("other", 11.0) is None
    assert kept.redeem("code", 11.0) == "ada"
    assert kept.redeem("code", 11.0) is None


def test_a_code_that_is_over_is_good_for_nothing() -> None:
    kept = WebSessions()
    kept.offer("code", "ada", 0.0)
    assert kept.redeem("code", CODE_LIFE_S) is None


def test_both_secrets_are_needed() -> None:
    kept = WebSessions()
    begun = kept.begin("cookie", "key", "ada", 0.0)
    assert begun.holder == "ada"
    assert kept.find("cookie", "key", 1.0) == begun
    assert kept.find("cookie", "other", 1.0) is None
    assert kept.find("other", "key", 1.0) is None
    assert kept.has_cookie("cookie", 1.0)
    assert not kept.has_cookie("other", 1.0)


def test_a_session_ends_by_itself_and_by_its_holder() -> None:
    kept = WebSessions()
    first = kept.begin("a", "k", "ada", 0.0)
    second = kept.begin("b", "k", "ada", 1.0)
    kept.end(second)
    kept.end(second)
    assert second not in kept
    assert first in kept
    assert kept.find("a", "k", SESSION_LIFE_S) is None
    assert not kept.has_cookie("a", SESSION_LIFE_S)
    kept.begin("c", "k", "ada", SESSION_LIFE_S)
    assert first not in kept
    assert len(kept) == 1


def test_no_secret_is_kept() -> None:
    kept = WebSessions()
    kept.offer("the-code", "ada", 0.0)
    kept.begin("the-cookie", "the-key", "ada", 0.0)
    assert "the-" not in repr(vars(kept))


def test_another_process_goes_on_with_the_sessions_of_one() -> None:
    first: WebSessions = WebSessions()
    begun = [first.begin(name, "key", name, 0.0) for name in ("a", "b")]
    second: WebSessions = WebSessions()
    second.restore(first.every())
    assert second.every() == begun
    assert second.find("a", "key", 1.0) == begun[0]
    assert second.find("c", "key", 1.0) is None
