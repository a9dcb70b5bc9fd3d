"""What viewers of the web page cost an operator who asks for the status, side by side.

    python -m scripts.viewers_cost [ROUNDS]

Four workers train steps of 80 ms.  In turns nobody watches, and 20 viewers read what is live and
draw curves every three seconds.  Meanwhile the status is asked for, over an open connection and by
whole commands.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from dtd.errors import DtdError
from dtd.wire import messages as m
from scripts.benchrun.daemons import DaemonRun
from scripts.benchrun.workloads import Workload
from scripts.cluster.networks import Loopback
from scripts.web_viewer import Viewer

ROUNDS: Final = 5
VIEWERS: Final = 20
ASKED: Final = 50
COMMANDS: Final = 5
WORKERS: Final = ("worker-0", "worker-1", "worker-2", "worker-3")
STEP: Final = Workload(
    what="four linear layers, 20,000 parameters, that wait 80 ms",
    model="layers",
    rows=16,
    block_steps=100_000,
    options={"parameters": 20_000, "layers": 4, "rows": 2048, "compute_ms": 80.0},
)
_JOB: Final = "bench-1"


def measure(rounds: int, *, viewers: int = VIEWERS, commands: int = COMMANDS) -> dict[str, Any]:
    """Seconds until the status is there, with and without viewers."""
    asked_s: dict[bool, list[float]] = {True: [], False: []}
    commands_s: dict[bool, list[float]] = {True: [], False: []}
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(contextlib.closing(Loopback()))
        run = DaemonRun(STEP, WORKERS, network, 1, settings='web = "127.0.0.1:0"\n')
        stack.enter_context(contextlib.closing(run))
        run.begin()
        for turn in range(rounds):
            for watched in (True, False) if turn % 2 else (False, True):
                with contextlib.ExitStack() as page:
                    if watched:
                        _watch(run, viewers, page)
                    _ask(run, asked_s[watched], commands_s[watched], commands)
    return {
        "asked": {_called(watched): _spread(found) for watched, found in asked_s.items()},
        "commands": {_called(watched): _spread(found) for watched, found in commands_s.items()},
        "rounds": rounds,
    }


def _watch(run: DaemonRun, viewers: int, page: contextlib.ExitStack) -> None:
    made = [Viewer(run.ask(m.OpenWeb()), _JOB) for _ in range(viewers)]
    for one in made:
        page.enter_context(contextlib.closing(one))
    deadline_s = time.monotonic() + 30.0
    while not all(one.read_bytes for one in made):
        if time.monotonic() > deadline_s:
            raise DtdError("a viewer sees nothing")
        threading.Event().wait(0.05)


def _ask(run: DaemonRun, asked_s: list[float], commands_s: list[float], commands: int) -> None:
    for _ in range(ASKED):
        begun_s = time.perf_counter()
        run.ask(m.GetStatus())
        asked_s.append(time.perf_counter() - begun_s)
    for _ in range(commands):
        begun_s = time.perf_counter()
        run.dtdctl("status")
        commands_s.append(time.perf_counter() - begun_s)


def _called(watched: bool) -> str:
    return "watched" if watched else "nobody watches"


def _spread(found_s: Sequence[float]) -> dict[str, float]:
    return {"median_s": statistics.median(found_s), "slowest_s": max(found_s), "of": len(found_s)}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)))
