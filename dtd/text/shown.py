r"""Makes values that users typed and texts of other processes safe to show.

What a job prints, a peer's name and its reason for a refusal are foreign text.  Shown raw, it could
control a terminal, hide or reverse adjacent text, and begin lines that look like dtd's own.  So all
such text is escaped here, and nowhere else, according to where it is shown:

    escaped      a text of several lines, on a terminal
    indented     the same below a line of ours, which it must not pass for
    one_line     one line of such a text: a cell, a status line, a label
    quoted       one value of a line of `key=value` pairs: a console
    json_safe    JSON that may be shown raw: the same values, spelt otherwise

A text of a task or a library is cut where it enters (`cut`), so that a message can carry it.

Counts and sizes are put into words here, too, for all who may not import `dtd.text.figures`.

Nothing is lost: what cannot be shown stands there by its number, `\x1b` or `\u202e`.  Colours
alone are taken out, since jobs print so many.  Pure.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

INTEGER_LIMIT: Final = 2**63 - 1
SHOWN_CHARACTERS: Final = 60
SENTENCE_CHARACTERS: Final = 4000
TRACE_CHARACTERS: Final = 12_000
"""Limits of a reason and a traceback: some less than messages have for them."""
_KIB: Final = 1024
_COLOUR: Final = re.compile(r"(?:\x1b\[|\x9b)[0-9;:]*m")  # SGR (ECMA-48, 8.3.117)
_HIDDEN: Final = (
    r"\x7f-\x9f"  # DEL and C1, among which U+009B begins a control sequence
    r"\xad\u061c\u180e\u200b\u200e\u200f\ufeff"  # seen by nobody, or turning the text round
    r"\u2028-\u202e\u2060-\u206f\ufff9-\ufffb"  # line ends, embeddings, overrides, isolates
    r"\ud800-\udfff"  # no Unicode: halves of a character
    r"\U000e0000-\U000e007f"  # tags
)
_UNSAFE: Final = re.compile(rf"[\x00-\x08\x0b-\x1f{_HIDDEN}]")  # all but tab and newline
_UNSAFE_IN_JSON: Final = re.compile(rf"[{_HIDDEN}]")  # JSON itself spells the others
_BREAKS: Final = re.compile(r"[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+")
_SIMPLE: Final = re.compile(r"[^\s\"'=]+")


def shown(value: object) -> str:
    """A value as a person typed it, short enough for one line."""
    match value:
        case bool() | str():
            text = json.dumps(value)
        case int() if abs(value) > INTEGER_LIMIT:
            text = "an integer beyond 64 bits"
        case int() | float():
            text = str(value)
        case Mapping():
            text = "a table"
        case list() | tuple():
            text = "an array"
        case None:
            text = "nothing"
        case _:
            text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def cut(text: str, characters: int = SENTENCE_CHARACTERS) -> str:
    """The begin of a text of any length, as a message can carry it: Unicode, and no longer."""
    return text[:characters].encode(errors="backslashreplace").decode()[:characters]


def cut_trace(error: BaseException) -> str:
    """The end of an exception's traceback, which tells the most."""
    text = "".join(traceback.format_exception(error))
    return cut(text[-TRACE_CHARACTERS:], TRACE_CHARACTERS)


def shown_bytes(count: int) -> str:
    """A size: 512 B, 1.5 KiB, 20.0 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < _KIB:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KIB
    return f"{value:.1f} TiB"


def counted(number_of: int, noun: str) -> str:
    """1 worker, 2 workers."""
    return f"{number_of} {noun}" if number_of == 1 else f"{number_of} {noun}s"


def listed(names: Sequence[object], most: int, between: str = ", ") -> str:
    """Some names, or the first of them and how many more there are: a, b and 7 more."""
    more = f"{between.strip(', ')} and {len(names) - most} more" if len(names) > most else ""
    return between.join(map(str, names[:most])) + more


def escaped(text: str) -> str:
    """A text for a terminal; tabs and line ends stay, a lone return ends a line."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(_number, _COLOUR.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def one_line(text: str, most: int | None = None) -> str:
    """A text as one line, cut after so many characters: what breaks lines becomes a space."""
    if not text.isprintable():
        text = escaped(_BREAKS.sub(" ", text))
    return text if most is None or len(text) <= most else f"{text[: most - 3]}..."


def indented(text: str) -> str:
    """A text of several lines, of which none but the first begins as a line of ours would."""
    first, *rest = escaped(text).split("\n")
    return "\n".join([first, *(line if line[:1] in ("", " ") else f"  {line}" for line in rest)])


def escaped_value(value: Any) -> Any:
    """All texts in a decoded answer `escaped`; what holds none stays the object it is."""
    match value:
        case str():
            return escaped(value)
        case dict():
            return {escaped_value(key): escaped_value(one) for key, one in value.items()}
        case list():
            return [escaped_value(one) for one in value]
        case _:
            return value


def quoted(text: str) -> str:
    """A text that cannot be taken for more than one value of a line: in quotes unless simple."""
    if text.isprintable() and _SIMPLE.fullmatch(text):
        return text
    return json_safe(json.dumps(text, ensure_ascii=False))


def json_safe(text: str) -> str:
    """JSON with what no terminal should get spelt as JSON spells it; it reads as the same value."""
    return text if text.isascii() and "\x7f" not in text else _UNSAFE_IN_JSON.sub(_in_json, text)


def _number(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _in_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}" if found[0] == "\x7f" else json.dumps(found[0])[1:-1]
