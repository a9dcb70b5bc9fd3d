r"""The forecast of a state's memory against models of other shapes than equal layers.

    python -m scripts.memory_forecast [--shapes even embedding tied few] [--parameters 24000000]

Real daemons train each shape with AdamW for a few steps, each worker in a control group of its own
that counts the most memory it ever takes for the job.  What that is with hardly any parameters is
subtracted.  The forecast is that by which a worker refuses a job (`dtd.train.footprint`).  Needs
a control group that may be divided.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtd import job
from dtd.doctor.state_memory import needed_bytes
from dtd.job.strategy_table import SHARDED_STAGES
from dtd.train.footprint import division_of, state_size
from dtd.train.optimizer import build_optimizer
from scripts.benchrun.daemons import DaemonRun
from scripts.benchrun.tasks import MODELS
from scripts.benchrun.workloads import Workload, job_of
from scripts.cluster.memory_groups import MemoryGroups, may_limit
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import Loopback, Network
from scripts.markdown import table

SHAPES: Final = ("even", "embedding", "tied", "few")
WORLD: Final = 4
NAMES: Final = tuple(f"worker-{rank}" for rank in range(WORLD))
STEPS: Final = 4
FEW_PARAMETERS: Final = 4_000
NO_LIMIT_BYTES: Final = 1 << 40
_MIB: Final = 1 << 20


class CountedRun(DaemonRun):
    """A job whose workers are counted from the moment before it is submitted."""

    def __init__(self, groups: MemoryGroups, *about: Any) -> None:
        self._groups = groups
        super().__init__(*about)

    def _started(self, directory: Path, network: Network) -> NetworkedCluster:
        cluster = super()._started(directory, network)
        for name in NAMES:
            self._groups.join(name, cluster.pid(name))
        return cluster


def peaks(shape: str, parameters: int, strategy: Mapping[str, Any]) -> list[int]:
    """Return each worker's peak of memory, beside its memory before the job."""
    with contextlib.ExitStack() as stack:
        groups = stack.enter_context(
            contextlib.closing(MemoryGroups(dict.fromkeys(NAMES, NO_LIMIT_BYTES)))
        )
        network = stack.enter_context(contextlib.closing(Loopback()))
        run = CountedRun(groups, _workload(shape, parameters), NAMES, network, 1, strategy)
        with contextlib.closing(run):
            run.block()
            return [groups.peak_bytes(name) for name in NAMES]


def forecast(shape: str, parameters: int, strategy: Mapping[str, Any]) -> int:
    """Return the memory that a worker forecasts."""
    workload = _workload(shape, parameters)
    spec = job.from_mapping(
        job_of(workload, steps=STEPS, gates="", holds=[], strategy=strategy), source="forecast"
    )
    model = MODELS["shaped"](**workload.options).build_model()
    optimizer = build_optimizer(spec.optimizer, [*model.parameters()])
    replica: Any = Namespace(model=model, trained=[*model.named_parameters()], optimizer=optimizer)
    size = state_size(replica, spec, shows_whole=False)
    return needed_bytes(size, division_of(spec), WORLD)


def _workload(shape: str, parameters: int) -> Workload:
    return Workload(
        what=shape,
        model="shaped",
        rows=2 * WORLD,
        block_steps=STEPS,
        options={"shape": shape, "parameters": parameters},
        optimizer={"name": "adamw"},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compare forecast and measured memory.")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--stages", nargs="+", type=int, default=(0, *SHARDED_STAGES))
    parser.add_argument("--parameters", type=int, default=24_000_000)
    options = parser.parse_args(arguments)
    if not may_limit():
        print("control groups cannot be made: run as root")
        return 1
    rows = []
    for stage in options.stages:
        strategy = {"name": "sharded", "stage": stage, "mirrors": 0} if stage else {}
        base = statistics.median(peaks("even", FEW_PARAMETERS, strategy))
        print("without parameters", strategy, f"{base / _MIB:.0f} MiB", flush=True)
        for shape in options.shapes:
            found = statistics.median(peaks(shape, options.parameters, strategy)) - base
            said = forecast(shape, options.parameters, strategy)
            rows.append(
                [
                    shape,
                    f"stage {stage}" if stage else "replicated",
                    f"{found / _MIB:.0f} MiB",
                    f"{said / _MIB:.0f} MiB",
                    f"{said / found:.2f}",
                ]
            )
            print(*rows[-1], flush=True)
    print(table(["model", "strategy", "measured", "forecast", "forecast : measured"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
