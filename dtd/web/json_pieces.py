"""Answers as JSON, made piece by piece so that the event loop runs in between.

Numbers that are not finite become null, and others' texts are escaped (`dtd.shown`), as `dtdctl`
does both.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any, Final

from dtd.shown import escaped

ROWS_AT_ONCE: Final = 24
AT_ONCE_S: Final = 0.002
"""Most seconds that the event loop is kept at a time."""


async def encoded(value: Any) -> bytes:
    """A decoded answer as JSON; the event loop runs in between."""
    clock = asyncio.get_running_loop().time
    parts: list[str] = []
    began_s = clock()
    for part in pieces(value):
        parts.append(part)
        if clock() - began_s > AT_ONCE_S:
            await asyncio.sleep(0)
            began_s = clock()
    return "".join(parts).encode()


def pieces(value: Any) -> Iterator[str]:
    """The parts of the JSON text, in order; each takes a fraction of a millisecond to make."""
    if isinstance(value, dict):
        opening = "{"
        for key, one in value.items():
            yield f"{opening}{json.dumps(escaped(str(key)))}:"
            yield from pieces(one)
            opening = ","
        yield "{}" if opening == "{" else "}"
    elif isinstance(value, list | tuple):
        yield from _of_list(value)
    else:
        yield _dumped(value)


def _of_list(values: list[Any] | tuple[Any, ...]) -> Iterator[str]:
    if any(_is_deep(one) for one in values):
        opening = "["
        for one in values:
            yield opening
            yield from pieces(one)
            opening = ","
        yield "]"
        return
    yield "["
    for begin in range(0, len(values), ROWS_AT_ONCE):
        comma = "," if begin else ""
        yield comma + _dumped(list(values[begin : begin + ROWS_AT_ONCE]))[1:-1]
    yield "]"


def _is_deep(value: Any) -> bool:
    """Whether it may be large: a container that is long, or has containers in it."""
    if not isinstance(value, dict | list | tuple):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return len(value) > ROWS_AT_ONCE or any(isinstance(one, dict | list | tuple) for one in inner)


def _dumped(value: Any) -> str:
    return json.dumps(_safe(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _safe(value: Any) -> Any:
    match value:
        case str():
            return escaped(value)
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {escaped(str(key)): _safe(one) for key, one in value.items()}
        case list() | tuple():
            return [_safe(one) for one in value]
        case bytes():
            return value.hex()
        case _:
            return value
