"""Tables that a script writes into a document, between two comments."""

from __future__ import annotations

import re
from pathlib import Path

from dtd.errors import UsageError


def put_into(page: Path, mark: str, writer: str, made: str) -> None:
    """Replace the table in a file.

    Raises:
        UsageError: the page has no place for it.
    """
    page.write_text(replaced(page.read_text("utf-8"), mark, writer, made), "utf-8")


def replaced(text: str, mark: str, writer: str, made: str) -> str:
    """The page with what stands between `mark: written by writer` and `end of mark` replaced.

    Raises:
        UsageError: the page has no place for it, or several.
    """
    begin, end = f"<!-- {mark}: written by {writer} -->", f"<!-- end of {mark} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    rendered, count = pattern.subn(lambda _: f"{begin}\n{made}\n{end}", text)
    if count != 1:
        raise UsageError(f"the page has {count} places for the table, not one", remedy=begin)
    return rendered
