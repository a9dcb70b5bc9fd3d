"""Hurt a cluster of real daemons, then see whether anything was lost.

    python -m scripts.chaos --scenario soak --seed 7
    python -m scripts.chaos --workers 4 --minutes 5 --faults 40 --kinds kill,stop,coordinator

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, get_args

from dtd.ctl import output
from dtd.errors import DtdError, UsageError
from scripts.chaosrun import report
from scripts.chaosrun.faults import KINDS
from scripts.chaosrun.run import SCENARIOS, NetworkKind, Result, Scenario, run
from scripts.cluster.processes import exit_on_stop_signals

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
                overrides=options.set,
                say=say,
            )
    except DtdError as error:
        output.say_error(error, as_json=options.json)
        return error.exit_code
    print("\n".join(_json(result) if options.json else _lines(result)))
    return 0 if all(one.holds for one in result.checks) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description="Hurt a cluster of real daemons and see what is lost."
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
    add("--set", action="append", default=[], metavar="A.B=V", help="override a key of the job")
    add("--seed", type=int, default=0)
    add("--state-dir", type=Path, metavar="DIR", help="kept; default: temporary and removed")
    add("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _scenario(options: argparse.Namespace) -> Scenario:
    """The named one, with what was given on the command line."""
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
    kinds = report.kinds_of(result.outcomes)
    lines = report.fault_table(result.outcomes)
    if "kill" in kinds:
        lines += ["", *report.phase_table(result.outcomes, "kill")]
    if result.rejoins and kinds == ["kill"]:
        lines += ["", *report.rejoin_lines(result.rejoins)]
    lines += ["", *report.growth_table(result.growths), ""]
    lines.append(
        f"{result.steps} steps, median {1000 * result.median_step_s:.1f} ms;"
        f" longest time between two steps {result.longest_stall_s:.2f} s"
    )
    lines.append(f"incidents as the coordinator tells them: {json.dumps(result.events)}")
    return [*lines, "", *(one.in_words() for one in result.checks)]


def _json(result: Result) -> list[str]:
    return [
        json.dumps(
            report.as_object(
                result.outcomes,
                result.checks,
                result.growths,
                rejoins=[dataclasses.asdict(one) for one in result.rejoins],
                events=result.events,
                steps=result.steps,
                median_step_s=result.median_step_s,
                longest_stall_s=result.longest_stall_s,
            )
        )
    ]


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
