"""Inject faults into a cluster of real daemons, then check whether anything was lost.

    python -m scripts.chaos --scenario soak --seed 7
    python -m scripts.chaos --workers 4 --minutes 5 --faults 40 --kinds kill,stop,coordinator
    python -m scripts.chaos --workers 4 --faults 10 --kinds kill --codec powersgd

Exit codes: 0 all checks hold, 1 some do not or the daemons could not run, 2 usage.  The table and
the checks go to stdout, what happens meanwhile to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, get_args

from dtd.ctl import output
from dtd.errors import DtdError, UsageError
from scripts import markdown
from scripts.chaosrun.faults import KINDS
from scripts.chaosrun.judge import Growth, Outcome, spread
from scripts.chaosrun.run import SCENARIOS, NetworkKind, Result, Scenario, run
from scripts.cluster.networks import COORDINATOR
from scripts.cluster.processes import exit_on_stop_signals

# --- the tables at the end ------------------------------------------------------------------------


_THREE = "median, p99, max"


def kinds_of(found: Sequence[Outcome]) -> list[str]:
    """Kinds in the order in which they first happened."""
    return [*dict.fromkeys(outcome.injection.kind for outcome in found)]


def fault_table(found: Sequence[Outcome]) -> list[str]:
    """One Markdown row per kind of fault."""
    rows = []
    for kind in kinds_of(found):
        own = [outcome for outcome in found if outcome.injection.kind == kind]
        durations = (
            [one.detected_s for one in own],
            [one.evicted_s for one in own],
            [one.recovered_s for one in own],
        )
        lost = str(sum(outcome.steps_lost for outcome in own))
        rows.append([kind, str(len(own)), *(in_words(spread(one)) for one in durations), lost])
    head = ["fault", "count", *(f"{one}: {_THREE}" for one in ("detected", "evicted", "recovered"))]
    return markdown.table([*head, "steps lost"], rows).splitlines()


def phase_table(found: Sequence[Outcome], kind: str) -> list[str]:
    """Return the victims' phases for one kind of fault, and the others' pauses after it."""
    own = [outcome for outcome in found if outcome.injection.kind == kind]
    rows = []
    for phase, count in Counter(outcome.injection.phase for outcome in own).most_common():
        values = spread(o.recovered_s for o in own if o.injection.phase == phase)
        rows.append([phase, str(count), in_words(values)])
    return markdown.table(["phase", "count", f"recovered: {_THREE}"], rows).splitlines()


MOST_WORKERS: Final = 8
"""Workers in the table of memory; all are judged."""


def growth_table(growths: Growth) -> list[str]:
    """Return the memory, descriptors and threads of daemons, first against last third."""
    rows = []
    workers = [name for name in growths if name != COORDINATOR]
    shown = [name for name in growths if name not in workers] + workers[:MOST_WORKERS]
    for name in shown:
        figures = growths[name]
        first, last = figures["resident_bytes"]
        counts = (f"{a:g} -> {b:g}" for a, b in (figures["descriptors"], figures["threads"]))
        rows.append([name, f"{first / 1e6:.0f} -> {last / 1e6:.0f}", *counts])
    return markdown.table(["daemon", "memory, MB", "descriptors", "threads"], rows).splitlines()


def in_words(values: tuple[float, float, float] | None) -> str:
    """Three durations."""
    return "-" if values is None else ", ".join(f"{value:.3f}" for value in values) + " s"


# --- the command ----------------------------------------------------------------------------------


DEFAULT_SCENARIO: Final = "soak"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a scenario and return the exit code."""
    options = _parser().parse_args(arguments)
    exit_on_stop_signals()
    begun_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun_s:7.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        scenario = _scenario(options)
        with _directory(options.state_dir) as directory:
            result = run(
                scenario,
                directory=directory,
                task=options.task,
                seed=options.seed,
                overrides=[*_chosen(options), *options.set],
                say=say,
            )
    except DtdError as error:
        output.say_error(error, as_json=options.json)
        return error.exit_code
    if options.json:
        print(json.dumps(dataclasses.asdict(result), default=sorted))
    else:
        print("\n".join(_lines(result)))
    return 0 if all(one.holds for one in result.checks) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="Inject faults into a cluster of real daemons, and check what is lost.",
    )
    add = parser.add_argument
    add("--scenario", choices=sorted(SCENARIOS), default=DEFAULT_SCENARIO)
    add("--workers", type=int, metavar="N")
    add("--minutes", type=float, metavar="M", help="no new faults after so long")
    add("--faults", type=int, metavar="K", help="how many")
    add("--kinds", metavar="A,B,...", help=f"of {','.join(KINDS)}")
    add("--network", choices=get_args(NetworkKind), help="auto: the best that there is")
    add("--load", type=float, metavar="X", help="busy processes, as a multiple of the processors")
    add("--steps", type=int, metavar="N", help="of each job")
    add("--task", default="synthetic", help="task to train (default: synthetic)")
    add("--strategy", metavar="NAME", help="strategy.name of the job")
    add("--codec", metavar="NAME", help="strategy.codec of the job")
    add("--set", action="append", default=[], metavar="A.B=V", help="override a key of the job")
    add("--seed", type=int, default=0)
    add("--state-dir", type=Path, metavar="DIR", help="kept; default: temporary and removed")
    add("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _chosen(options: argparse.Namespace) -> list[str]:
    chosen = {"strategy.name": options.strategy, "strategy.codec": options.codec}
    return [f"{key}={value}" for key, value in chosen.items() if value is not None]


def _scenario(options: argparse.Namespace) -> Scenario:
    """The named one, with the settings of the command line."""
    given = {
        key: value
        for key in ("workers", "minutes", "faults", "network", "load", "steps")
        if (value := getattr(options, key)) is not None
    }
    if options.kinds:
        given["kinds"] = tuple(options.kinds.split(","))
        unknown = [kind for kind in given["kinds"] if kind not in KINDS]
        if unknown:
            raise UsageError(f"--kinds: there is no fault {unknown[0]!r}, only {', '.join(KINDS)}")
    return dataclasses.replace(SCENARIOS[options.scenario], **given)


def _lines(result: Result) -> list[str]:
    kinds = kinds_of(result.outcomes)
    lines = fault_table(result.outcomes)
    if "kill" in kinds:
        lines += ["", *phase_table(result.outcomes, "kill")]
    lines += ["", *growth_table(result.growths), ""]
    lines.append(
        f"{result.steps} steps, median {1000 * result.median_step_s:.1f} ms;"
        f" longest time between two steps {result.longest_stall_s:.2f} s"
    )
    one, all_ = (result.memory[key] / 1e6 for key in ("coordinator", "workers"))
    lines.append(f"coordinator {one:.0f} MB at most; all workers together {all_:.0f} MB")
    return [*lines, "", *map(str, result.checks)]


@contextlib.contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """The given directory, which must be empty; or a temporary one that is removed."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="dtd-chaos-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    given.mkdir(parents=True, exist_ok=True)
    if any(given.iterdir()):
        raise UsageError(f"--state-dir: {given} is not empty")
    yield given.resolve()


if __name__ == "__main__":
    sys.exit(main())
