"""Mutation tests of the simulation: one fault at a time is planted in a copy of the tree.

`scripts/mutate` plants every fault of mutants.txt, or those named, and says what finds each: a rule
of the simulation, a story that is told otherwise, or a property test.  `--write` puts the table
into docs/evaluation.md.  What found a fault the last time is played first.

A mutant replaces lines of source text that occur exactly once below `dtd/`.  It names no file, so a
file may be moved and the list still holds; a test checks that each finds its place.
"""

from __future__ import annotations

import argparse
import compileall
import json
import queue
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.errors import UsageError
from scripts import markdown

ROOT: Final = Path(__file__).resolve().parent.parent
LIST: Final = Path(__file__).with_name("mutants.txt")
PAGE: Final = ROOT / "docs" / "evaluation.md"
MARK: Final = "mutants"
MOST_S: Final = 120.0
"""Most processor time, for all plans of one mutant."""
HANGS_S: Final = 1800.0
"""Most wall time: then nothing is found; a plan that never ends is a failure by itself."""
PROPERTY: Final = Path("tests/property")
PROPERTIES: Final = tuple(
    f"test_{one}.py"
    for one in (
        *("step_protocol", "star", "ring", "transitions", "local_state", "codecs", "sampler"),
        "allocation",
    )
)
"""Tests of pure code, for faults that change nothing in the simulation."""
FAILS: Final = "a property test fails"
COPIED: Final = ("dtd", "tests", "scripts", "docs", "systemd", "pyproject.toml", "README.md")

Row = dict[str, Any]
"""A result: "rule" that was broken ("" for none), "by" a story, seed or test, a story
"told_otherwise", "seconds" of processor time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault to plant: whole lines `before` in the source are replaced by those `after`."""

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


def plant(mutant: Mutant, root: Path) -> tuple[Path, str]:
    """Plant it in a tree; returns the file, and its text without the fault.

    Raises:
        UsageError: its text is not there exactly once.
    """
    texts = {file: file.read_text("utf-8") for file in sorted((root / "dtd").rglob("*.py"))}
    found = [file for file, text in texts.items() for _ in range(text.count(mutant.before))]
    if len(found) != 1:
        raise UsageError(
            f"the text of mutant {mutant.name!r} occurs {len(found)} times below dtd/, not once",
            remedy=f"bring {LIST.name} up to date",
        )
    (file,) = found
    file.write_text(texts[file].replace(mutant.before, mutant.after), "utf-8")
    return file, texts[file]


def main(arguments: Sequence[str]) -> int:
    """Plant faults; see the module."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description="Plant faults.")
    parser.add_argument("names", nargs="*", metavar="WORDS", help="only mutants with these words")
    parser.add_argument("--list", action="store_true", help="name the mutants")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--seconds", type=float, default=MOST_S, help="for each (default 120)")
    parser.add_argument("--results", type=Path, help="a file of earlier results, kept up to date")
    parser.add_argument("--write", action="store_true", help="write the table of --results")
    parsed = parser.parse_args(arguments)
    wanted = [one for one in mutants() if all(word in one.name for word in parsed.names)]
    if parsed.list:
        sys.stdout.write("".join(f"{one.area}: {one.name}\n" for one in wanted))
        return 0
    known = _read(parsed.results)
    for mutant, row in _play_all(wanted, parsed, known):
        known[mutant.name] = row
        print(f"{mutant.name}: {_result(row)} ({row['by'] or '-'}, {row['seconds']:.0f} s)")
        sys.stdout.flush()
        if parsed.results:
            parsed.results.write_text(json.dumps(known, indent=1))
    if parsed.write:
        markdown.put_into(PAGE, MARK, "scripts/mutate", table(known, parsed.seconds))
    return 0


def _play_all(
    wanted: Sequence[Mutant], parsed: argparse.Namespace, known: dict[str, Row]
) -> Iterator[tuple[Mutant, Row]]:
    with tempfile.TemporaryDirectory(prefix="dtd-mutants-") as directory:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(parsed.jobs):
            trees.put(_copy(Path(directory) / str(number)))

        def play(mutant: Mutant) -> tuple[Mutant, Row]:
            tree = trees.get()
            file, text = plant(mutant, tree)
            try:
                return mutant, _play(tree, parsed, known.get(mutant.name, {}).get("by", ""))
            finally:
                file.write_text(text, "utf-8")
                trees.put(tree)

        with ThreadPoolExecutor(parsed.jobs) as pool:
            futures = [pool.submit(play, mutant) for mutant in wanted]
            yield from (one.result() for one in as_completed(futures))


def _copy(tree: Path) -> Path:
    tree.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, tree / name, ignore=ignored)
        else:
            shutil.copy(source, tree / name)
    compileall.compile_dir(tree, quiet=2)  # what is planted is newer than that
    return tree


def _play(tree: Path, parsed: argparse.Namespace, hint: str) -> Row:
    if "::" in hint and (failed := _test(tree, hint)):
        return failed
    row = _judge(tree, parsed, "" if "::" in hint else hint)
    if row["rule"] or row["told_otherwise"]:
        return {**row, "by": row["by"] or row["told_otherwise"]}
    return _test(tree, *PROPERTIES) or row


def _judge(tree: Path, parsed: argparse.Namespace, hint: str) -> Row:
    command = [sys.executable, "-B", "-m", "tests.sim", "--judge", str(parsed.seconds)]
    command += ["--first", hint] if hint else []
    none: Row = {"rule": "", "by": "", "told_otherwise": "", "seconds": parsed.seconds}
    try:
        ended = _run(tree, *command)
    except subprocess.TimeoutExpired:
        return none
    if ended.returncode:
        words = ended.stderr.strip().splitlines()[-1:] or ["it ended"]
        return {**none, "rule": words[0][:80], "seconds": 0.0}
    verdict = json.loads(ended.stdout)
    return {name: verdict[name] for name in none}


def _test(tree: Path, *names: str) -> Row | None:
    """Run property tests; returns the result if one fails."""
    command = [sys.executable, "-B", "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    begun_s = _children_s()
    ended = _run(tree, *command, *(str(PROPERTY / name) for name in names))
    failed = re.search(rf"^FAILED {PROPERTY}/(\S+)", ended.stdout, re.M)
    if failed is None:
        return None
    seconds = _children_s() - begun_s
    return {"rule": FAILS, "by": failed[1], "told_otherwise": "", "seconds": seconds}


def _run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=tree, capture_output=True, text=True, timeout=HANGS_S, check=False
    )


def _children_s() -> float:
    """Processor time of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read(results: Path | None) -> dict[str, Row]:
    """Read earlier results: those of the file, else of the table in the document."""
    if results is not None and results.exists():
        return dict(json.loads(results.read_text()))
    rows = re.findall(r"^\| [^|]* \| ([^|]*) \| [^|]* \| `([^|`]*)` \|", PAGE.read_text(), re.M)
    return {name: {"by": by} for name, by in rows}


def table(known: dict[str, Row], most_s: float) -> str:
    """The results as a table of Markdown, with a sum above it."""
    played = [(one, known[one.name]) for one in mutants() if "seconds" in known.get(one.name, {})]
    tested = sum(row["rule"] == FAILS for _, row in played)
    broken = sum(bool(row["rule"]) for _, row in played) - tested
    told = sum(bool(row["told_otherwise"]) and not row["rule"] for _, row in played)
    dead = broken + told + tested
    percent = 100 * dead / max(1, len(played))
    total = (
        f"{dead} of {len(played)} planted faults ({percent:.0f} %) are found: {broken} break a rule"
        f" of the simulation within {most_s:g} s of processor time, {told} more change a story,"
        f" {tested} fail a property test."
    )
    heading = ["in", "planted fault", "what it does", "found by"]
    lines = [
        [one.area, one.name, _result(row), f"`{row['by']}`" if row["by"] else "-"]
        for one, row in played
    ]
    return "\n".join([total, "", markdown.table(heading, lines)])


def _result(row: Row) -> str:
    if row["rule"]:
        return str(row["rule"]).replace("|", "or")
    return "a story differs" if row["told_otherwise"] else "**nothing**"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
