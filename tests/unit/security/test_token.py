"""The word that lets somebody join: there and back, and nothing that is almost one."""

from __future__ import annotations

import pytest

from dtd.errors import UsageError
from dtd.security.token import Token, parse_life_s

SHA = "ab" * 32
WORD = f"dtd1/worker/10.0.0.1:7117,[fd00::1]:7118/{SHA}/0123abcd.ABCdef_-0123456789"


FORM = "it is not dtd1/ROLE/HOST:PORT,.../SHA256/ID.SECRET"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("dtd1/", "dtd2/", FORM),
        ("/worker/", "/coordinator/", FORM),
        ("/worker/", "/", FORM),
        ("10.0.0.1:7117", "10.0.0.1", "its address must be HOST:PORT"),
        (SHA, SHA[:-1], FORM),
        ("0123abcd.", "0123abc.", FORM),
        ("ABCdef_-0123456789", "short", FORM),
        (WORD, WORD * 40, FORM),
    ],
)
def test_what_is_no_token_is_not_repeated(old: str, new: str, why: str) -> None:
    text = WORD.replace(old, new)
    with pytest.raises(UsageError, match="this is not a token: ") as caught:
        Token.parse(text)
    assert why in caught.value.message
    assert "ABCdef_-0123456789" not in str(caught.value)


def test_an_empty_token_is_called_empty() -> None:
    """As it is where a Secret or a file was not filled."""
    with pytest.raises(UsageError, match=r"the token is empty.*token create` prints"):
        Token.parse("\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("24h", 86400), ("7d", 604800), ("never", 0)],
)
def test_lengths_of_time(text: str, seconds: int) -> None:
    assert parse_life_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0h", "24", "h", "-1h", "1w", "1.5h"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_life_s(text)
