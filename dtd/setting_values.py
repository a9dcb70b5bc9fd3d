"""Conversion of a setting's value to the type of its field.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dtd.address import Address, Endpoint, SocketPath, parse_endpoint
from dtd.errors import UsageError
from dtd.rules import FieldInfo, fault, without_none
from dtd.shown import shown

ENDPOINTS: Final = tuple[Endpoint, ...]
NAMES: Final = tuple[str, ...]


def converted(info: FieldInfo, value: object, *, is_text: bool) -> tuple[Any, str]:
    """The value, or None and the fault.

    Args:
        info: the field.
        value: as found.
        is_text: it is text that stands for a value, as in a flag or a variable.
    """
    kind = without_none(info.hint)
    if kind == ENDPOINTS:
        return _endpoints(value)
    if kind == NAMES:
        return _names(info, value)
    if kind in (Address, Path):
        if isinstance(value, kind):
            return value, ""
        if not isinstance(value, str) or not value:
            return None, f"must be a string, not {shown(value)}"
        return _address(value) if kind is Address else _path(value)
    if is_text and isinstance(value, str) and info.hint in (int, float):
        value = _number(info.hint, value)
    text = fault(info.hint, info.rule, value)
    return (float(value) if info.hint is float and not text else value), text  # type: ignore[arg-type]


def _number(kind: Callable[[str], float], text: str) -> float | str:
    try:
        return kind(text)
    except ValueError:
        return text


def _address(text: str) -> tuple[Address | None, str]:
    try:
        return Address.parse(text), ""
    except UsageError as error:
        return None, str(error)


def _endpoints(value: object) -> tuple[tuple[Endpoint, ...] | None, str]:
    """Addresses as text with commas between, as an array of texts, or as they are."""
    words: object = value.split(",") if isinstance(value, str) else value
    if isinstance(words, Address | SocketPath):
        words = [words]
    if not isinstance(words, list | tuple) or not words:
        return None, f"must be a string or an array of strings, not {shown(value)}"
    found: list[Endpoint] = []
    for word in words:
        if not isinstance(word, str | Address | SocketPath):
            return None, f"must be a string or an array of strings, not {shown(value)}"
        try:
            found.append(parse_endpoint(word.strip()) if isinstance(word, str) else word)
        except UsageError as error:
            return None, str(error)
    return tuple(found), ""


def _names(info: FieldInfo, value: object) -> tuple[tuple[str, ...] | None, str]:
    """Names as text with commas between, or as an array of texts, which may be empty."""
    words: object = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple):
        return None, f"must be a string or an array of strings, not {shown(value)}"
    found = [word.strip() if isinstance(word, str) else word for word in words]
    text = next((text for word in found if (text := fault(str, info.rule, word))), "")
    return (None, text) if text else (tuple(found), "")


def _path(text: str) -> tuple[Path | None, str]:
    if not text.isprintable():
        return None, f"must be a path without control characters, not {shown(text)}"
    try:
        return Path(text).expanduser().absolute(), ""
    except RuntimeError:
        return None, f"names an unknown user: {shown(text)}"
