"""Values as people typed them, for sentences about what is wrong; others' texts, for a terminal.

What a job printed, or a peer calls itself, is somebody else's text: on a terminal, control
sequences in it could hide lines, rename the window or answer as if typed.  `plain` takes them out;
files and pipes get the text as it came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

INTEGER_LIMIT: Final = 2**63 - 1
SHOWN_CHARACTERS: Final = 60
_CONTROL: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor (ECMA-48, 5.4)
    # OSC, DCS, SOS, PM, APC: titles, clipboards, up to their end; one without an end goes whole.
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|\Z)"
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # what is left of C0 but tab and newline, and of C1
    r"|[\u202a-\u202e\u2066-\u2069]"  # text that reads in another order than it stands
)


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


def plain(text: str) -> str:
    """The text without control sequences; tabs and line ends stay, a lone return ends a line."""
    if text.isprintable():
        return text
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def plain_value(value: Any) -> Any:
    """The same for all texts in a decoded answer; what holds none stays the object it is."""
    match value:
        case str():
            return plain(value)
        case dict():
            return {plain_value(key): plain_value(one) for key, one in value.items()}
        case list():
            return [plain_value(one) for one in value]
        case _:
            return value
