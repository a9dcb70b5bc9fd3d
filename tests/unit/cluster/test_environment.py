"""A worker's report of its software and hardware is bounded."""

from __future__ import annotations

from dtd.cluster.figures import MAX_CHARACTERS, MAX_ENTRIES, heard, told


def test_what_is_told_is_heard() -> None:
    said = {"torch": "2.14.0+cpu", "processor": "A = B", "libc": ""}
    assert heard(told(said)) == said


def test_lies_are_cut() -> None:
    assert heard(["nothing", "=value", "a" * 300 + "=" + "b" * 300]) == {
        "a" * MAX_CHARACTERS: "b" * MAX_CHARACTERS
    }
    assert len(heard(f"{number}=x" for number in range(MAX_ENTRIES + 5))) == MAX_ENTRIES
