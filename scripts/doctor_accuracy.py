r"""The forecast of `dtdctl doctor` against the step that training takes, on a shaped link.

    python -m scripts.doctor_accuracy [--rates 1gbit 100mbit] [--parameters 4000000] [--steps 60]
    python -m scripts.doctor_accuracy --rates 100mbit --parameters 1000000 --steps 25 \
        --codecs none bfloat16 int8 powersgd sign

Each worker has a network namespace of its own (so this needs root), and its cable is shaped by the
kernel.  For each rate: the doctor's forecast for two workers, then the same job, and the median of
its steps after the first few, from worker 0's log.  The target is a ratio within 20 %.  With
several codecs, the doctor is asked once, for the job without one, and each codec's line in its
table is compared with a job of its own; that takes less than three minutes as above.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from scripts.cluster.log_timeline import LogTail
from scripts.cluster.namespaces import may_make
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import Hosts

WORKERS: Final = ("worker-0", "worker-1")
FIRST_STEPS: Final = 5
COMMAND_S: Final = 600.0
# Small, or it lets through faster than the rate what is measured in a short time; large enough for
# one segment of the kernel's offloading.
_BURST: Final = "128kb"
_QUEUE: Final = "1mb"
JOB: Final = """
[job]
name = "shaped"
task = "synthetic"
steps = {steps}
global_batch_size = 32
[task]
parameters = {parameters}
layers = 8
compute_ms = {compute_ms}
[train]
threads = 1
[elastic]
min_workers = 2
settle_s = 0
"""


def compare(rate: str, job: str, codecs: Sequence[str]) -> list[dict[str, Any]]:
    """Forecast and measured step of each codec at one rate."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-doctor-")))
        job_file = directory / "job.toml"
        job_file.write_text(job)
        shape = ("tbf", "rate", rate, "burst", _BURST, "limit", _QUEUE)
        network = stack.enter_context(closing(Hosts(WORKERS, shape=shape)))
        cluster = NetworkedCluster(directory, workers=WORKERS, network=network)
        stack.callback(cluster.stop)
        cluster.start_all()
        report = _ask(cluster, "doctor", str(job_file))
        whole = next(one for one in report["forecast"] if one["world_size"] == len(WORKERS))
        tail = stack.enter_context(closing(cluster.log_tail()))
        made = []
        for codec in codecs:
            submitted = _ask(cluster, "submit", str(job_file), "--set", f"strategy.codec={codec}")
            made.append(
                {
                    "codec": codec,
                    "predicted_s": _predicted_s(report, codec),
                    "result": _ask(cluster, "wait", submitted["job"])["result"],
                    "measured_s": _step_s(tail),
                    "forecast": whole,
                    "links": report["links"],
                }
            )
        return made


def _predicted_s(report: dict[str, Any], codec: str) -> float:
    """The step in the doctor's table of strategies."""
    for one in report["strategies"]:
        if (one["strategy"], one["codec"]) == ("replicated", codec) and one["step_s"] is not None:
            return float(one["step_s"])
    raise SystemExit(f"dtdctl doctor has no step for codec {codec}: {report['strategies']}")


def _ask(cluster: NetworkedCluster, *arguments: str) -> Any:
    """The answer of a dtdctl command."""
    done = cluster.network.inside(
        lambda: cluster.dtdctl("-o", "json", *arguments, timeout_s=COMMAND_S)
    )
    if done.returncode:
        raise SystemExit(f"dtdctl {' '.join(arguments)}: {done.stderr}{done.stdout}")
    return json.loads(done.stdout)


def _step_s(tail: LogTail) -> float:
    """Median of the first worker's steps in the job that has just ended."""
    steps = [
        float(line.fields["step_s"])
        for line in tail.poll()
        if (line.daemon, line.event) == (WORKERS[0], "step_committed")
    ]
    return statistics.median(steps[FIRST_STEPS:])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare forecast and measured steps.")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"], metavar="RATE")
    parser.add_argument("--parameters", type=int, default=4_000_000)
    parser.add_argument("--compute-ms", type=float, default=100.0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--codecs", nargs="+", default=["none"], metavar="CODEC")
    return parser.parse_args(arguments)


def _print(rate: str, made: dict[str, Any]) -> None:
    """One codec's line, and the parts of the step where nothing is coded."""
    predicted_s, measured_s = made["predicted_s"], made["measured_s"]
    link = min(one["bytes_per_s"] for one in made["links"]) * 8 / 1e6
    print(
        f"{rate:<8}  {made['codec']:<10}  {link:>6.0f} Mb/s  {predicted_s:>7.3f} s"
        f"  {measured_s:>6.3f} s  {predicted_s / measured_s:>5.2f}  {made['forecast']['limit']}",
        flush=True,
    )
    if made["codec"] != "none":
        return
    for key in ("data_s", "compute_s", "exposed_s", "optimizer_s"):
        print(
            f"          {key:<12} {made['forecast'][key]:>7.3f} s"
            f"  {made['result'][f'mean_{key}']:>7.3f} s (mean)"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line a rate and codec; returns the exit code."""
    options = _parse(arguments)
    if not may_make("net"):
        print("network namespaces cannot be made: run as root")
        return 1
    job = JOB.format(
        steps=options.steps, parameters=options.parameters, compute_ms=options.compute_ms
    )
    print("RATE      CODEC       LINK        PREDICTED  MEASURED  RATIO  LIMITED BY, AS IT IS")
    for rate in options.rates:
        for made in compare(rate, job, options.codecs):
            _print(rate, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
