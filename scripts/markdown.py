"""Markdown tables, and the places of a document that a script keeps up to date."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dtd.errors import UsageError


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with these headings; nothing in a cell is escaped."""
    lines = [head, *rows]
    heading, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([heading, "|" + "---|" * len(head), *body])


def put_into(page: Path, mark: str, writer: str, content: str) -> None:
    """Replace what stands between two marks of a file, as `replaced` does.

    Raises:
        UsageError: the page has no place for it.
    """
    page.write_text(replaced(page.read_text("utf-8"), mark, writer, content), "utf-8")


def replaced(text: str, mark: str, writer: str, content: str) -> str:
    """The page with new content between `mark: written by writer` and `end of mark`.

    Raises:
        UsageError: the page has no place for it, or several.
    """
    begin, end = f"<!-- {mark}: written by {writer} -->", f"<!-- end of {mark} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    rendered, count = pattern.subn(lambda _: f"{begin}\n{content}\n{end}", text)
    if count != 1:
        raise UsageError(
            f"the page has {count} places for {mark}, not one",
            remedy=f'put the lines "{begin}" and "{end}" into it',
        )
    return rendered
