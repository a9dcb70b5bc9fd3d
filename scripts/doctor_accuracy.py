"""Does `dtdctl doctor` forecast the step that training then takes?  Two workers on a shaped link.

    python -m scripts.doctor_accuracy [--rates 1gbit 100mbit] [--parameters 4000000] [--steps 60]

The daemons have a network namespace of their own (so this needs root), on whose loopback interface
what each worker sends to the other one passes a token bucket.  For each rate: the doctor's forecast
for two workers, then the same job, and the median of its steps after the first few, from worker 0's
log.  The target is a ratio within 20 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from dtd.address import SCHEME
from dtd.places import SOCKET_NAME
from scripts.cluster.namespaces import Namespace, may_make
from scripts.cluster.networks import COORDINATOR
from scripts.cluster.processes import Child, stop_all

PORTS: Final = {"worker-0": 7200, "worker-1": 7201}
FIRST_STEPS: Final = 5
START_TIMEOUT_S: Final = 60.0
# Small, or it lets through faster than the rate what is measured in a short time; large enough for
# one segment of the kernel's offloading.
BURST_BYTES: Final = 128 * 1024
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


class Shaped:
    """A coordinator and two workers whose links have a rate.

    Args:
        directory: where everything goes; exists.
        rate: as `tc` has it, such as "100mbit"; empty for as fast as it goes.
    """

    def __init__(self, directory: Path, rate: str) -> None:
        self._directory = directory
        self._address = f"{SCHEME}{directory / SOCKET_NAME}"
        self._space = Namespace("net")
        self._space.run("ip", "link", "set", "dev", "lo", "up")
        if rate:
            self._shape(rate)
        self._children = [self._coordinator(), *map(self._worker, PORTS)]

    def ask(self, *arguments: str) -> Any:
        """The answer of a dtdctl command."""
        command = ("-m", "dtd.ctl.main", "--coordinator", self._address, "-o", "json", *arguments)
        done = subprocess.run(
            self._space.wrapped([sys.executable, *command]),
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"dtdctl {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return json.loads(done.stdout)

    def start(self) -> None:
        """Start all, and wait until both workers are idle."""
        address_file = self._directory / "address"
        until_s = time.monotonic() + START_TIMEOUT_S
        for child in self._children:
            child.start()
            while not address_file.exists() and time.monotonic() < until_s:
                child.wait(0.05)
        while len(self.ask("status")["workers"]) < len(PORTS):
            if time.monotonic() > until_s:
                raise SystemExit("\n".join(self._children[1].log_tail()))
            self._children[1].wait(0.1)

    def step_s(self) -> float:
        """Median of worker 0's steps."""
        steps = [entry["step_s"] for entry in self._log() if entry.get("event") == "step_committed"]
        return float(statistics.median(steps[FIRST_STEPS:]))

    def close(self) -> None:
        """Stop everything."""
        stop_all(self._children)
        self._space.close()

    def _log(self) -> Iterator[dict[str, Any]]:
        for line in (self._directory / f"{min(PORTS)}.log").read_text().splitlines():
            if line.startswith("{"):
                yield json.loads(line)

    def _shape(self, rate: str) -> None:
        """A bucket for each direction; everything else, such as heartbeats, passes freely."""
        lo = ("dev", "lo")
        self._space.run("tc", "qdisc", "add", *lo, "root", "handle", "1:", "htb")
        ports = list(PORTS.values())
        for number, (own, other) in enumerate((ports, ports[::-1]), start=1):
            flow = f"1:{number}"
            bucket = ("htb", "rate", rate, "burst", str(BURST_BYTES), "cburst", str(BURST_BYTES))
            self._space.run("tc", "class", "add", *lo, "parent", "1:", "classid", flow, *bucket)
            for way, port in (("dport", other), ("sport", own)):
                match = ("u32", "match", "ip", way, str(port), "0xffff", "flowid", flow)
                where = ("parent", "1:", "protocol", "ip")
                self._space.run("tc", "filter", "add", *lo, *where, *match)

    def _coordinator(self) -> Child:
        command = ("dtd.coordinator.main", "--state-dir", str(self._directory))
        return self._child(COORDINATOR, *command)

    def _worker(self, name: str) -> Child:
        return self._child(
            name,
            *("dtd.worker.main", "--coordinator", self._address, "--name", name),
            *("--log-format", "json", "--log-level", "debug"),
            *("--listen", f"127.0.0.1:{PORTS[name]}"),
            *("--state-dir", str(self._directory / name)),
        )

    def _child(self, name: str, *command: str) -> Child:
        wrapped = self._space.wrapped([sys.executable, "-m", *command])
        return Child(name, wrapped, self._directory / f"{name}.log")


def compare(rate: str, job: str) -> dict[str, Any]:
    """Forecast and measured step at one rate."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-doctor-")))
        job_file = directory / "job.toml"
        job_file.write_text(job)
        cluster = Shaped(directory, rate)
        stack.callback(cluster.close)
        cluster.start()
        report = cluster.ask("doctor", str(job_file))
        forecast = next(one for one in report["forecast"] if one["world_size"] == len(PORTS))
        job_id = cluster.ask("submit", str(job_file))["job"]
        result = cluster.ask("wait", job_id)["result"]
        return {"rate": rate, "forecast": forecast, "links": report["links"], "result": result} | {
            "measured_s": cluster.step_s()
        }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare forecast and measured steps.")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"], metavar="RATE")
    parser.add_argument("--parameters", type=int, default=4_000_000)
    parser.add_argument("--compute-ms", type=float, default=100.0)
    parser.add_argument("--steps", type=int, default=40)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line a rate; returns the exit code."""
    options = _parse(arguments)
    if not may_make("net"):
        print("network namespaces cannot be made: run as root")
        return 1
    job = JOB.format(
        steps=options.steps, parameters=options.parameters, compute_ms=options.compute_ms
    )
    print("RATE      LINK        PREDICTED  MEASURED  RATIO  LIMITED BY")
    for rate in options.rates:
        made = compare(rate, job)
        predicted_s, measured_s = made["forecast"]["step_s"], made["measured_s"]
        link = min(one["bytes_per_s"] for one in made["links"]) * 8 / 1e6
        print(
            f"{rate:<8}  {link:>6.0f} Mb/s  {predicted_s:>7.3f} s  {measured_s:>6.3f} s"
            f"  {predicted_s / measured_s:>5.2f}  {made['forecast']['limit']}",
            flush=True,
        )
        parts = ("data_s", "compute_s", "exposed_s", "optimizer_s")
        for key in parts:
            print(
                f"          {key:<12} {made['forecast'][key]:>7.3f} s"
                f"  {made['result'][f'mean_{key}']:>7.3f} s (mean)"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
