"""Codes are good once, sessions need both secrets, and neither is kept for ever."""

from __future__ import annotations

from dtd.observe.web.sessions import (
    CODE_LIFE_S,
    MAX_CODES_OF_ONE,
    MAX_SESSIONS_OF_ONE,
    SESSION_LIFE_S,
    WebSessions,
)


def sessions() -> WebSessions[str]:
    return WebSessions()


def test_a_code_is_good_once() -> None:
    kept = sessions()
    assert kept.offer("code", "ada", 10.0) == 10.0 + CODE_LIFE_S
    assert kept.redeem("other", 11.0) is None
    assert kept.redeem("code", 11.0) == "ada"
    assert kept.redeem("code", 11.0) is None


def test_a_code_that_is_over_is_good_for_nothing() -> None:
    kept = sessions()
    kept.offer("code", "ada", 0.0)
    assert kept.redeem("code", CODE_LIFE_S) is None


def test_both_secrets_are_needed() -> None:
    kept = sessions()
    begun = kept.begin("cookie", "key", "ada", 0.0)
    assert begun.holder == "ada"
    assert kept.find("cookie", "key", 1.0) == begun
    assert kept.find("cookie", "other", 1.0) is None
    assert kept.find("other", "key", 1.0) is None
    assert kept.of_cookie("cookie", 1.0) == begun
    assert kept.of_cookie("other", 1.0) is None


def test_a_session_ends_by_itself_and_by_its_holder() -> None:
    kept = sessions()
    first = kept.begin("a", "k", "ada", 0.0)
    second = kept.begin("b", "k", "ada", 1.0)
    kept.end(second)
    kept.end(second)
    assert second not in kept
    assert first in kept
    assert kept.find("a", "k", SESSION_LIFE_S) is None
    assert kept.of_cookie("a", SESSION_LIFE_S) is None
    kept.begin("c", "k", "ada", SESSION_LIFE_S)
    assert first not in kept
    assert len(kept) == 1


def test_no_secret_is_kept() -> None:
    kept = sessions()
    kept.offer("the-code", "ada", 0.0)
    kept.begin("the-cookie", "the-key", "ada", 0.0)
    assert "the-" not in repr(vars(kept))


def test_who_has_too_many_loses_the_oldest_of_his_own() -> None:
    kept = sessions()
    kept.begin("other", "k", "bob", 0.0)
    own = [kept.begin(f"{place}", "k", "ada", 0.0) for place in range(MAX_SESSIONS_OF_ONE + 1)]
    assert own[0] not in kept
    assert own[1] in kept
    assert kept.find("other", "k", 1.0) is not None
    kept.offer("of-bob", "bob", 0.0)
    for place in range(MAX_CODES_OF_ONE + 1):
        kept.offer(f"{place}", "ada", 0.0)
    assert kept.redeem("0", 1.0) is None
    assert kept.redeem("1", 1.0) == "ada"
    assert kept.redeem("of-bob", 1.0) == "bob"


def test_another_process_goes_on_with_the_sessions_of_one() -> None:
    first: WebSessions[str] = WebSessions()
    begun = [first.begin(name, "key", name, 0.0) for name in ("a", "b")]
    second: WebSessions[str] = WebSessions()
    second.restore(first.every())
    assert second.every() == begun
    assert second.find("a", "key", 1.0) == begun[0]
    assert second.find("c", "key", 1.0) is None
