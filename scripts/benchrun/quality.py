"""`scripts/bench quality`: the effect of a strategy on results, after equally many rows.

Four ranks train in one process over the in-process ring, with the strategies, codecs and engine of
the product and without its daemons: the numbers are those that daemons would get, as it is bytes
that decide them and no time.  A run is one strategy, task and seed; those that are in the figures
already are not made again, so the table can be filled bit by bit.
"""

from __future__ import annotations

import argparse
import contextlib
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtd.errors import UsageError
from scripts.benchrun.results import keep, load, machine
from scripts.cluster.cluster import REPOSITORY

KIND: Final = "quality"
KEY: Final = ("task", "strategy", "seed")
SEEDS: Final = (0, 1, 2)
QUICK_STEPS: Final = 4
DATA: Final = REPOSITORY.parent / "shared" / "data"
MOST_POINTS: Final = 120
_TASKS: Final = "scripts.benchrun.quality_run"
_NEVER: Final = 1_000_000

Tables = Mapping[str, Mapping[str, Any]]

JOBS: Final[Mapping[str, Tables]] = {
    "resnet": {
        "job": {"steps": 160, "global_batch_size": 64},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
        "schedule": {"name": "cosine", "warmup_steps": 16},
    },
    "chargpt": {
        "job": {"steps": 480, "global_batch_size": 32},
        "optimizer": {"name": "adamw", "lr": 2e-3, "weight_decay": 0.1, "beta2": 0.95},
        "schedule": {"name": "cosine", "warmup_steps": 48},
    },
}
"""ResNet-18 of a quarter of its width on small images; a small transformer on characters."""

_MOMENTUM: Final = 0.9
_WARM_UP: Final = "warm_up_share"
_SPARSE: Final = {"density": 0.01, "momentum": _MOMENTUM}
STRATEGIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "float32": {},
    "bfloat16": {"codec": "bfloat16"},
    "float16": {"codec": "float16"},
    "int8": {"codec": "int8"},
    "PowerSGD rank 4": {"codec": "powersgd", "rank": 4},
    "PowerSGD rank 1": {"codec": "powersgd", "rank": 1},
    "sign": {"codec": "sign"},
    "top-k 1 %": {"codec": "top_k", **_SPARSE, _WARM_UP: 0.25},
    "top-k 1 % without warm-up": {"codec": "top_k", **_SPARSE},
    "top-k 1 % without momentum": {"codec": "top_k", "density": 0.01, _WARM_UP: 0.25},
    "random-k 1 %": {"codec": "random_k", **_SPARSE, _WARM_UP: 0.25},
    "local SGD H = 8": {"name": "local_sgd", "inner_steps": 8},
    "DiLoCo H = 32": {"name": "diloco", "inner_steps": 32},
    "DiLoCo H = 32 from step 64": {"name": "diloco", "inner_steps": 32, "local_start_step": 64},
    "DiLoCo H = 32 int8": {"name": "diloco", "inner_steps": 32, "codec": "int8"},
    "streaming DiLoCo H = 32": {"name": "streaming_diloco", "inner_steps": 32, "fragments": 4},
}
"""Their `[strategy]` tables; a warm-up is a share of the steps."""


def run(options: argparse.Namespace) -> None:
    """Make the runs that are missing."""
    unknown = [name for name in options.strategies or () if name not in STRATEGIES]
    unknown += [name for name in options.tasks or () if name not in JOBS]
    if unknown:
        raise UsageError(
            f"there is no {unknown[0]!r}",
            remedy=f"strategies are {', '.join(STRATEGIES)}; tasks are {', '.join(JOBS)}",
        )
    seeds = range(options.seeds) if options.seeds else SEEDS[:1] if options.quick else SEEDS
    about = machine()
    done = {tuple(one[name] for name in KEY) for one in load(KIND, options.directory)}
    with contextlib.ExitStack() as stack:
        for task in options.tasks or JOBS:
            arguments = stack.enter_context(_task_arguments(task, options.data))
            if arguments is None:
                print(f"{task}: its data is not in {options.data} (--data), left out", flush=True)
                continue
            for seed in seeds:
                for name in options.strategies or STRATEGIES:
                    if (task, name, seed) not in done or options.again:
                        _measure(task, name, seed, arguments, about, options)


def _measure(
    task: str,
    name: str,
    seed: int,
    arguments: Mapping[str, Any],
    about: Mapping[str, Any],
    options: argparse.Namespace,
) -> None:
    """One run, kept."""
    from scripts.benchrun.quality_run import one_run  # it needs torch, which takes seconds

    steps = QUICK_STEPS if options.quick else None
    record = one_run(tables_of(task, STRATEGIES[name], arguments, seed=seed, steps=steps))
    record = {"task": task, "strategy": name, "seed": seed, **record, "machine": about}
    line = f"{task}, {name}, seed {seed}: {record['metrics']}, {record['seconds']:.0f} s"
    keep(KIND, [record], KEY, options, line)


def tables_of(
    task: str,
    strategy: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    seed: int,
    steps: int | None = None,
) -> dict[str, Any]:
    """The job of one run.

    Args:
        task: a key of `JOBS`.
        strategy: its `[strategy]` table.
        arguments: its `[task]` table.
        seed: of weights and order.
        steps: instead of those of the task.
    """
    tables = {name: dict(values) for name, values in JOBS[task].items()}
    tables["job"] |= {"name": KIND, "task": f"{_TASKS}:{task}", "seed": seed}
    if steps is not None:
        tables["job"]["steps"] = steps
        tables["schedule"]["warmup_steps"] = 0
    tables["strategy"] = own = dict(strategy)
    if _WARM_UP in own:
        own["density_warmup_steps"] = int(own.pop(_WARM_UP) * tables["job"]["steps"])
    for key in ("inner_steps", "local_start_step"):
        if key in own:
            own[key] = min(own[key], tables["job"]["steps"])
    if "momentum" in own:  # it takes the place of the optimizer's
        tables["optimizer"]["momentum" if tables["optimizer"]["name"] == "sgd" else "beta1"] = 0.0
    tables["task"] = dict(arguments)
    tables["train"] = {"threads": 1, "sanity_batches": 0, "eval_every": _NEVER}
    return tables


def thinned(points: Sequence[list[float]]) -> list[list[float]]:
    """At most `MOST_POINTS` points: [step, seconds, mean loss of the steps since the last one]."""
    stride = -(-len(points) // MOST_POINTS)
    groups = [points[first : first + stride] for first in range(0, len(points), stride)]
    return [
        [group[-1][0], group[-1][1], sum(point[2] for point in group) / len(group)]
        for group in groups
    ]


# --- data of the tasks ----------------------------------------------------------------------------


@contextlib.contextmanager
def _task_arguments(task: str, data: Path) -> Iterator[dict[str, Any] | None]:
    """A task's arguments, while its data is there; None when it is not."""
    text = data / "tinyshakespeare.txt"
    if task == "chargpt":
        shape = {"layers": 2, "heads": 4, "width": 96, "context": 64}
        yield {"text": str(text), **shape} if text.is_file() else None
        return
    with _unpacked_images(data) as directory:
        yield None if directory is None else {"data": str(directory), "width": 16}


@contextlib.contextmanager
def _unpacked_images(directory: Path) -> Iterator[Path | None]:
    """The image folder of the archive in this directory; None when it is not there."""
    archive = directory / "cifar10-subset.tar"
    if not archive.is_file():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="dtd-data-") as target:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
        yield next(Path(target).iterdir())
