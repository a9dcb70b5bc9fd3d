"""One chaos run from beginning to end: daemons, faults, figures, checks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.errors import DtdError, UsageError
from scripts.chaosrun import checks, pace
from scripts.chaosrun.cluster import ChaosCluster
from scripts.chaosrun.disks import PlainDisks, SmallDisks
from scripts.chaosrun.drill import Drill
from scripts.chaosrun.events_seen import compare_events
from scripts.chaosrun.faults import KINDS
from scripts.chaosrun.leaks import Growth, growth
from scripts.chaosrun.load import Load
from scripts.chaosrun.namespaced import Namespaced
from scripts.chaosrun.namespaces import may_make
from scripts.chaosrun.networks import CuttableNetwork, Loopback, Network, Proxied
from scripts.chaosrun.orders import imports
from scripts.chaosrun.outcomes import Outcome, outcomes
from scripts.chaosrun.rejoins import Rejoin, rejoins
from scripts.chaosrun.scenarios import Scenario, job_of, plan, processors

FINISH_S: Final = 120.0
SETTLE_S: Final = 120.0
QUIET_SHARE: Final = 0.35
"""Of the time that there is for each fault, so much is not spent on waiting for recovery."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that a run has shown.

    Attributes:
        outcomes: what came of each fault.
        checks: what had to hold.
        growths: what daemons held over time.
        rejoins: how workers came back.
        events: how the daemons' own incidents compare.
        steps: committed.
        median_step_s: of all steps.
        longest_stall_s: between two commits.
    """

    outcomes: list[Outcome]
    checks: list[checks.Check]
    growths: list[Growth]
    rejoins: list[Rejoin]
    events: dict[str, Any]
    steps: int
    median_step_s: float
    longest_stall_s: float


def network_for(kind: str, workers: Sequence[str], kinds: Sequence[str]) -> Network:
    """The network of a run: the asked one, or the best that there is and that the faults need."""
    proxied = any(KINDS[one].needs == "proxies" for one in kinds)
    cut = any(KINDS[one].needs == "cut" for one in kinds)
    if kind == "auto":
        able = cut and may_make("net")
        kind = "namespaced" if able else "proxied" if cut or proxied else "loopback"
    if kind == "namespaced":
        return Namespaced(workers, proxied=proxied)
    return Proxied(workers) if kind == "proxied" else Loopback()


@contextlib.contextmanager
def cluster_for(
    scenario: Scenario, directory: Path, workers: Sequence[str]
) -> Iterator[ChaosCluster]:
    """Daemons with network and disks; whatever happens, nothing of them is left."""
    with contextlib.ExitStack() as stack:
        network = network_for(scenario.network, workers, scenario.kinds)
        stack.callback(network.close)
        disks: PlainDisks | SmallDisks = PlainDisks()
        if "disk" in scenario.kinds and may_make("mnt"):
            disks = SmallDisks([directory / name for name in workers])
        stack.callback(disks.close)
        cluster = ChaosCluster(directory=directory, workers=workers, network=network, disks=disks)
        stack.callback(cluster.stop)
        load = Load(round(scenario.load * processors()))
        stack.callback(load.stop)
        yield cluster


def usable(kinds: Sequence[str], cluster: ChaosCluster) -> tuple[list[str], list[str]]:
    """Kinds that this cluster can be hurt with, and the others with what they lack."""
    offers = {
        "": True,
        "cut": isinstance(cluster.network, CuttableNetwork),
        "proxies": bool(cluster.network.proxies),
        "disks": cluster.disks.can_fill,
    }
    lack = {"cut": "links that can be cut", "proxies": "proxies", "disks": "small disks"}
    able = [kind for kind in kinds if offers[KINDS[kind].needs]]
    left_out = [f"{kind} (needs {lack[KINDS[kind].needs]})" for kind in kinds if kind not in able]
    return able, left_out


def run(
    scenario: Scenario,
    *,
    directory: Path,
    task: str,
    seed: int,
    overrides: Sequence[str],
    say: Say,
) -> Result:
    """Run a scenario.

    Raises:
        DtdError: the daemons could not be started, or there is nothing to inject.
    """
    workers = [f"worker-{index}" for index in range(scenario.workers)]
    spare = f"worker-{scenario.workers}" if "join" in scenario.kinds else ""
    orders = directory / "orders"
    orders.mkdir()
    spec = job_of(scenario, task=task, orders=str(orders), overrides=overrides)
    with cluster_for(scenario, directory, [*workers, *([spare] if spare else [])]) as cluster:
        drill = Drill(cluster, workers=workers, spare=spare, spec=spec, seed=seed, say=say)
        drill.away_s = scenario.away_s
        kinds, left_out = usable(scenario.kinds, cluster)
        for one in left_out:
            say(f"left out: {one}")
        if not kinds:
            raise UsageError("none of these faults can be injected here")
        if not drill.start():
            raise DtdError(f"the daemons did not start; read their logs in {directory}")
        _inject(drill, scenario, kinds)
        return _conclude(drill)


def _inject(drill: Drill, scenario: Scenario, kinds: Sequence[str]) -> None:
    until_s = time.time() + 60.0 * scenario.minutes
    drill.job_wanted = True
    if not drill.until(lambda: drill.settled(scenario.workers), SETTLE_S):
        raise DtdError(f"the job did not begin; read the logs in {drill.cluster.directory}")
    if scenario.pace == "kills":
        pace.kills(drill, scenario.faults, until_s=until_s)
    elif scenario.pace == "mixed":
        each_s = 60.0 * scenario.minutes / scenario.faults
        quiet_s = QUIET_SHARE * each_s
        pace.mixed(drill, kinds, scenario.faults, quiet_s=quiet_s, until_s=until_s)
    else:
        pace.one_by_one(drill, plan(scenario, kinds), until_s=until_s)
    drill.until(lambda: drill.settled(scenario.workers), SETTLE_S)


def _conclude(drill: Drill) -> Result:
    """End the job, stop the daemons, judge."""
    trained_until_s = time.time()
    jobs = drill.finish(FINISH_S)
    events = compare_events(drill)
    drill.close()
    scene, injections = drill.scene, drill.injections
    commits = sorted(scene.commits, key=lambda commit: commit.at_s)
    growths = growth(drill.samples)
    last = drill.jobs[-1] if drill.jobs else ""
    verdicts = [
        checks.jobs_ended_well(jobs, last),
        checks.replicas_equal(jobs, commits, injections),
        checks.rows_exact(jobs),
        checks.steps_kept(commits, scene.decisions, injections),
        checks.no_long_stall(commits, injections, until_s=trained_until_s),
        checks.nobody_innocent(injections, drill.cluster.deaths, scene.decisions, scene.lives),
        checks.nothing_grows(growths),
        checks.nothing_left(drill.cluster.left_over()),
        checks.no_errors(scene.errors, drill.unread),
    ]
    quiet = {name for name, kind in KINDS.items() if not kind.ends_generation}
    received = [line for line in scene.lives if line.event == "state_received"]
    return Result(
        outcomes=outcomes(injections, commits, scene.decisions, quiet=quiet),
        checks=verdicts,
        growths=growths,
        rejoins=rejoins(drill.cluster.starts, imports(drill.orders), commits, received),
        events=events,
        steps=len({(one.job, one.step) for one in commits}),
        median_step_s=scene.median_step_s(),
        longest_stall_s=checks.longest_stall_s(commits, injections),
    )
