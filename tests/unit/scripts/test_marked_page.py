"""Scripts write their tables where the page has a place for them, and nowhere else."""

from __future__ import annotations

import pytest

from dtd.errors import UsageError
from scripts import tryout
from scripts.marked_page import put_into, replaced
from scripts.underattack import __main__ as under_attack


@pytest.mark.parametrize("script", [tryout, under_attack], ids=lambda script: script.MARK)
def test_the_page_has_one_place_for_the_table(script):
    page = script.PAGE.read_text("utf-8")
    once = replaced(page, script.MARK, script.WRITTEN_BY, "| made |")
    assert "\n| made |\n" in once
    assert replaced(once, script.MARK, script.WRITTEN_BY, "| made |") == once


def test_a_page_without_a_place_is_refused(tmp_path):
    (tmp_path / "page").write_text("nothing")
    with pytest.raises(UsageError, match="0 places"):
        put_into(tmp_path / "page", "tried", "a script", "| made |")


def test_a_table_is_put_into_a_file(tmp_path):
    page = tmp_path / "page"
    page.write_text("a\n<!-- tried: written by me -->\nold\n<!-- end of tried -->\nb\n")
    put_into(page, "tried", "me", r"| \1 |")
    written = "a\n<!-- tried: written by me -->\n| \\1 |\n<!-- end of tried -->\nb\n"
    assert page.read_text() == written
