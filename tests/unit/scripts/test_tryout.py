"""scripts/tryout: its rows name tests that exist, and its verdicts are those of the report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dtd.errors import UsageError
from scripts import tryout
from scripts.tryout import Outcome, Row

ROOT = Path(__file__).resolve().parents[3]
REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest">
<testcase classname="tests.unit.test_a" name="test_one[x]" time="0.5">
  <properties><property name="seen" value="3.1 s"/><property name="other" value="z"/></properties>
</testcase>
<testcase classname="tests.unit.test_a" name="test_one[y]" time="0.25"/>
<testcase classname="tests.unit.test_a" name="test_two" time="1"><failure message="no"/></testcase>
<testcase classname="tests.unit.test_a" name="test_three"><skipped message="no"/></testcase>
</testsuite></testsuites>
"""


@pytest.mark.parametrize("row", tryout.read_rows(), ids=lambda row: row.tried[:40])
def test_the_tests_of_a_row_exist(row):
    assert row.tests
    for test in row.tests:
        path, _, name = test.partition("[")[0].partition("::")
        assert re.search(
            rf"^(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE
        ), test


def row(*tests):
    return Row(tried="a | b", first="bad", now="good", tests=tests)


def test_a_table_is_made_of_a_report():
    outcomes = tryout.read_report(REPORT)
    one, two, three = (f"tests/unit/test_a.py::test_{n}" for n in ("one", "two", "three"))
    assert outcomes[one] == Outcome(passed=2, took_s=0.75, seen=["3.1 s"])
    assert outcomes[f"{one}[y]"] == Outcome(passed=1, took_s=0.25)
    made = tryout.table([row(one), row(one, two), row(three), row(one, three)], outcomes)
    assert [line.split(" | ")[3] for line in made.splitlines()[2:]] == [
        "holds (2 tests); 3.1 s",
        "**does not hold** (1 of 3 failed); 3.1 s",
        "not tried here: its tests were skipped",
        "holds (2 tests, 1 skipped); 3.1 s",
    ]
    assert r"| a \| b | bad | good |" in made


def test_tests_are_run_as_their_file_has_them():
    here = "tests/unit/scripts/test_tryout.py"
    stories = "tests/simulation/test_stories.py::test_story_is_told_again_word_for_word"
    first, second = (
        f"{here}::{name}"
        for name in (
            "test_the_tests_of_a_row_exist",
            "test_a_table_is_made_of_a_report",
        )
    )
    assert first > second
    given = {first, second, f"{stories}[b]", f"{stories}[a]"}
    assert tryout.in_file_order(given) == [f"{stories}[a]", f"{stories}[b]", first, second]


def test_a_row_whose_test_did_not_run_does_not_hold():
    assert "does not hold" in tryout.verdict([Outcome()])


def test_rows_are_chosen_by_their_words():
    rows = [row("t"), Row(tried="hang", first="", now="", tests=("t",))]
    assert tryout.chosen(rows, ["HANG"]) == rows[1:]
    assert tryout.chosen(rows, []) == rows
    with pytest.raises(UsageError, match="no row contains x or y"):
        tryout.chosen(rows, ["x", "y"])
