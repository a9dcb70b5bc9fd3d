"""The faults that scripts/mutate plants: each has its place, so the list cannot rot."""

from pathlib import Path

import pytest

from dtd.errors import UsageError
from scripts.mutation import mutants, plant, table

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


def test_table_counts_what_breaks_a_rule() -> None:
    names = [one.name for one in MUTANTS[:2]]
    row = {"told_otherwise": "", "seconds": 1.0}
    text = table(
        {names[0]: {**row, "rule": "r", "by": "7"}, names[1]: {**row, "rule": "", "by": ""}}, 9
    )
    assert "1 of 2 planted faults (50 %) break a rule of the simulation within 9 s" in text
    assert "| **none** | - |" in text
