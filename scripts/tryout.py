"""Try dtd as a new user, an operator and an enemy would, and record the results.

    scripts/tryout                    # run everything, print the table
    scripts/tryout --write            # and put it into docs/evaluation.md
    scripts/tryout --only hang        # rows whose words contain one of these

A row names something that was tried, what the first release did, what happens now, and the tests
that show it: real daemons wherever that is what counts.  They are run afresh; a row is "holds" if
all of them pass.  What a test has seen (`record_property("seen", ...)`) stands in the row.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dtd.errors import UsageError
from scripts import markdown

ROOT: Final = Path(__file__).resolve().parent.parent
ROWS: Final = ROOT / "scripts" / "tryout.toml"
PAGE: Final = ROOT / "docs" / "evaluation.md"
MARK: Final = "tried"
WRITTEN_BY: Final = "scripts/tryout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that was tried.

    Attributes:
        tried: the attempt.
        first: the result in the first release.
        now: what happens now.
        tests: node ids of pytest; without a parameter, all of a test's parameters count.
    """

    tried: str
    first: str
    now: str
    tests: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Outcome of one test, all of its parameters together.

    Attributes:
        passed, failed, skipped: their numbers.
        took_s: all of them together, without fixtures that others had set up.
        seen: its records.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    took_s: float = 0.0
    seen: list[str] = field(default_factory=list)

    def add(self, case: ET.Element) -> None:
        """One more `testcase` of a JUnit report."""
        self.took_s += float(case.get("time") or 0)
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            self.failed += 1
        elif "skipped" in kinds:
            self.skipped += 1
        else:
            self.passed += 1
        self.seen += [
            str(one.get("value")) for one in case.iter("property") if one.get("name") == "seen"
        ]


def read_rows(path: Path = ROWS) -> list[Row]:
    """All rows, in the order of the file."""
    listed = tomllib.loads(path.read_text("utf-8"))["row"]
    return [Row(**{**row, "tests": tuple(row["tests"])}) for row in listed]


def chosen(rows: Sequence[Row], words: Sequence[str]) -> list[Row]:
    """Rows that contain one of the words; all rows without any.

    Raises:
        UsageError: no row does.
    """

    def fits(row: Row) -> bool:
        text = f"{row.tried} {row.now}".lower()
        return not words or any(word.lower() in text for word in words)

    found = [row for row in rows if fits(row)]
    if not found:
        raise UsageError(f"no row contains {' or '.join(words)}", remedy=f"see {ROWS}")
    return found


def in_file_order(tests: Iterable[str]) -> list[str]:
    """Tests as their files have them: those of a file share daemons, and take over from another."""

    def place(test: str) -> tuple[str, int, str]:
        path, _, name = test.partition("::")
        definition = f"def {name.partition('[')[0]}("
        return path, (ROOT / path).read_text("utf-8").index(definition), name

    return sorted(tests, key=place)


def run_tests(tests: Sequence[str]) -> dict[str, Outcome]:
    """Run the tests, a file by one of two processes; outcomes by node id."""
    with tempfile.TemporaryDirectory(prefix="dtd-tryout-") as directory:
        report = Path(directory, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}"]
        command += ["--numprocesses", "2", "--dist", "loadfile"]
        subprocess.run([*command, *tests], cwd=ROOT, check=False, stdout=sys.stderr)
        if not report.exists():
            raise SystemExit("pytest has written no report: see above")
        return read_report(report.read_text("utf-8"))


def read_report(text: str) -> dict[str, Outcome]:
    """Outcomes of a JUnit report that pytest has just written, by node id.

    A test with parameters stands there with each of them, and without for all of them together.
    """
    outcomes: dict[str, Outcome] = {}
    for case in ET.fromstring(text).iter("testcase"):  # noqa: S314
        path = (case.get("classname") or "").replace(".", "/") + ".py"
        name = case.get("name") or ""
        for node in {f"{path}::{name}", f"{path}::{name.partition('[')[0]}"}:
            outcomes.setdefault(node, Outcome()).add(case)
    return outcomes


def table(rows: Sequence[Row], outcomes: Mapping[str, Outcome]) -> str:
    """The table, in Markdown."""
    lines = []
    for row in rows:
        seen = [outcomes.get(test, Outcome()) for test in row.tests]
        words = [verdict(seen), *(text for one in seen for text in one.seen)]
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in row.tests)
        cells = (row.tried, row.first, row.now, "; ".join(words), tests)
        lines.append([cell.replace("|", "\\|") for cell in cells])
    return markdown.table(["tried", "the first release", "now", "seen", "shown by"], lines)


def verdict(seen: Sequence[Outcome]) -> str:
    """Whether a row holds, and the number of tests that show it."""
    failed = sum(one.failed for one in seen)
    passed = sum(one.passed for one in seen)
    if failed or any(one.passed + one.failed + one.skipped == 0 for one in seen):
        return f"**does not hold** ({failed} of {failed + passed} failed)"
    if not passed:
        return "not tried here: its tests were skipped"
    skipped = sum(one.skipped for one in seen)
    return f"holds ({passed} tests{f', {skipped} skipped' if skipped else ''})"


def main() -> int:
    """Run the command; 1 if a row does not hold."""
    parser = argparse.ArgumentParser(prog="scripts/tryout", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="rows with a word")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    rows = chosen(read_rows(), options.only)
    begun_s = time.monotonic()
    outcomes = run_tests(in_file_order({test for row in rows for test in row.tests}))
    made = table(rows, outcomes)
    print(made)
    print(f"{len(rows)} rows, {time.monotonic() - begun_s:.0f} s", file=sys.stderr)
    if options.write:
        markdown.put_into(PAGE, MARK, WRITTEN_BY, made)
    return int("does not hold" in made)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        sys.exit(str(error))
