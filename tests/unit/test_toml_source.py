"""Where keys stand in a TOML document, and what is said about one that cannot be read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dtd.text.toml_source import CONTENT_ERRORS, content_fault, key_lines, read_text

DOCUMENT = '''# a comment
top = 1

[job]
name = "x"  # [fake] = 2
"quoted key" = 1
a.b.c = 2
text = """
[not.a.table]
nor = "a key"
"""
array = [
  1,
  [2, 3],
]
inline = { x = 1, y = { z = [
  4,
] } }
[task.model]
layers = 3
[[many]]
first = 1
[[many]]
second = 2
'''


def test_every_key_has_the_line_on_which_its_statement_begins() -> None:
    assert key_lines(DOCUMENT) == {
        ("top",): 2,
        ("job",): 4,
        ("job", "name"): 5,
        ("job", "quoted key"): 6,
        ("job", "a"): 7,
        ("job", "a", "b"): 7,
        ("job", "a", "b", "c"): 7,
        ("job", "text"): 8,
        ("job", "array"): 12,
        ("job", "inline"): 16,
        ("job", "inline", "x"): 16,
        ("job", "inline", "y"): 16,
        ("job", "inline", "y", "z"): 16,
        ("task",): 19,
        ("task", "model"): 19,
        ("task", "model", "layers"): 20,
        ("many",): 21,
        ("many", "first"): 22,
        ("many", "second"): 24,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\nb = ?", "line 2: not TOML: Invalid value (column 5)"),
        ("a = [1,", "not TOML: Invalid value (at end of document)"),
        ("a = " + "[" * 5000, "not TOML that can be read: nested too deeply"),
        ("a = " + "1" * 5000, "Exceeds the limit"),
    ],
)
def test_text_that_is_no_toml_is_described_in_one_line(text: str, expected: str) -> None:
    with pytest.raises(CONTENT_ERRORS) as caught:
        tomllib.loads(text)
    assert content_fault(caught.value).startswith(expected)
    assert "\n" not in content_fault(caught.value)


def test_a_file_may_be_as_large_as_the_limit_and_begin_with_a_byte_order_mark(
    tmp_path: Path,
) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b"\xef\xbb\xbf" + b"#" * 1021)
    assert read_text(file, limit_bytes=1024) == "#" * 1021
    file.write_bytes(b"#" * 1025)
    with pytest.raises(ValueError, match="larger than 1 KiB"):
        read_text(file, limit_bytes=1024)
