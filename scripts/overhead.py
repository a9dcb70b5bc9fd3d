"""Cost of fault tolerance when nothing goes wrong: product against product without it.

    python -m scripts.overhead --data DIRECTORY --worlds 2,4 --groups 6

One job a world size.  Its steps run in blocks, in turn complete, bare, bare, complete: a bare block
has null digests, null checksums, no heartbeats, no beats and no control words.  So both kinds see
the same processes and the same noise of the machine.  Times are from one commit of rank 0 to the
next, so whatever is done between steps counts.  The interval is a bootstrap over groups of four
blocks, 95 %.  Tables are Markdown on stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.job import load_job, to_mapping
from dtd.wire import messages as m
from scripts.cluster.cluster import REPOSITORY
from scripts.cluster.log_timeline import ENDS, LogTail
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import Loopback
from scripts.overhead_daemon import BLOCK_VARIABLE, is_bare

GROUP_BLOCKS: Final = 4
DRAWS: Final = 5000
TURN_S: Final = 0.1
NEVER: Final = 1_000_000
# Twice as often as usual, which can only cost more; and no silent worker is evicted.
SETTINGS: Final = "heartbeat_interval_s = 0.125\nheartbeat_timeout_s = 3600.0\n"
DEFAULT_DATA: Final = REPOSITORY.parent / "shared" / "data" / "cifar10-subset.tar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Complete against bare.

    Attributes:
        complete_s: median step.
        bare_s: the same without fault tolerance.
        ratio: of the blocks' times.
        low: of the interval.
        high: of the interval.
        groups: so many times four blocks.
    """

    complete_s: float
    bare_s: float
    ratio: float
    low: float
    high: float
    groups: int


def cost(commits_s: dict[int, float], block_steps: int) -> Cost:
    """Compare blocks; the first group, in which everything warms up, is left out.

    Args:
        commits_s: when rank 0 committed each step.
        block_steps: length of a block.
    """
    times_s = {
        step: commits_s[step] - commits_s[step - 1] for step in commits_s if step - 1 in commits_s
    }
    group_steps = GROUP_BLOCKS * block_steps
    ratios: list[float] = []
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for first in itertools.count(group_steps, group_steps):
        steps = range(first + 1, first + group_steps + 1)
        if steps[-1] not in times_s:
            break
        totals = {True: 0.0, False: 0.0}
        for step in steps:
            bare = is_bare(step - 1, block_steps)
            totals[bare] += times_s[step]
            kinds[bare].append(times_s[step])
        ratios.append(math.log(totals[False] / totals[True]))
    low, high = _interval(ratios)
    return Cost(
        complete_s=statistics.median(kinds[False]),
        bare_s=statistics.median(kinds[True]),
        ratio=math.exp(statistics.fmean(ratios)),
        low=low,
        high=high,
        groups=len(ratios),
    )


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    chance = random.Random(0)  # noqa: S311 - not a secret
    means = sorted(statistics.fmean(chance.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return math.exp(means[int(0.025 * DRAWS)]), math.exp(means[int(0.975 * DRAWS)])


def measure(spec: dict[str, Any], world: int, block_steps: int) -> Cost:
    """Run one job on that many workers."""
    os.environ[BLOCK_VARIABLE] = str(block_steps)
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-overhead-"))
        directory = Path(name)
        settings = directory / "coordinator.toml"
        settings.write_text(SETTINGS)
        network = stack.enter_context(contextlib.closing(Loopback()))
        cluster = NetworkedCluster(
            directory,
            workers=[f"worker-{index}" for index in range(world)],
            network=network,
            coordinator=("scripts.overhead_daemon", "coordinator", "--config", str(settings)),
            worker=("scripts.overhead_daemon", "worker"),
        )
        stack.callback(cluster.stop)
        cluster.start_all()
        tail = stack.enter_context(contextlib.closing(cluster.log_tail()))
        cluster.try_ask(m.SubmitJob(spec=spec))
        return cost(_commits_s(tail), block_steps)


def _commits_s(tail: LogTail) -> dict[int, float]:
    """When rank 0 committed each step of the whole job."""
    commits_s: dict[int, float] = {}
    while True:
        for line in tail.poll():
            if line.event == "step_committed" and line.fields["rank"] == 0:
                commits_s[int(line.fields["step"])] = line.at_s
            if line.event in ENDS:
                if line.event != "job_done":
                    raise SystemExit(str(line.fields["message"]))
                return commits_s
        time.sleep(TURN_S)


@contextlib.contextmanager
def _data(given: Path) -> Iterator[Path | None]:
    """The image folder: given, or unpacked from an archive; None if there is nothing."""
    if given.is_dir():
        yield given
    elif given.is_file():
        with tempfile.TemporaryDirectory(prefix="dtd-data-") as target:
            with tarfile.open(given) as tar:
                tar.extractall(target, filter="data")
            yield next(path for path in Path(target).iterdir() if path.is_dir())
    else:
        yield None


def main() -> None:
    """Measure and print."""
    options = _parser().parse_args()
    with contextlib.ExitStack() as stack:
        overrides = [f"job.steps={(options.groups + 1) * GROUP_BLOCKS * options.block + 1}"]
        task = options.task
        if task == "cifar10":
            data = stack.enter_context(_data(options.data))
            if data is None:
                print(f"no CIFAR-10 in {options.data} (--data): synthetic instead", file=sys.stderr)
                task = "synthetic"
            else:
                overrides += [f'task.data="{data}"', "schedule.warmup_steps=2"]
        overrides += ["elastic.settle_s=0.0", f"train.eval_every={NEVER}", *options.set]
        overrides += [f"checkpoint.every_steps={NEVER}"]
        job = REPOSITORY / "docs" / "examples" / f"{task}.toml"
        spec = to_mapping(load_job(job, overrides))
        print(f"| workers | {task}: step | without | ratio | 95 % | groups |")
        print("|---|---|---|---|---|---|", flush=True)
        for world in options.worlds:
            one = measure(spec, world, options.block)
            print(
                f"| {world} | {1000 * one.complete_s:.1f} ms | {1000 * one.bare_s:.1f} ms |"
                f" {one.ratio:.4f} | {one.low:.4f} to {one.high:.4f} | {one.groups} |",
                flush=True,
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.overhead", description="What fault tolerance costs without faults."
    )
    add = parser.add_argument
    add("--task", default="cifar10", help="a job file in docs/examples (default: cifar10)")
    add("--data", type=Path, default=DEFAULT_DATA, help="CIFAR-10 as image folder or .tar of one")
    add("--worlds", type=_worlds, default=[2, 4], metavar="2,4")
    add("--groups", type=int, default=6, metavar="G", help="groups of four blocks")
    add("--block", type=int, default=25, metavar="K", help="steps of a block")
    add("--set", action="append", default=[], metavar="A.B=V", help="override a key of the job")
    return parser


def _worlds(text: str) -> list[int]:
    return [int(world) for world in text.split(",")]


if __name__ == "__main__":
    main()
