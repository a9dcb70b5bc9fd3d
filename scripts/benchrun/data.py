"""`scripts/bench data`: data of a job on their way from one host to the others.

Each host is a network namespace behind a link of a known rate, and its own place in the file
system is the working directory of its worker.  What is measured is the time from the first look at
the data to the last copy that is complete, beside the time that one link needs for the bytes once.
Every run has other bytes, so that nothing is found in a cache.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.wire import messages as m
from scripts.benchrun.daemons import SETTINGS, ShapedHosts
from scripts.benchrun.results import Record, keep, machine, spread
from scripts.cluster.log_timeline import Line, LogTail
from scripts.cluster.networked import NetworkedCluster
from scripts.markdown import table

KIND: Final = "data"
KEY: Final = ("case", "rate_mbit")
ROUNDS: Final = 3
HOSTS: Final = ("host-1", "host-2", "host-3")
_PIECE_BYTES: Final = 1 << 24
_PATIENCE_S: Final = 900.0
_NAME: Final = "numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Some hosts have the data; one of them may be killed when half of the wire's time is over."""

    name: str
    have: tuple[str, ...]
    killed: str = ""


CASES: Final = (
    Case(name="one of three hosts has them", have=HOSTS[:1]),
    Case(name="the only holder is killed, and starts again", have=HOSTS[:1], killed=HOSTS[0]),
    Case(name="two of three hosts have them, and one is killed", have=HOSTS[:2], killed=HOSTS[0]),
)


def run(options: argparse.Namespace) -> None:
    """Measure all cases at one rate."""
    about = machine()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    for case in CASES[:1] if options.quick else CASES:
        times = [_measured(case, options.mbit, options.mib << 20) for _ in range(rounds)]
        record = {
            "case": case.name,
            "rate_mbit": options.mbit,
            "bytes": options.mib << 20,
            "hashed_s": [hashed_s for hashed_s, _ in times],
            "copied_s": [copied_s for _, copied_s in times],
            "machine": about,
        }
        keep(KIND, [record], KEY, options, " ".join(_row(record)))


class HostsWithFiles(ShapedHosts):
    """Hosts whose workers have a working directory each."""

    def __init__(self, rate: str, directory: Path) -> None:
        super().__init__(HOSTS, rate)
        self._directory = directory

    def wrapped(self, who: int | str, command: Sequence[str]) -> list[str]:
        if who in HOSTS:
            command = ["/usr/bin/env", "-C", str(self.home(str(who))), *command]
        return super().wrapped(who, command)

    def home(self, name: str) -> Path:
        return self._directory / f"home-{name}"


def _measured(case: Case, rate_mbit: int, size_bytes: int) -> tuple[float, float]:
    """Seconds of the first hash, and from its end to the last complete copy."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-bench-")))
        network = HostsWithFiles(f"{rate_mbit}mbit", directory)
        stack.callback(network.close)
        for name in HOSTS:
            network.home(name).mkdir()
        _write(network.home(case.have[0]) / _NAME, size_bytes)
        for name in case.have[1:]:
            os.link(network.home(case.have[0]) / _NAME, network.home(name) / _NAME)
        settings = directory / "coordinator.toml"
        settings.write_text(SETTINGS.replace("3600.0", "10.0"))
        cluster = NetworkedCluster(
            directory, workers=HOSTS, network=network, settings=("--config", str(settings))
        )
        stack.callback(cluster.stop, grace_s=0.0)
        cluster.start_all()
        tail = stack.enter_context(contextlib.closing(cluster.log_tail()))
        cluster.try_ask(m.SubmitJob(spec=_spec()))
        return _watched(cluster, tail, case, 8 * size_bytes / (rate_mbit * 1e6))


def _watched(
    cluster: NetworkedCluster, tail: LogTail, case: Case, wire_s: float
) -> tuple[float, float]:
    lines: list[Line] = []
    fetch = [name for name in HOSTS if name not in case.have]

    def seen(event: str, names: Sequence[str]) -> Callable[[], bool]:
        def look() -> bool:
            lines.extend(tail.poll())
            return {*names} <= {one.daemon for one in lines if one.event == event}

        return look

    def at(event: str, names: Sequence[str]) -> float:
        return max(one.at_s for one in lines if one.event == event and one.daemon in names)

    cluster.until(seen("job_prepared", HOSTS), "was not prepared", timeout_s=_PATIENCE_S)
    began_s = at("job_prepared", HOSTS)
    cluster.until(seen("data_offered", case.have), "offers nothing", timeout_s=_PATIENCE_S)
    hashed_s = at("data_offered", case.have)
    if case.killed:
        time.sleep(max(0.0, hashed_s + wire_s / 2 - time.time()))
        cluster.signal(case.killed, signal.SIGKILL)
        cluster.children[case.killed].wait(_PATIENCE_S)
        if case.have == (case.killed,):
            cluster.start(case.killed)
    fetching = [cluster.children[name] for name in fetch]
    cluster.until(
        seen("data_received", fetch), "got nothing", watched=fetching, timeout_s=_PATIENCE_S
    )
    return hashed_s - began_s, at("data_received", fetch) - hashed_s


def _write(path: Path, size_bytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(0, size_bytes, _PIECE_BYTES):
            file.write(os.urandom(_PIECE_BYTES))
        file.truncate(size_bytes)


def _spec() -> dict[str, Any]:
    return {
        "job": {"name": "data", "task": "digits", "steps": 1, "global_batch_size": 64},
        "elastic": {"min_workers": len(HOSTS), "settle_s": 0.0},
        "data": {_NAME: f"/proc/self/cwd/{_NAME}"},
    }


def data_table(records: Sequence[Record]) -> str:
    """Return the times beside those of the wire."""
    head = ["case", "link", "data", "first hash", "copies complete after", "± MAD", "of the wire"]
    return table(head, [_row(one) for one in records])


def _row(record: Record) -> list[str]:
    wire_s = 8 * record["bytes"] / (record["rate_mbit"] * 1e6)
    copied = spread(record["copied_s"])
    return [
        record["case"],
        f"{record['rate_mbit']} Mbit/s",
        f"{record['bytes'] / 1e9:.2f} GB",
        f"{spread(record['hashed_s']).median:.1f} s",
        f"{copied.median:.1f} s",
        f"{100 * copied.relative:.1f} %",
        f"**{copied.median / wire_s:.2f}**",
    ]
