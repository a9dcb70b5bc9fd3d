"""The sides of a case, which take turns in blocks of steps: A B ... B A."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from scripts.benchrun.daemons import DaemonRun
from scripts.benchrun.places import Place
from scripts.benchrun.ranks import World
from scripts.benchrun.results import in_turn
from scripts.benchrun.workloads import Workload, job_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case to measure.

    Attributes:
        name: of the workload.
        workload: model, rows and optimizer.
        link: the workers' network.
        world: number of workers.
        rounds: how often each side has its turn, after one to warm up.
    """

    name: str
    workload: Workload
    link: str
    world: int
    rounds: int

    @property
    def workers(self) -> list[str]:
        """Names of the workers."""
        return [f"worker-{rank}" for rank in range(self.world)]

    @property
    def spec(self) -> dict[str, Any]:
        """The job as plain torch sees it: without gates."""
        return job_of(self.workload, steps=1, gates="", holds=[])

    @property
    def described(self) -> dict[str, Any]:
        """Return the first fields of its record."""
        return {
            "workload": self.name,
            "what": self.workload.what,
            "rows": self.workload.rows,
            "link": self.link,
            "world": self.world,
        }


def in_turns(
    rounds: int,
    runs: Mapping[str, DaemonRun],
    worlds: Mapping[str, World],
    steps_of: Callable[[str], int],
) -> dict[str, list[float]]:
    """Have each side run a block once to warm up, then in turns.

    Args:
        rounds: turns of each side.
        runs: dtd's jobs.
        worlds: torch's processes.
        steps_of: steps of a block of torch's side with this name.

    Returns:
        The mean step of each block, by side.
    """
    turns: dict[str, Callable[[], float]] = {
        side: partial(_daemon_block, run) for side, run in runs.items()
    }
    turns |= {side: partial(torch_block, world, steps_of(side)) for side, world in worlds.items()}
    for turn in turns.values():
        turn()
    steps_s: dict[str, list[float]] = {side: [] for side in turns}
    for number in range(rounds):
        for side in in_turn([*turns], number):
            steps_s[side].append(turns[side]())
    return steps_s


def _daemon_block(run: DaemonRun) -> float:
    return run.block().step_s


def torch_block(world: World, steps: int) -> float:
    """The mean step of plain torch, the first left out as in `DaemonRun.block`."""
    answers = world.ask("steps", count=steps)
    return statistics.fmean(statistics.fmean(steps_s[1:]) for steps_s in answers)


@contextlib.contextmanager
def built(place: Place, size: int, spec: dict[str, Any], *, keeps_memory: bool) -> Iterator[World]:
    """Ranks of plain torch that have the job's model."""
    with World("torch", size, place, {"keeps_memory": keeps_memory}) as world:
        world.ask("build", spec=spec)
        yield world
