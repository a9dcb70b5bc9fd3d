"""`scripts/bench forecast`: the measured step of a paced job beside the doctor's forecast of it.

For each case a coordinator and its workers start on hosts of their own.  `dtdctl doctor` measures
links and steps, as it does for an operator; then the job trains, and its step is the median of the
times between commits.  What the doctor has measured is kept, and the forecast is made of it when
the table is, so the table always shows the present model.  Compute is a pause: more workers than
processor cores do not slow one another down by it.

With `sync.lossless = "auto"` steps count when the trial of coded and plain ones is over.

A delay is added by a proxy before each worker's data port, over links of 1 Gbit/s.  The sender's
kernel does not see it, so the ring chooses the way of small buckets as if there were none.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dtd.doctor.larger import Repeated
from dtd.doctor.strategies import forecast_of, forecasts
from dtd.errors import DtdError
from dtd.job import JobSpec, from_mapping, to_mapping
from dtd.wire import messages as m
from scripts.benchrun.daemons import SETTINGS, ShapedHosts, own_network
from scripts.benchrun.results import NOTHING, Record, keep, machine, time_text
from scripts.benchrun.tasks import GIGABIT, LINKS, LOOPBACK
from scripts.cluster.fault_proxy import BOTH
from scripts.cluster.log_timeline import ENDS
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import COORDINATOR, Loopback, Network
from scripts.markdown import table

KIND: Final = "forecast"
KEY: Final = ("link", "world", "lossless")
DELAYS_S: Final = {"1ms": 0.001, "10ms": 0.01, "50ms": 0.05}
"""One way, added to a link of 1 Gbit/s."""
ALL_LINKS: Final = (*LINKS, *DELAYS_S)
WORLDS: Final = (2, 4, 8)
CODED: Final = (("1gbit", 2), ("100mbit", 2))
"""Links and worlds that are also measured with coding."""
_STEPS: Final = {"off": 12, "auto": 32}
_KEPT_STEPS: Final = 9
_TURN_S: Final = 0.1
_START_S: Final = 300.0
_DOCTOR_S: Final = 900.0
_TRAIN_S: Final = 900.0
_JOB: Final = """
job.name = "forecast"
job.task = "synthetic"
job.global_batch_size = 16
train.eval_every = 1000000
checkpoint.every_steps = 1000000
elastic.settle_s = 0.0
elastic.stall_timeout_s = 3600
task.parameters = 2200000
task.layers = 20
task.rows = 2048
task.compute_ms = 300.0
"""
_MEASURED: Final = ("buckets", "rows", "worlds", "pass_s_per_byte", "dtype", "coding")


def run(options: argparse.Namespace) -> None:
    """Measure all that is asked for, case by case."""
    namespaces = own_network()
    about = machine()
    links = options.links or ((LOOPBACK,) if options.quick else ALL_LINKS)
    for link in links if namespaces else [LOOPBACK]:
        for world in options.worlds or ((2,) if options.quick else WORLDS):
            for lossless in ("off", "auto") if (link, world) in CODED else ("off",):
                record = measure(link, world, lossless)
                line = f"{link} N={world}, lossless {lossless}: measured"
                line += f" {time_text(record['step_s'])}, forecast {time_text(forecast_s(record))}"
                keep(KIND, [{**record, "machine": about}], KEY, options, line)


def measure(link: str, world: int, lossless: str) -> Record:
    """Have one job forecast and trained."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-bench-")))
        workers = [f"worker-{rank}" for rank in range(world)]
        network = stack.enter_context(contextlib.closing(_network(link, workers)))
        settings = directory / "coordinator.toml"
        settings.write_text(SETTINGS)
        cluster = NetworkedCluster(
            directory, workers=workers, network=network, settings=("--config", str(settings))
        )
        stack.callback(cluster.stop, grace_s=0.0)
        cluster.start_all(_START_S)
        job_file = directory / "job.toml"
        job_file.write_text(_job(world, lossless))
        report = _examined(cluster, network, job_file)
        return {
            "link": link,
            "world": world,
            "lossless": lossless,
            "step_s": _trained_s(cluster, _spec(world, lossless)),
            "links": report["links"],
            "steps": {
                name: {key: step[key] for key in _MEASURED}
                for name, step in report["steps"].items()
            },
        }


def _job(world: int, lossless: str) -> str:
    own = f'elastic.min_workers = {world}\nsync.lossless = "{lossless}"\n'
    return f"{_JOB}{own}job.steps = {_STEPS[lossless]}\n"


def _spec(world: int, lossless: str) -> JobSpec:
    return from_mapping(tomllib.loads(_job(world, lossless)), source="benchmark")


def _network(link: str, workers: Sequence[str]) -> Network:
    if link == LOOPBACK:
        return Loopback()
    delay_s = DELAYS_S.get(link, 0.0)
    network = ShapedHosts(workers, GIGABIT if delay_s else link, proxied=delay_s > 0.0)
    for proxy in network.proxies.values():
        for direction in BOTH:
            proxy.delay(direction, delay_s)
    return network


def _examined(cluster: NetworkedCluster, network: Network, job_file: Path) -> dict[str, Any]:
    """The report of `dtdctl doctor`."""
    command = [sys.executable, "-m", "dtd.ctl.main", "doctor", str(job_file), "-o", "json"]
    made = subprocess.run(
        network.wrapped(COORDINATOR, command),
        capture_output=True,
        text=True,
        timeout=_DOCTOR_S,
        check=False,
        env=cluster.ctl_environment(),
    )
    report: dict[str, Any] = json.loads(made.stdout or "{}")
    if not report.get("forecast"):
        raise DtdError(f"the doctor forecasts nothing: {made.stderr or made.stdout}")
    return report


def _trained_s(cluster: NetworkedCluster, spec: JobSpec) -> float:
    """The median step of the job, by rank 0's commits."""
    with contextlib.closing(cluster.log_tail()) as tail:
        cluster.try_ask(m.SubmitJob(spec=to_mapping(spec)))
        steps = _STEPS[spec.sync.lossless]
        commits_s: list[float] = []
        deadline_s = time.monotonic() + _TRAIN_S
        while len(commits_s) < steps:
            if time.monotonic() > deadline_s:
                raise DtdError(f"{len(commits_s)} of {steps} steps within {_TRAIN_S:g} s")
            for line in tail.poll():
                if line.event == "step_committed" and line.fields["rank"] == 0:
                    commits_s.append(line.at_s)
                elif line.event in ENDS and line.event != "job_done":
                    raise DtdError(f"the job has ended: {line.fields.get('message', line.event)}")
            time.sleep(_TURN_S)
    kept_s = [b - a for a, b in itertools.pairwise(commits_s)][-_KEPT_STEPS:]
    return statistics.median(kept_s)


def forecast_s(record: Record) -> float:
    """The step that the present model makes of what was measured."""
    world = record["world"]
    spec = _spec(world, record["lossless"])
    made = forecasts(record["steps"], record["links"], most=world, spec=spec)
    return made[-1].step_s


def larger_s(record: Record, world: int) -> float | None:
    """The step of a larger world that the present model makes of what was measured."""
    spec = _spec(record["world"], record["lossless"])
    repeated = Repeated.fitted(record["steps"], record["links"], spec=spec)
    made = forecast_of(repeated.world(world)) if repeated is not None else None
    return made.step_s if made is not None else None


def tables(records: Sequence[Record]) -> str:
    """One row for each case, and what the measurements of two workers say of more."""
    head = ["link", "workers", "lossless", "measured", "forecast", "**forecast : measured**"]
    head += ["from two workers", "**that : measured**"]
    pairs = {(one["link"], one["lossless"]): one for one in records if one["world"] == 2}
    rows = []
    for record in sorted(records, key=_place):
        made_s, step_s = forecast_s(record), record["step_s"]
        delayed = f"1gbit + {record['link']}" if record["link"] in DELAYS_S else record["link"]
        pair = pairs.get((record["link"], record["lossless"]))
        from_two_s = None if pair is None or record is pair else larger_s(pair, record["world"])
        rows.append(
            [
                delayed,
                str(record["world"]),
                record["lossless"],
                time_text(step_s),
                time_text(made_s),
                f"{made_s / step_s:.2f}",
                time_text(from_two_s) if from_two_s is not None else NOTHING,
                f"{from_two_s / step_s:.2f}" if from_two_s is not None else NOTHING,
            ]
        )
    return table(head, rows)


def _place(record: Record) -> tuple[int, int, bool]:
    return ALL_LINKS.index(record["link"]), record["world"], record["lossless"] != "off"
