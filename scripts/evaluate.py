"""Measure what docs/evaluation.md states: real daemons, real tasks, one table per question.

    python -m scripts.evaluate curves --task chargpt --worlds 1,2,4 --set job.steps=200
    python -m scripts.evaluate speedup --task cifar10 --rounds 3
    python -m scripts.evaluate twice --task digits --world 4

Every run is `scripts.launch_local` with its own daemons and directory; per-step figures come from
the workers' JSON logs, medians over all steps but the first few.  Tables are Markdown on stdout.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts import markdown

WARM_STEPS: Final = 5
EXAMPLES: Final = Path("docs/examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished local run: the launcher's JSON object, and `step_committed` records of rank 0."""

    summary: dict[str, Any]
    steps: list[dict[str, Any]]

    def median(self, key: str) -> float:
        """Median of a per-step figure, the first few steps left out."""
        steps = self.steps[WARM_STEPS:] or self.steps
        return float(statistics.median(step[key] for step in steps))

    @property
    def rows_per_s(self) -> float:
        """Rows a second by the median step."""
        return self.median("rows") / self.median("step_s")


def command(task: str, world: int, directory: Path, overrides: Sequence[str]) -> list[str]:
    """The launcher's command for an example job."""
    job = EXAMPLES / f"{task}.toml"
    sets = [word for override in overrides for word in ("--set", override)]
    return [
        *(sys.executable, "-m", "scripts.launch_local", "--json", "--job", str(job)),
        *("--num_workers", str(world), "--state-dir", str(directory), *sets),
    ]


def run(task: str, world: int, overrides: Sequence[str]) -> Run:
    """Run one job to its end."""
    with tempfile.TemporaryDirectory(prefix="dtd-evaluate-") as directory:
        done = subprocess.run(
            command(task, world, Path(directory), overrides),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "DTD_LOG_LEVEL": "debug"},  # one line a step
            check=True,
        )
        steps = sorted(_steps(Path(directory)), key=lambda step: int(step["step"]))
        return Run(summary=json.loads(done.stdout), steps=steps)


def _steps(directory: Path) -> Iterator[dict[str, Any]]:
    for log in directory.glob("worker-*.log"):
        for line in log.read_text().splitlines():
            if '"step_committed"' in line:
                record = json.loads(line)
                if record["rank"] == 0:
                    yield record


def curves(options: argparse.Namespace) -> None:
    """The same job at several world sizes: is the curve the same?"""
    runs = {world: run(options.task, world, options.set) for world in options.worlds}
    reference = [step["loss"] for step in runs[options.worlds[0]].steps]
    head = ["workers", "first loss", "last loss", "evaluation", "largest difference"]
    rows = []
    for world, one in runs.items():
        losses = [step["loss"] for step in one.steps]
        apart = max(abs(a - b) for a, b in zip(losses, reference, strict=True))
        summary = one.summary
        evaluation = f"loss {summary['eval_loss']:.4f}, accuracy {summary['eval_accuracy']:.4f}"
        values = [f"{losses[0]:.4f}", f"{losses[-1]:.4f}", evaluation, f"{apart:.2g}"]
        rows.append([str(world), *values, _equal(summary)])
    print(markdown.table([*head, "equal replicas"], rows))


def speedup(options: argparse.Namespace) -> None:
    """One process against two (or more), interleaved; one thread each."""
    rates: dict[int, list[float]] = {world: [] for world in options.worlds}
    last: dict[int, Run] = {}
    order = [*options.worlds, *reversed(options.worlds)]
    for world in itertools.islice(itertools.cycle(order), options.rounds * len(options.worlds)):
        last[world] = run(options.task, world, options.set)
        rates[world].append(last[world].rows_per_s)
    base = statistics.median(rates[options.worlds[0]])
    head = ["workers", "rows/s (median, range)", "ratio", "step", "compute", "comm", "exposed"]
    rows = []
    for world, values in rates.items():
        median = statistics.median(values)
        times = [f"{last[world].median(k) * 1000:.1f} ms" for k in _TIMES]
        spread = f"{median:.1f} ({min(values):.1f} to {max(values):.1f})"
        rows.append([str(world), spread, f"{median / base:.2f}", *times])
    print(markdown.table(head, rows))


_TIMES: Final = ("step_s", "compute_s", "comm_s", "exposed_s")


def twice(options: argparse.Namespace) -> None:
    """The same command twice: is the final state the same, bit for bit?"""
    digests = [
        set(run(options.task, options.world, options.set).summary["replica_digests"].values())
        for _ in range(2)
    ]
    same = len(digests[0]) == 1 and digests[0] == digests[1]
    print(f"{options.task}, {options.world} workers, twice: {'same' if same else 'NOT same'}")
    print(", ".join(sorted(digests[0] | digests[1])))


def _equal(summary: dict[str, Any]) -> str:
    digests = set(summary["replica_digests"].values())
    return "yes" if len(digests) == 1 else "NO"


def _worlds(text: str) -> list[int]:
    return [int(world) for world in text.split(",")]


def main() -> None:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.evaluate", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for function in (curves, speedup, twice):
        one = commands.add_parser(function.__name__, help=function.__doc__)
        one.add_argument("--task", default="digits", help="a job file in docs/examples")
        one.add_argument("--worlds", type=_worlds, default=[1, 2], metavar="1,2,4")
        one.add_argument("--world", type=int, default=4)
        one.add_argument("--rounds", type=int, default=3)
        one.add_argument("--set", action="append", default=[], metavar="A.B=V")
        one.set_defaults(function=function)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
