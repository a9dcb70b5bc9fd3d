"""Values as people typed them, for sentences about what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

INTEGER_LIMIT: Final = 2**63 - 1
SHOWN_CHARACTERS: Final = 60


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
