"""The pieces of a report; their looks are up to HTML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few figures that are seen first: (name, value)."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Code:
    """A line to type."""

    line: str


@dataclass(frozen=True, slots=True)
class Table:
    """Columns; those from the number `numbers` on are figures."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int = 1000


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture, and the same as lines of characters; `svg` is empty if nothing is to be seen."""

    title: str
    svg: str
    lines: Sequence[str] = field(default=())


Block = Text | Bullets | Tiles | Code | Table | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: Sequence[Block]
