"""Positions in TOML text: its faults, and the lines of keys.

`tomllib` gives values without their places.  `key_lines` finds the places afterwards, by cutting a
valid document into statements (each line is joined with the next until it parses alone) and
parsing every statement by itself.  So it is exact for keys and table headers whatever quoting or
dotting they use.  Its limits: everything inside one statement (an array over several lines, an
inline table, a multi-line string) has the line on which the statement begins; a table that is
written twice as an array of tables has the line of its first header; and it costs a second parse,
so callers use it only when there is something to report.  Keys more than a few levels deep have
the line of the level above.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

KeyPath = tuple[str, ...]

# What reading and parsing raise for bad content; tomllib lets Python's own limits through.
CONTENT_ERRORS: Final = (ValueError, RecursionError)
_DEPTH: Final = 8  # deeper keys are reported at the line of what holds them
_MAY_CLOSE: Final = re.compile(r"""[]}]|"{3}|'{3}""")  # a line without these ends no long statement
_PLACE: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")


def read_text(path: Path, *, limit_bytes: int) -> str:
    """The file as text; raises OSError, or ValueError for content that cannot be TOML."""
    with path.open("rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        msg = f"is larger than {limit_bytes // 1024} KiB"
        raise ValueError(msg)
    return data.decode("utf-8-sig")


def content_fault(error: Exception) -> str:
    """One line for a `CONTENT_ERRORS` exception: "line 3: not TOML: Invalid value (column 5)"."""
    if isinstance(error, UnicodeDecodeError):
        line = error.object[: error.start].count(b"\n") + 1
        return f"line {line}: not UTF-8 text (byte {error.start})"
    if isinstance(error, RecursionError):
        return "not TOML that can be read: nested too deeply"
    if not isinstance(error, tomllib.TOMLDecodeError):
        return str(error)
    place = _PLACE.search(str(error))
    if place is None:
        return f"not TOML: {error}"
    what = str(error)[: place.start()]
    return f"line {place[1]}: not TOML: {what} (column {place[2]})"


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) on which each key and table of a valid TOML document first stands."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, is_header, fragment in _statements(text):
        if is_header:
            table = ()
            inner: Any = fragment
            while inner and len(table) < _DEPTH:
                ((key, inner),) = inner.items()
                table = (*table, key)
                lines.setdefault(table, number)
                inner = inner[0] if isinstance(inner, list) else inner
        else:
            _note(fragment, table, number, lines)
    return lines


def _statements(text: str) -> Iterator[tuple[int, bool, dict[str, Any]]]:
    """Cut a valid document into the smallest runs of lines that are valid alone.

    Yields the first line's number, whether it is a table header, and its content.
    """
    pending = ""
    first = 1
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not pending:
            first = number
        elif not _MAY_CLOSE.search(line):
            pending += line + "\n"
            continue
        pending += line + "\n"
        try:
            fragment = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        except RecursionError:
            return  # it barely fitted the stack before; keys that follow have no line
        yield first, pending.lstrip().startswith("["), fragment
        pending = ""


def _note(fragment: dict[str, Any], above: KeyPath, number: int, lines: dict[KeyPath, int]) -> None:
    for key, value in fragment.items():
        lines.setdefault((*above, key), number)
        if isinstance(value, dict) and len(above) < _DEPTH:
            _note(value, (*above, key), number, lines)
