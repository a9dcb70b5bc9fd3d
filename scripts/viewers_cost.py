"""Cost of viewers of the web page, for an operator who asks for the status and the coordinator.

    python -m scripts.viewers_cost [ROUNDS]
    python -m scripts.viewers_cost --callbacks [SECONDS]

Nobody watches, and then viewers do: they read what is live, and ask for more every three seconds.
The first measures how long an operator waits for the status, over an open connection and by whole
commands, while four workers train steps of 80 ms and 20 viewers draw curves; turns alternate.  The
second measures how long each callback keeps the coordinator's event loop, and how much of its time
the loop is busy (`scripts.timed_coordinator`), while two workers train and 20 viewers go through
all pages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
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
from scripts.timed_coordinator import CALLBACKS
from scripts.web_viewer import CURVES, PAGES, Page, Viewer

ROUNDS: Final = 5
VIEWERS: Final = 20
ASKED: Final = 50
COMMANDS: Final = 5
SECONDS: Final = 40.0
WARM_S: Final = 15.0
WORKERS: Final = ("worker-0", "worker-1", "worker-2", "worker-3")
STEP: Final = Workload(
    what="four linear layers, 20,000 parameters, that wait 80 ms",
    model="layers",
    rows=16,
    block_steps=100_000,
    options={"parameters": 20_000, "layers": 4, "rows": 2048, "compute_ms": 80.0},
)
FASTER: Final = dataclasses.replace(
    STEP,
    what="four linear layers, 200,000 parameters, that wait 30 ms",
    rows=64,
    options={"parameters": 200_000, "layers": 4, "rows": 4096, "compute_ms": 30.0},
)
_JOB: Final = "bench-1"
_WEB: Final = 'web = "127.0.0.1:0"\n'
_LONG_S: Final = 0.005
_PATIENCE_S: Final = 30.0


# --- waiting time of an operator ----------------------------------------------------------------


def measure(rounds: int, *, viewers: int = VIEWERS, commands: int = COMMANDS) -> dict[str, Any]:
    """Seconds until the status is there, with and without viewers."""
    asked_s: dict[bool, list[float]] = {True: [], False: []}
    commands_s: dict[bool, list[float]] = {True: [], False: []}
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(contextlib.closing(Loopback()))
        run = DaemonRun(STEP, WORKERS, network, 1, settings=_WEB)
        stack.enter_context(contextlib.closing(run))
        run.begin()
        for turn in range(rounds):
            for watched in (True, False) if turn % 2 else (False, True):
                with contextlib.ExitStack() as page:
                    if watched:
                        _watch(run, viewers, (CURVES,), page)
                    _ask(run, asked_s[watched], commands_s[watched], commands)
    return {
        "asked": {_called(watched): _spread(found) for watched, found in asked_s.items()},
        "commands": {_called(watched): _spread(found) for watched, found in commands_s.items()},
        "rounds": rounds,
    }


def _watch(run: DaemonRun, viewers: int, pages: Sequence[Page], page: contextlib.ExitStack) -> None:
    made = [Viewer(run.ask(m.OpenWeb()), _JOB, pages, first=place) for place in range(viewers)]
    for one in made:
        page.enter_context(contextlib.closing(one))
    deadline_s = time.monotonic() + _PATIENCE_S
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


# --- time of a callback in the event loop -------------------------------------------------------


def callbacks(
    seconds: float, *, viewers: int = VIEWERS, warm_s: float = WARM_S
) -> dict[str, dict[str, Any]]:
    """Processor time of the coordinator's callbacks, with and without viewers.

    Args:
        seconds: how long they are counted, in either case.
        viewers: how many there are.
        warm_s: how long the job, and then the viewers, have been there before.
    """
    found: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(contextlib.closing(Loopback()))
        run = DaemonRun(
            *(FASTER, WORKERS[:2], network, 1),
            coordinator="scripts.timed_coordinator",
            settings=_WEB,
        )
        stack.enter_context(contextlib.closing(run))
        run.begin()
        for watched in (False, True):
            if watched:
                _watch(run, viewers, PAGES, stack)
            threading.Event().wait(warm_s)
            _callbacks(run)
            begun_s = time.monotonic()
            threading.Event().wait(seconds)
            found[_called(watched)] = _long(_callbacks(run), time.monotonic() - begun_s)
    return found


def _callbacks(run: DaemonRun) -> dict[str, list[float]]:
    """Processor seconds of each callback since the last time, by its owner."""
    pid, state = run.coordinator
    file = state / CALLBACKS
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline_s = time.monotonic() + _PATIENCE_S
    while not file.exists():
        if time.monotonic() > deadline_s:
            raise DtdError("the coordinator does not tell its callbacks")
        threading.Event().wait(0.05)
    found: dict[str, list[float]] = json.loads(file.read_text())
    return found


def _long(found: dict[str, list[float]], counted_s: float) -> dict[str, Any]:
    every = sorted(one for times_s in found.values() for one in times_s)
    worst = sorted(found.items(), key=lambda one: -max(one[1]))[:8]
    return {
        "callbacks": len(every),
        "longest_s": every[-1],
        "p999_s": every[int(0.999 * (len(every) - 1))],
        "over_5_ms": sum(one > _LONG_S for one in every),
        "loop_busy": sum(every) / counted_s,
        "worst": {name: [max(times_s), len(times_s)] for name, times_s in worst},
    }


def main() -> None:
    """Run the measurement of the command line, and print it as JSON."""
    given = sys.argv[1:]
    if given[:1] == ["--callbacks"]:
        print(json.dumps(callbacks(float(given[1]) if given[1:] else SECONDS)))
    else:
        print(json.dumps(measure(int(given[0]) if given else ROUNDS)))


if __name__ == "__main__":
    main()
