"""The faults that `scripts/mutate` plants, read from mutants.txt beside this file.

A mutant replaces lines of source text that occur exactly once below `dtd/`.  It names no file, so a
file may be moved and the list still holds; a test sees that each finds its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dtd.errors import UsageError

ROOT: Final = Path(__file__).resolve().parent.parent
LIST: Final = Path(__file__).with_name("mutants.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault to plant.

    Attributes:
        name: in words, unique.
        area: the part of the product that it is in.
        before: the source text that it replaces, whole lines.
        after: what stands there instead.
    """

    name: str
    area: str
    before: str
    after: str


def mutants(text: str = "") -> list[Mutant]:
    """All mutants of the list, or of another text.

    Raises:
        UsageError: a line is not understood, or two mutants have one name.
    """
    known: dict[str, Mutant] = {}
    area = name = before = after = ""
    for number, line in enumerate([*(text or LIST.read_text("utf-8")).splitlines(), "=="], 1):
        mark, rest = line[:2], line[3:]
        if mark in ("==", "--") and name:
            if name in known:
                raise UsageError(f"two mutants are called {name!r}")
            known[name] = Mutant(name=name, area=area, before=before, after=after)
            name = before = after = ""
        if mark == "==":
            area = rest
        elif mark == "--":
            name = rest
        elif mark in ("- ", "-"):
            before += line[2:] + "\n"
        elif mark in ("+ ", "+"):
            after += line[2:] + "\n"
        elif line and not line.startswith("#"):
            raise UsageError(f"line {number} of the mutants is not understood: {line}")
    return list(known.values())


def places(mutant: Mutant, root: Path = ROOT) -> list[Path]:
    """Files below dtd/ that have its text, one for each occurrence."""
    files = sorted((root / "dtd").rglob("*.py"))
    return [file for file in files for _ in range(file.read_text("utf-8").count(mutant.before))]


def plant(mutant: Mutant, root: Path) -> tuple[Path, str]:
    """Plant it in a tree; returns the file, and its text without the fault.

    Raises:
        UsageError: its text is not there exactly once.
    """
    found = places(mutant, root)
    if len(found) != 1:
        raise UsageError(
            f"the text of mutant {mutant.name!r} occurs {len(found)} times below dtd/, not once",
            remedy=f"bring {LIST.name} up to date",
        )
    text = found[0].read_text("utf-8")
    found[0].write_text(text.replace(mutant.before, mutant.after), "utf-8")
    return found[0], text
