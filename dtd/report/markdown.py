"""A report as Markdown, for a repository or a terminal; curves are lines of characters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from dtd.report.document import Document
from dtd.report.shapes import Block, Bullets, Chart, Code, Table, Text

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~&])")
_MOST_FENCE: Final = "```"


def to_markdown(document: Document) -> str:
    """The whole report as one text."""
    lines = [f"# {_plain(document.title)}", "", _plain(document.subtitle), ""]
    for section in document.sections:
        lines += [f"## {_plain(section.title)}", ""]
        for block in section.blocks:
            shown = list(_block(block))
            lines += [*shown, ""] if shown else []
    return "\n".join(lines).rstrip() + "\n"


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Text):
        yield _plain(block.text)
    elif isinstance(block, Bullets):
        yield from (f"- {_plain(item)}" for item in block.items)
    elif isinstance(block, Code):
        yield from (_MOST_FENCE, block.line, _MOST_FENCE)
    elif isinstance(block, Table):
        yield from _table(block.headings, block.rows, block.numbers)
    elif isinstance(block, Chart):
        if block.lines:
            yield from (f"{_plain(block.title)}:", "", _MOST_FENCE, *block.lines, _MOST_FENCE)
    else:
        yield from _table(("", ""), block.items, 1)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> Iterator[str]:
    yield _row(headings)
    yield "|" + "|".join("--:" if at >= numbers else "---" for at in range(len(headings))) + "|"
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    """A text as it is: one line, and no markup of its own but code that stands in `...`."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        return _SPECIAL.sub(r"\\\1", "`".join(parts))
    return "`".join(
        _SPECIAL.sub(r"\\\1", part) if at % 2 == 0 else part for at, part in enumerate(parts)
    )
