"""The output of dtdctl: data on stdout, everything else on stderr.

All output passes through this file, and all foreign text is escaped before
(`dtd.text.shown`): answers as they are read (`dtd.ctl.settings`), errors and JSON in this file.
Tables are plain columns, so that a shell can cut them; on a terminal long cells are folded to its
width.  Colour appears only on a terminal and never with NO_COLOR.  No heavy import: `dtdctl status`
must answer at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, TextIO

from dtd.errors import DtdError, RequestRefused, UsageError
from dtd.host.streams import is_unicode
from dtd.text.figures import NOTHING
from dtd.text.shown import escaped, indented, json_safe, one_line

BOLD: Final = "bold"
RED: Final = "red"
GREEN: Final = "green"
YELLOW: Final = "yellow"
_CODES: Final = {BOLD: 1, RED: 31, GREEN: 32, YELLOW: 33}
STATE_STYLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("running", "done"), GREEN),
    **dict.fromkeys(
        ("waiting", "warming", "forming", "stopping", "saving", "cancelled", "away"), YELLOW
    ),
    **dict.fromkeys(("barred", "lost", "refused", "failed"), RED),
}
"""The style of a job's or a worker's state, if it has one."""
_GAP: Final = "  "
_LEAST: Final = 12
"""Characters to which a column may be folded."""
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


def can_redraw(stream: TextIO) -> bool:
    """Whether the stream is a terminal on which a line can be drawn again."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def wants_colour(stream: TextIO) -> bool:
    """Whether the stream shows colours, and its user wants them."""
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


def paint(text: str, style: str | None, stream: TextIO | None = None) -> str:
    """The text in a style, if the stream shows colours; without one: standard output."""
    if not style or not text or not wants_colour(stream or sys.stdout):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def table_lines(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    wide: bool = True,
    only_wide: Collection[str] = (),
) -> list[str]:
    """Aligned columns under headings; a terminal that is too narrow folds cells, and cuts none.

    Unless `wide`, the columns `only_wide` and those that have nothing in any row are left out.
    """
    cells = [[" ".join(one_line(cell).split()) for cell in row] for row in rows]
    columns = [list(column) for column in zip(headings, *cells, strict=True)]
    if not wide:
        kept = [one for one in columns if one[0] not in only_wide]
        columns = [one for one in kept if set(one[1:]) != {NOTHING}] or kept
    widths = _folded([max(map(len, column)) for column in columns])
    first, *rest = zip(*columns, strict=True)
    lines = _row(first, widths, [BOLD] * len(widths))
    for row in rest:
        lines += _row(row, widths, list(map(STATE_STYLES.get, row)))
    return lines


def _folded(widths: list[int]) -> list[int]:
    """Narrow the widest columns until a row fits the terminal."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):  # it is none, or a test's
        return widths
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - columns
    for _ in range(excess):
        widest = max(widths)
        if widest <= _LEAST:
            break
        widths[len(widths) - 1 - widths[::-1].index(widest)] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], styles: Sequence[str | None]) -> list[str]:
    parts = [_wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return [_line(line, widths, styles) for line in zip_longest(*parts, fillvalue="")]


def _wrapped(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    import textwrap  # seldom needed

    return textwrap.wrap(cell, width, break_on_hyphens=False)


def _line(cells: Sequence[str], widths: Sequence[int], styles: Sequence[str | None]) -> str:
    last = len(cells) - 1
    padded = [
        paint(cell, style) + " " * (width - len(cell) if index < last else 0)
        for index, (cell, width, style) in enumerate(zip(cells, widths, styles, strict=True))
    ]
    return _GAP.join(padded).rstrip()


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    wide: bool = True,
    only_wide: Collection[str] = (),
    none: str = "",
) -> None:
    """Print aligned columns to stdout, as `table_lines`; without a row only say `none`."""
    rows = list(rows)
    if none and not rows:
        say(none)
    else:
        print_lines(table_lines(headings, rows, wide=wide, only_wide=only_wide))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to stdout, each of them as one; others' texts in them were escaped before."""
    print("\n".join(" ".join(line.splitlines()) for line in lines), flush=True)


def print_document(text: str) -> None:
    """Print a report to stdout as it is, in UTF-8; its maker has escaped foreign text."""
    sys.stdout.buffer.write(text.encode())


def print_json(value: Any) -> None:
    """Print one JSON value on one line of stdout."""
    print(json_text(value, ascii_only=not is_unicode(sys.stdout)), flush=True)


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """One JSON value on one line, without its end."""
    return json_safe(json.dumps(value, ensure_ascii=ascii_only, default=_json_bytes))


def _json_bytes(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def say(text: str) -> None:
    """Print a message that is not data."""
    _to_stderr(escaped(text))


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def confirm_deletion() -> None:
    """Ask on the terminal whether what was named before is to be deleted; raise unless it is."""
    if not sys.stdin.isatty():
        raise UsageError(
            "this must be confirmed, and standard input is not a terminal",
            remedy="use --yes to delete without confirmation",
        )
    print("delete? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RequestRefused("nothing was deleted")


def say_error(error: DtdError, *, as_json: bool) -> None:
    """One sentence and what to do about it."""
    if as_json:
        told = {"error": error.message, "remedy": error.remedy}
        _to_stderr(json_text(told, ascii_only=not is_unicode(sys.stderr)))
        return
    _to_stderr(f"{paint('error:', RED, sys.stderr)} {indented(error.message)}")
    if error.remedy:
        _to_stderr(f"{paint('try:', BOLD, sys.stderr)} {indented(error.remedy)}")
