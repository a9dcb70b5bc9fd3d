"""The one reader of JSON that others have written."""

from __future__ import annotations

import pytest

from dtd.text.json_reader import read_json


def test_json_is_read() -> None:
    assert read_json(b'{"a": [1, "\xc3\xa4"]}', max_bytes=17) == {"a": [1, "ä"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[1, 2]", "it has 6 bytes, more than 5"),
        (b"[" * 5, "Expecting value"),
        ("[1]".encode("utf-16"), "utf-8"),
        (b'"\xff"', "utf-8"),
    ],
)
def test_what_is_no_json_is_a_value_error(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_json(content, max_bytes=5 if content.startswith(b"[") else 100)


def test_nesting_has_an_end() -> None:
    for content in (b"[" * 10**6, b'{"a":' * 10**6):
        with pytest.raises(ValueError, match="nested too deeply"):
            read_json(content, max_bytes=10**7)
