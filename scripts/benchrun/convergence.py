"""`scripts/bench convergence`: results and times of training with 1, 2 and 4 workers.

Real daemons train the example jobs to their end, and a plain loop of one process does as well
(`scripts.benchrun.torch_side`), with the same model, batch, optimizer and schedule.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from dtd.job import load_job, to_mapping
from scripts import evaluate
from scripts.benchrun.daemons import OneHost, own_network
from scripts.benchrun.ranks import World
from scripts.benchrun.results import Record, keep, machine
from scripts.cluster.cluster import REPOSITORY

KIND: Final = "convergence"
KEY: Final = ("task", "workers")
WORLDS: Final = (1, 2, 4)
PLAIN: Final = "plain loop"
DATA: Final = REPOSITORY.parent / "shared" / "data"
OVERRIDES: Final = {
    "digits": (),
    "chargpt": ("job.steps=500", "schedule.warmup_steps=50", "train.eval_every=1000000"),
    "cifar10": ("job.epochs=8", "schedule.warmup_steps=80", "task.width=16"),
}
QUICK_OVERRIDES: Final = ("job.epochs=1",)
MOST_POINTS: Final = 120


def run(options: argparse.Namespace) -> None:
    """Train each task in each world, and once plainly."""
    worlds: Sequence[int] = options.worlds or ((2,) if options.quick else WORLDS)
    own_network()
    about = machine()
    with contextlib.ExitStack() as stack:
        usual = ["digits"] if options.quick else [*OVERRIDES]
        for task in options.tasks or usual:
            data = stack.enter_context(_data_overrides(task, options.data))
            if data is None:
                problem = f"{task}: its data is not in {options.data.name} (--data), left out"
                print(problem, file=sys.stderr)
                continue
            overrides = [*OVERRIDES[task], *data, *(QUICK_OVERRIDES if options.quick else ())]
            for record in _trained(task, worlds, overrides, options.rounds or 1):
                line = f"{task}, {record['workers']}: {record['metrics']}"
                keep(KIND, [{**record, "machine": about}], KEY, options, line)


def _trained(
    task: str, worlds: Sequence[int], overrides: Sequence[str], rounds: int
) -> Iterator[Record]:
    """Records of the plain loop and of each world; each with one seed a round."""
    seeds = [[*overrides, f"job.seed={seed}"] for seed in range(rounds)]
    yield _record(task, PLAIN, [_plain(task, one) for one in seeds])
    for world in worlds:
        yield _record(task, str(world), [_daemons(task, world, one) for one in seeds])


def _record(task: str, workers: str, runs: Sequence[dict[str, Any]]) -> Record:
    """The first seed's curve, every seed's result."""
    return {
        "task": task,
        "workers": workers,
        "curve": thinned(runs[0]["curve"]),
        "metrics": [one["metrics"] for one in runs],
    }


def thinned(points: Sequence[list[float]]) -> list[list[float]]:
    """At most `MOST_POINTS` points: [step, seconds, mean loss of the steps since the last one]."""
    stride = -(-len(points) // MOST_POINTS)
    groups = [points[first : first + stride] for first in range(0, len(points), stride)]
    return [
        [group[-1][0], group[-1][1], sum(point[2] for point in group) / len(group)]
        for group in groups
    ]


def _daemons(task: str, world: int, overrides: Sequence[str]) -> dict[str, Any]:
    done = evaluate.run(task, world, overrides)
    at_s = [datetime.fromisoformat(step["ts"]).timestamp() for step in done.steps]
    begun_s = at_s[0] - float(done.steps[0]["step_s"])
    curve = [
        [int(step["step"]), now_s - begun_s, float(step["loss"])]
        for step, now_s in zip(done.steps, at_s, strict=True)
    ]
    summary = done.summary
    return {
        "curve": curve,
        "metrics": {"loss": summary["eval_loss"], "accuracy": summary["eval_accuracy"]},
    }


def _plain(task: str, overrides: Sequence[str]) -> dict[str, Any]:
    spec = to_mapping(load_job(evaluate.EXAMPLES / f"{task}.toml", overrides))
    with World("torch", 1, OneHost(), {"keeps_memory": True}) as world:
        answer: dict[str, Any] = world.ask("fit", spec=spec)[0]
    return answer


@contextlib.contextmanager
def _data_overrides(task: str, directory: Path) -> Iterator[list[str] | None]:
    """Yield the overrides that name a task's data; None when it is not there."""
    text = directory / "tinyshakespeare.txt"
    if task == "chargpt":
        yield [f'task.text="{text}"', "task.dropout=0.0"] if text.is_file() else None
    elif task == "cifar10":
        with unpacked_images(directory) as images:
            yield None if images is None else [f'task.data="{images}"']
    else:
        yield []


@contextlib.contextmanager
def unpacked_images(directory: Path) -> Iterator[Path | None]:
    """The image folder of the archive in this directory; None when it is not there."""
    archive = directory / "cifar10-subset.tar"
    if not archive.is_file():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="dtd-data-") as target:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
        yield next(Path(target).iterdir())
