"""The faults that scripts/mutate plants: each has its place, so the list cannot rot."""

from pathlib import Path

import pytest

from dtd.errors import UsageError
from scripts.mutation import FAILS, mutants, plant, table

TEXT = "== part\n-- one\n- a = 1\n+ a = 2\n\n-- two\n- b = 1\n"
MUTANTS = mutants()


def test_each_text_is_there_once() -> None:
    """Its text changed with the code?  Then bring scripts/mutants.txt up to date."""
    sources = [path.read_text("utf-8") for path in Path("dtd").rglob("*.py")]
    found = {one.name: sum(text.count(one.before) for text in sources) for one in MUTANTS}
    assert {name: times for name, times in found.items() if times != 1} == {}


def test_fault_is_planted_where_its_text_is(tmp_path: Path) -> None:
    file = tmp_path / "dtd" / "core" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1\n")
    one, two = mutants(TEXT)
    assert plant(one, tmp_path) == (file, "a = 1\n")
    assert file.read_text() == "a = 2\n"
    with pytest.raises(UsageError, match="occurs 0 times"):
        plant(two, tmp_path)


def test_table_counts_what_is_found_and_how() -> None:
    found = [("r", "7", ""), ("", "story", "story"), (FAILS, "test_a.py::test", ""), ("", "", "")]
    known = {
        one.name: {"rule": rule, "by": by, "told_otherwise": told, "seconds": 1.0}
        for one, (rule, by, told) in zip(MUTANTS, found, strict=False)
    }
    text = table(known, 9)
    assert "3 of 4 planted faults (75 %) are found: 1 break a rule" in text
    assert "within 9 s of processor time, 1 more change a story, 1 fail a property test" in text
    assert "| a story differs | `story` |" in text
    assert "| **nothing** | - |" in text
