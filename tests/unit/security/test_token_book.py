"""Tokens that were given out: redeemed, expired, revoked, and never stored in clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.address import Address
from dtd.errors import RequestRefused
from dtd.security.token import Token, TokenBook


def new_token(role: str = "worker") -> Token:
    return Token.make(role=role, coordinators=(Address("h", 1),), authority_sha256="ab" * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


KEY, OTHER_KEY = "a" * 64, "b" * 64


def redeem(book: TokenBook, token: Token, name: str, key: str = KEY, *, now_s: float = 1.0) -> None:
    book.check(token.id, token.secret, token.role, name, key, now_s=now_s)
    book.use(token.id, name, key)


def test_a_token_is_good_once_after_a_restart_too(path: Path) -> None:
    token = new_token()
    TokenBook(path).add(token, life_s=0, now_s=1.0)
    redeem(TokenBook(path), token, "host7")
    assert not TokenBook(path).is_valid(token.id, now_s=1.0)
    for name, key in (("host8", OTHER_KEY), ("host7", OTHER_KEY), ("host8", KEY)):
        with pytest.raises(RequestRefused, match="is used up: it could be used once"):
            redeem(TokenBook(path), token, name, key)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"secret": "wrong"}, "not known here, or was revoked"),
        ({"token_id": "00000000"}, "not known here, or was revoked"),
        ({"secret": ""}, "not known here, or was revoked"),
        ({"now_s": 1060.0}, "has expired"),
        ({"role": "operator"}, "is for the role worker, not operator"),
    ],
)
def test_a_caller_that_cannot_join_is_told_why(path: Path, change: dict, why: str) -> None:
    token = new_token()
    book = TokenBook(path)
    book.add(token, life_s=60, now_s=1000.0)
    good = {"token_id": token.id, "secret": token.secret, "role": "worker", "now_s": 1059.0}
    good |= {"name": "host7", "key": KEY}
    book.check(**good)
    with pytest.raises(RequestRefused, match=why) as caught:
        book.check(**(good | change))
    assert "dtdctl token create" in caught.value.remedy
    assert token.secret not in str(caught.value)


def test_a_token_can_be_used_for_something_else_than_joining(path: Path) -> None:
    book, named, free = TokenBook(path), new_token("viewer"), new_token("operator")
    book.add(named, life_s=0, now_s=1.0, uses=2, names=("ada", "bob"))
    book.add(free, life_s=0, now_s=1.0, uses=1)

    def log_in(token: Token, key: str, secret: str = "") -> str:
        return book.redeem(token.id, secret or token.secret, token.role, key, now_s=2.0)

    redeem(book, named, "ada")
    assert log_in(named, "web-1") == "bob"
    with pytest.raises(RequestRefused, match="is for ada, bob"):
        log_in(named, "web-2")
    with pytest.raises(RequestRefused, match="not known here"):
        log_in(free, "web-3", secret="x" * 32)
    assert log_in(free, "web-4") == f"token-{free.id}"
    with pytest.raises(RequestRefused, match="is used up"):
        log_in(free, "web-5")
    assert book.is_known(free.id)
    book.revoke(free.id)
    assert not book.is_known(free.id)
    with pytest.raises(RequestRefused, match="not known here"):
        log_in(free, "web-6")
