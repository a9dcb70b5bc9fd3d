"""Tokens that were given out: redeemed, expired, revoked, and never stored in clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.address import Address
from dtd.errors import ConfigError, RequestRefused
from dtd.security import token_book
from dtd.security.token import Token
from dtd.security.token_book import TokenBook


def new_token(role: str = "worker") -> Token:
    return Token.make(role=role, coordinators=(Address("h", 1),), authority_sha256="ab" * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_a_token_is_good_again_and_again_after_a_restart_too(path: Path) -> None:
    token = new_token()
    TokenBook(path).add(token, life_s=0, now_s=1000.0)
    for _ in range(2):
        TokenBook(path).redeem(token.id, token.secret, "worker", now_s=1e12)


def test_its_secret_is_not_on_disk(path: Path) -> None:
    token = new_token()
    TokenBook(path).add(token, life_s=0, now_s=0.0)
    assert token.secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret" not in str(TokenBook(path).listed(now_s=0.0))


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
def test_who_cannot_join_is_told_why(path: Path, change: dict, why: str) -> None:
    token = new_token()
    book = TokenBook(path)
    book.add(token, life_s=60, now_s=1000.0)
    good = {"token_id": token.id, "secret": token.secret, "role": "worker", "now_s": 1059.0}
    book.redeem(**good)
    with pytest.raises(RequestRefused, match=why) as caught:
        book.redeem(**(good | change))
    assert "dtdctl token create" in caught.value.remedy
    assert token.secret not in str(caught.value)


def test_an_unknown_token_with_an_empty_secret_is_not_known(path: Path) -> None:
    with pytest.raises(RequestRefused, match="not known"):
        TokenBook(path).redeem("00000000", "", "worker", now_s=0.0)


def test_a_revoked_token_is_gone(path: Path) -> None:
    token = new_token()
    book = TokenBook(path)
    book.add(token, life_s=0, now_s=0.0)
    assert book.is_valid(token.id, now_s=1.0)
    book.revoke(token.id)
    assert not TokenBook(path).is_valid(token.id, now_s=1.0)
    with pytest.raises(RequestRefused, match="there is no token"):
        book.revoke(token.id)


def test_tokens_that_are_over_make_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_book, "MAX_TOKENS", 1)
    book = TokenBook(path)
    old, new = new_token(), new_token()
    book.add(old, life_s=10, now_s=0.0)
    assert [one["expired"] for one in book.listed(now_s=10.0)] == [True]
    with pytest.raises(RequestRefused, match="1 tokens are valid"):
        book.add(new, life_s=10, now_s=5.0)
    book.add(new, life_s=10, now_s=10.0)
    assert [one["id"] for one in book.listed(now_s=10.0)] == [new.id]


@pytest.mark.parametrize("content", ["{", "{}", '[{"id": "x"}]', "[1]"])
def test_a_damaged_file_is_named(path: Path, content: str) -> None:
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"tokens\.json is damaged"):
        TokenBook(path)
