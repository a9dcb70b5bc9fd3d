"""One chaos run from beginning to end: daemons, faults, figures, checks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dtd.errors import DtdError, UsageError
from dtd.job import parse_job, to_mapping
from scripts.chaosrun import faults, judge
from scripts.chaosrun.faults import KINDS
from scripts.chaosrun.harness import Harness
from scripts.cluster.disks import SmallDisks
from scripts.cluster.namespaces import may_make
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import CUTTABLE, Hosts, Loopback, Network, Proxied
from scripts.cluster.processes import Child, stop_all

# --- scenarios: each a run that docs/evaluation.md tells of ---------------------------------------


ScheduleKind = Literal["kills", "one by one", "mixed"]
NetworkKind = Literal["auto", "loopback", "proxied", "namespaced"]

_JOB: Final = """
[job]
name = "chaos"
global_batch_size = 64
[optimizer]
lr = 0.01
momentum = 0.9
[train]
eval_every = 40
[checkpoint]
every_steps = 25
[elastic]
settle_s = 0.0
"""
_TASK: Final = "scripts.chaosrun.faulty_task:FaultyTask"
_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "synthetic": {"parameters": 1_000_000, "rows": 2048, "layers": 4, "compute_ms": 20.0},
    "digits": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of run.

    Attributes:
        kinds: faults to choose from, or to go through.
        faults: how many.
        schedule: how they follow each other.
        network: the daemons' network; "auto" is the best that there is.
        load: busy processes beside the daemons, as a multiple of the processors.
        steps: of each job.
        to_the_end: whether the last job trains all of them; otherwise it is cancelled.
        away_s: outage of the coordinator; 0 is random.
        settings: of the job, before those of the command line.
    """

    kinds: tuple[str, ...]
    faults: int
    schedule: ScheduleKind = "one by one"
    workers: int = 4
    minutes: float = 60.0
    network: NetworkKind = "loopback"
    load: float = 0.0
    steps: int = 1_000_000
    to_the_end: bool = False
    away_s: float = 0.0
    settings: tuple[str, ...] = ()


SCENARIOS: Final[dict[str, Scenario]] = {
    "kill": Scenario(kinds=("kill",), faults=100, schedule="kills"),
    "hang": Scenario(
        kinds=("stop", "gil", "stuck", "link", "oneway", "partition"),
        faults=150,
        network="auto",
    ),
    "coordinator": Scenario(kinds=("coordinator",), faults=50),
    "away": Scenario(kinds=("coordinator_away",), faults=3, away_s=60.0),
    "many": Scenario(
        kinds=("join", "stop", "kill"),
        faults=3,
        workers=63,
        steps=200,
        to_the_end=True,
        settings=("train.threads=1", "task.parameters=20000", "task.compute_ms=0.0"),
    ),
    "soak": Scenario(
        kinds=tuple(KINDS),
        faults=300,
        schedule="mixed",
        minutes=30.0,
        workers=5,
        network="auto",
        load=1.0,
        steps=6000,
    ),
}


def job_of(
    scenario: Scenario, *, task: str, commands: str, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """The job's mapping, ready to submit."""
    words = [f"job.steps={scenario.steps}", f'job.task="{_TASK}"', *scenario.settings, *overrides]
    spec = to_mapping(parse_job(_JOB, source="chaos", overrides=words))
    spec["task"] = {
        "commands": commands,
        "task": task,
        "arguments": _ARGUMENTS.get(task, {}) | spec["task"],
    }
    return spec


# --- a run ----------------------------------------------------------------------------------------


FINISH_S: Final = 120.0
QUIET_SHARE: Final = 0.35
"""Share of the time for each fault that is not spent on waiting for recovery."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All findings of a run; `steps` were committed, with the longest stall between two.

    `memory` is in bytes: the coordinator's peak, and all workers' together, shared pages once.
    """

    outcomes: list[judge.Outcome]
    checks: list[judge.Check]
    growths: judge.Growth
    memory: dict[str, int]
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
        return Hosts(workers, proxied=proxied)
    return Proxied(workers) if kind == "proxied" else Loopback()


@contextlib.contextmanager
def cluster_for(
    scenario: Scenario, directory: Path, workers: Sequence[str]
) -> Iterator[NetworkedCluster]:
    """Daemons with network and disks; nothing of them is left in any case."""
    with contextlib.ExitStack() as stack:
        network = network_for(scenario.network, workers, scenario.kinds)
        stack.callback(network.close)
        disks = None
        if "disk" in scenario.kinds and may_make("mnt"):
            disks = SmallDisks([directory / name for name in workers])
            stack.callback(disks.close)
        cluster = NetworkedCluster(
            directory=directory, workers=workers, network=network, disks=disks
        )
        stack.callback(cluster.stop)
        busy = [sys.executable, "-c", "while True: pass"]
        count = round(scenario.load * len(os.sched_getaffinity(0)))
        load = [Child(f"load-{n}", busy, Path(os.devnull)) for n in range(count)]
        stack.callback(stop_all, load, grace_s=0.0)
        for child in load:
            child.start()
        yield cluster


def usable(kinds: Sequence[str], cluster: NetworkedCluster) -> tuple[list[str], list[str]]:
    """Kinds of faults that this cluster offers, and the others with their missing features."""
    offers = {
        "": True,
        "cut": isinstance(cluster.network, CUTTABLE),
        "proxies": bool(cluster.network.proxies),
        "disks": cluster.disks is not None,
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
    commands = directory / "commands"
    commands.mkdir()
    spec = job_of(scenario, task=task, commands=str(commands), overrides=overrides)
    with cluster_for(scenario, directory, [*workers, *([spare] if spare else [])]) as cluster:
        harness = Harness(cluster, workers=workers, spare=spare, spec=spec, seed=seed, say=say)
        harness.away_s = scenario.away_s
        kinds, left_out = usable(scenario.kinds, cluster)
        for one in left_out:
            say(f"left out: {one}")
        if not kinds:
            raise UsageError("none of these faults can be injected here")
        if not harness.start():
            raise DtdError(f"the daemons did not start; read their logs in {directory}")
        return _conclude(harness, _inject(harness, scenario, kinds))


def _inject(harness: Harness, scenario: Scenario, kinds: Sequence[str]) -> dict[str, int]:
    """Returns the daemons' memory at the end, while all of them train."""
    harness.job_wanted = True
    if not harness.until(harness.whole, harness.settle_s):
        raise DtdError(f"the job did not begin; read the logs in {harness.cluster.directory}")
    until_s = time.time() + 60.0 * scenario.minutes
    if scenario.schedule == "kills":
        faults.kills(harness, scenario.faults, until_s=until_s)
    elif scenario.schedule == "mixed":
        each_s = 60.0 * scenario.minutes / scenario.faults
        quiet_s = QUIET_SHARE * each_s
        faults.mixed(harness, kinds, scenario.faults, quiet_s=quiet_s, until_s=until_s)
    else:
        kinds = [kinds[index % len(kinds)] for index in range(scenario.faults)]
        faults.one_by_one(harness, kinds, until_s=until_s)
    harness.until(harness.whole, harness.settle_s)
    memory = harness.memory()
    if scenario.to_the_end:
        harness.job_wanted = False
        ended = harness.timeline.jobs_ended
        harness.until(lambda: harness.jobs[-1] in ended, until_s - time.time())
    return memory


def _conclude(harness: Harness, memory: dict[str, int]) -> Result:
    trained_until_s = time.time()
    jobs = harness.finish(FINISH_S)
    harness.close()
    timeline, injections = harness.timeline, harness.injections
    commits = sorted(timeline.commits, key=lambda commit: commit.at_s)
    in_loop = [commit for commit in commits if commit.step_s > 0]  # not at a take-over
    growths = judge.growth(harness.samples)
    decisions, cluster = timeline.decisions, harness.cluster
    verdicts = [
        judge.jobs_ended_well(jobs, harness.jobs[-1] if harness.jobs else ""),
        judge.replicas_equal(jobs, commits, injections),
        judge.rows_exact(jobs),
        judge.steps_kept(commits, decisions, injections),
        judge.no_long_stall(in_loop, injections, until_s=trained_until_s),
        judge.only_victims_suffer(injections, cluster.deaths, decisions, timeline.lives),
        judge.nothing_grows(growths),
        judge.nothing_left(cluster.left_over()),
        judge.no_errors(timeline.errors, harness.tail.unread),
    ]
    quiet = {name for name, kind in KINDS.items() if not kind.ends_generation}
    return Result(
        outcomes=judge.outcomes(injections, in_loop, decisions, quiet=quiet),
        checks=verdicts,
        growths=growths,
        memory=memory,
        steps=len({(one.job, one.step) for one in commits}),
        median_step_s=timeline.median_step_s(),
        longest_stall_s=judge.longest_stall_s(in_loop, injections),
    )
