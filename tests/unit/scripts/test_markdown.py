"""Scripts write their tables where the page has a place for them, and nowhere else."""

from __future__ import annotations

import pytest

from dtd.errors import UsageError
from scripts import markdown
from scripts.benchrun import __main__ as bench

PLACES = [(bench.DOCUMENT, kind, bench.WRITTEN_BY) for kind in bench.TABLES]


@pytest.mark.parametrize(("page", "mark", "writer"), PLACES, ids=lambda value: str(value)[-12:])
def test_the_page_has_one_place_for_the_table(page, mark, writer):
    text = page.read_text("utf-8")
    once = markdown.replaced(text, mark, writer, "| made |")
    assert "\n| made |\n" in once
    assert once.partition(f"<!-- {mark}:")[0] == text.partition(f"<!-- {mark}:")[0]
    assert markdown.replaced(once, mark, writer, "| made |") == once


def test_a_page_without_a_place_is_refused(tmp_path):
    (tmp_path / "page").write_text("nothing")
    with pytest.raises(UsageError, match="0 places"):
        markdown.put_into(tmp_path / "page", "tried", "a script", "| made |")


def test_a_table_is_put_into_a_file(tmp_path):
    page = tmp_path / "page"
    page.write_text("a\n<!-- tried: written by me -->\nold\n<!-- end of tried -->\nb\n")
    markdown.put_into(page, "tried", "me", r"| \1 |")
    written = "a\n<!-- tried: written by me -->\n| \\1 |\n<!-- end of tried -->\nb\n"
    assert page.read_text() == written
