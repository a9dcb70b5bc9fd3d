"""Mutation tests of the simulation: one fault at a time is planted in a copy of the tree.

`scripts/mutate` plants every fault of `scripts.mutants`, or those named, and says which rule of the
simulation finds each; `--unit` runs the unit tests, too, for those that no rule finds, and
`--write` puts the table into docs/evaluation.md.  What found a fault the last time is played first.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts import markdown
from scripts.mutants import ROOT, Mutant, mutants, plant

PAGE: Final = ROOT / "docs" / "evaluation.md"
MARK: Final = "mutants"
MOST_S: Final = 120.0
"""Most processor time, for all plans of one mutant."""
HANGS_S: Final = 1800.0
"""Most wall time: then nothing is found; a plan that never ends is a failure by itself."""
COPIED: Final = ("dtd", "tests", "scripts", "docs", "systemd", "pyproject.toml", "README.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The test that noticed a fault.

    Attributes:
        mutant: the fault.
        rule: of the simulation; empty when none was broken.
        by: the story or seed that broke it.
        told_otherwise: else, a story that came out different.
        seconds: of processor time until then.
        unit: whether unit tests failed; None when they were not asked.
    """

    mutant: Mutant
    rule: str
    by: str
    told_otherwise: str
    seconds: float
    unit: bool | None = None


def main(arguments: Sequence[str]) -> int:
    """Plant faults; see the module."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description="Plant faults.")
    parser.add_argument("names", nargs="*", metavar="WORDS", help="only mutants with these words")
    parser.add_argument("--list", action="store_true", help="name the mutants")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--seconds", type=float, default=MOST_S, help="for each (default 120)")
    parser.add_argument("--unit", action="store_true", help="run unit tests for those that survive")
    parser.add_argument("--results", type=Path, help="a file of earlier results, kept up to date")
    parser.add_argument("--missing", action="store_true", help="leave out what a rule has found")
    parser.add_argument("--write", action="store_true", help="write the table of --results")
    parsed = parser.parse_args(arguments)
    wanted = [one for one in mutants() if all(word in one.name for word in parsed.names)]
    if parsed.list:
        sys.stdout.write("".join(f"{one.area}: {one.name}\n" for one in wanted))
        return 0
    known = _read(parsed.results)
    if parsed.missing:
        wanted = [one for one in wanted if not known.get(one.name, {}).get("rule")]
    for result in _all(wanted, parsed, known):
        known[result.mutant.name] = _row(result)
        sys.stdout.write(f"{_said(result)}\n")
        sys.stdout.flush()
        if parsed.results:
            parsed.results.write_text(json.dumps(known, indent=1))
    if parsed.write:
        markdown.put_into(PAGE, MARK, "scripts/mutate", table(known, parsed.seconds))
    return 0


# --- playing ------------------------------------------------------------------------------------


def _all(
    wanted: Sequence[Mutant], parsed: argparse.Namespace, known: dict[str, dict[str, Any]]
) -> Any:
    with tempfile.TemporaryDirectory(prefix="dtd-mutants-") as directory:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(parsed.jobs):
            trees.put(_copy(Path(directory) / str(number)))

        def play(mutant: Mutant) -> Result:
            tree = trees.get()
            file, text = plant(mutant, tree)
            try:
                hint = known.get(mutant.name, {}).get("by", "")
                return _played(mutant, tree, parsed, hint)
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
    return tree


def _played(mutant: Mutant, tree: Path, parsed: argparse.Namespace, hint: str) -> Result:
    command = [sys.executable, "-B", "-m", "tests.sim", "--judge", str(parsed.seconds)]
    command += ["--first", hint] if hint else []
    try:
        ended = subprocess.run(
            command,
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Result(mutant=mutant, rule="", by="", told_otherwise="", seconds=parsed.seconds)
    if ended.returncode:
        words = ended.stderr.strip().splitlines()[-1:] or ["it ended"]
        return Result(mutant=mutant, rule=words[0][:80], by="", told_otherwise="", seconds=0.0)
    said = json.loads(ended.stdout)
    unit = _fails(tree) if parsed.unit and not said["rule"] else None
    return Result(
        mutant=mutant,
        rule=said["rule"],
        by=said["by"],
        told_otherwise=said["told_otherwise"],
        seconds=said["seconds"],
        unit=unit,
    )


def _fails(tree: Path) -> bool:
    """Whether a unit test of the pure parts fails."""
    tests = [f"tests/unit/{part}" for part in ("core", "train", "coordinator")]
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ended = subprocess.run(command, cwd=tree, capture_output=True, env=environment, check=False)
    return ended.returncode == 1


# --- telling -------------------------------------------------------------------------------------


def _read(results: Path | None) -> dict[str, dict[str, Any]]:
    """Read earlier results: those of the file, else of the table in the document."""
    if results is not None and results.exists():
        return dict(json.loads(results.read_text()))
    rows = re.findall(r"^\| [^|]* \| ([^|]*) \| [^|]* \| `([^|`]*)` \|", PAGE.read_text(), re.M)
    return {name: {"by": by} for name, by in rows}


def _row(result: Result) -> dict[str, Any]:
    return {
        "rule": result.rule,
        "by": result.by,
        "told_otherwise": result.told_otherwise,
        "seconds": round(result.seconds, 1),
        "unit": result.unit,
    }


def _said(result: Result) -> str:
    if result.rule:
        return f"{result.mutant.name}: {result.rule} ({result.by}, {result.seconds:.0f} s)"
    other = f"; another story: {result.told_otherwise}" if result.told_otherwise else ""
    unit = {None: "", True: "; a unit test fails", False: "; unit tests pass"}[result.unit]
    return f"{result.mutant.name}: SURVIVES the rules{other}{unit}"


def table(known: dict[str, dict[str, Any]], most_s: float) -> str:
    """The results as a table of Markdown, with a sum above it."""
    played = [(one, known[one.name]) for one in mutants() if "seconds" in known.get(one.name, {})]
    dead = sum(1 for _, row in played if row["rule"])
    percent = 100 * dead / max(1, len(played))
    total = (
        f"{dead} of {len(played)} planted faults ({percent:.0f} %) break a rule of the simulation"
        f" within {most_s:g} s of processor time."
    )
    heading = ["in", "planted fault", "rule that it breaks", "found by"]
    lines = [[one.area, one.name, _noticed(row), _code(row["by"])] for one, row in played]
    return "\n".join([total, "", markdown.table(heading, lines)])


def _noticed(row: dict[str, Any]) -> str:
    if row["rule"]:
        return str(row["rule"]).replace("|", "or")
    others = ["a story differs"] * bool(row["told_otherwise"]) + ["a unit test fails"] * bool(
        row["unit"]
    )
    return "; ".join(["**none**", *others])


def _code(by: str) -> str:
    return f"`{by}`" if by else "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
