"""What the web page costs the coordinator: how long a callback keeps its event loop, and a status.

    python -m scripts.web_cost [--viewers 20] [--seconds 40]

A coordinator with two workers in a job is looked at by nobody, and then by viewers, each logged in
on its own, who read live data and go through all pages.  The coordinator runs on asyncio's own
loop, and each callback's processor time is taken: it is what a busy machine leaves comparable.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dtd.address import Address
from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m
from scripts.cluster.local import LocalCluster
from scripts.cluster.processes import Child
from scripts.web_viewer import log_in

WORKERS: Final = 2
STATUSES: Final = 100
WARM_S: Final = 15.0
PAGE_S: Final = 3.0
"""How long a viewer stays on a page."""

LONG_S: Final = 0.005
RESULT: Final = "callbacks.json"
JOB: Final = """
[job]
name = "watched"
task = "synthetic"
steps = 1000000
global_batch_size = 64
[task]
parameters = 200000
rows = 4096
compute_ms = 30.0
[checkpoint]
every_steps = 100
"""
PAGES: Final = (
    ("jobs/{job}/metrics?names=loss,rows_per_s&points=300", "events"),
    ("jobs",),
    ("jobs/{job}", "jobs/{job}/metrics?points=300", "events"),
    ("jobs/{job}/metrics?workers=1&points=120", "jobs/{job}/logs"),
    ("checkpoints", "models", "sweeps"),
    ("jobs/{job}/report",),
)
"""What each page asks for."""


# --- the coordinator's process: callbacks that are timed ----------------------------------------


def timed_coordinator(file: Path, arguments: Sequence[str]) -> int:
    """Run the coordinator; SIGUSR1 writes down what was seen since the last time."""
    import uvloop

    from dtd.coordinator.main import main

    seen: dict[str, list[float]] = defaultdict(list)
    run = asyncio.Handle._run  # noqa: SLF001 - there is no other place to stand

    def timed(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        seen[_name(handle)].append(time.thread_time() - began_s)

    def tell(_number: int, _frame: object) -> None:
        made = file.with_suffix(".new")
        made.write_text(json.dumps(seen))
        made.rename(file)
        seen.clear()

    setattr(asyncio.Handle, "_run", timed)  # noqa: B010 - typed otherwise
    setattr(uvloop, "run", asyncio.run)  # noqa: B010
    signal.signal(signal.SIGUSR1, tell)
    return main(arguments)


def _name(handle: asyncio.Handle) -> str:
    called = getattr(handle, "_callback", None)
    owner = getattr(called, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return str(getattr(called, "__qualname__", type(called).__name__))


class Measured(LocalCluster):
    """A cluster whose coordinator's callbacks are timed."""

    def start_coordinator(self, *options: str, wrapper: Sequence[str] = ()) -> Child:
        """As usual, within this script."""
        file = str(self.directory / RESULT)
        own = (sys.executable, "-m", "scripts.web_cost", "--timed", file)
        return super().start_coordinator(*options, wrapper=(*wrapper, *own))

    def callbacks(self) -> dict[str, list[float]]:
        """Processor seconds of each callback since the last time, by what it belongs to."""
        file = self.directory / RESULT
        file.unlink(missing_ok=True)
        self.children["coordinator"].signal_group(signal.SIGUSR1)
        self.until(file.exists, "does not tell", watched=[self.children["coordinator"]])
        found: dict[str, list[float]] = json.loads(file.read_text())
        return found


# --- the viewers' process -----------------------------------------------------------------------


async def view(url: str, sessions: Sequence[str], job: str) -> None:
    """Look at all pages until the process is ended."""
    await asyncio.gather(
        *(_viewer(url, json.loads(one), job, place) for place, one in enumerate(sessions))
    )


async def _viewer(url: str, headers: dict[str, str], job: str, place: int) -> None:
    from aiohttp import ClientSession, DummyCookieJar

    async with ClientSession(url, cookie_jar=DummyCookieJar(), headers=headers) as session:

        async def live() -> None:
            async with session.get("/api/live") as stream:
                while await stream.content.readany():
                    pass

        watching = asyncio.create_task(live())
        while not watching.done():
            for path in PAGES[place % len(PAGES)]:
                async with session.get(f"/api/{path.format(job=job)}") as answer:
                    answer.raise_for_status()
                    await answer.read()
            place += 1
            await asyncio.sleep(PAGE_S)
        await watching


# --- measuring ----------------------------------------------------------------------------------


def measure(cluster: Measured, seconds: float) -> dict[str, Any]:
    """Callbacks and answers to GET_STATUS during some time."""
    cluster.callbacks()
    began_s = time.monotonic()
    answers = []
    for _ in range(STATUSES):
        with cluster.client() as client:
            asked_s = time.monotonic()
            client.request(m.GetStatus())
            answers.append(time.monotonic() - asked_s)
        time.sleep(max(0.0, seconds / STATUSES - answers[-1]))
    found = cluster.callbacks()
    every = sorted(one for durations in found.values() for one in durations)
    worst = sorted(found.items(), key=lambda one: -max(one[1]))[:8]
    return {
        "callbacks": len(every),
        "longest_ms": round(1e3 * every[-1], 2),
        "p999_ms": round(1e3 * every[int(0.999 * (len(every) - 1))], 2),
        "over_5_ms": sum(one > LONG_S for one in every),
        "loop_busy": round(sum(every) / (time.monotonic() - began_s), 3),
        "worst": {name: [round(1e3 * max(times), 2), len(times)] for name, times in worst},
        "status_median_ms": round(1e3 * statistics.median(answers), 2),
        "status_slowest_ms": round(1e3 * max(answers), 2),
    }


def compare(viewers: int, seconds: float) -> None:
    """Measure without viewers and with them, and print both."""
    with tempfile.TemporaryDirectory(prefix="dtd-web-cost-") as directory:
        web = Address("127.0.0.1", 0)
        cluster = Measured(
            directory=Path(directory), workers=WORKERS, device="cpu", say=print, web=web
        )
        watching: subprocess.Popen[bytes] | None = None
        try:
            cluster.start_all()
            job = cluster.submit(to_mapping(parse_job(JOB, source="job")))
            time.sleep(WARM_S)
            print("nobody", json.dumps(measure(cluster, seconds), indent=1))
            url = cluster.ask(m.OpenWeb())["url"]
            sessions = [json.dumps(log_in(cluster.ask(m.OpenWeb()))) for _ in range(viewers)]
            command = [sys.executable, "-m", "scripts.web_cost", "--view", url, job, *sessions]
            watching = subprocess.Popen(command)
            time.sleep(WARM_S)
            print(f"{viewers} viewers", json.dumps(measure(cluster, seconds), indent=1))
        finally:
            if watching is not None:
                watching.terminate()
                watching.wait()
            cluster.stop()


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    if sys.argv[1:2] == ["--timed"]:
        at = sys.argv.index("dtd.coordinator.main")
        sys.exit(timed_coordinator(Path(sys.argv[2]), sys.argv[at + 1 :]))
    if sys.argv[1:2] == ["--view"]:
        url, job, *sessions = sys.argv[2:]
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(view(url, sessions, job))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=40.0)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    compare(given.viewers, given.seconds)


if __name__ == "__main__":
    main()
