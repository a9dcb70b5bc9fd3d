"""Tests whether a simulated worker can fetch from another, as `dtd.worker.measure.links` does."""

from __future__ import annotations

from collections.abc import Callable

from dtd.wire import messages as m
from tests.sim.data_port import WELCOME, ProbeHello
from tests.sim.surroundings import Surroundings


def probe(
    surroundings: Surroundings,
    asked: m.Probe,
    *,
    by: str,
    after: Callable[[float, Callable[[], None]], None],
    answer: Callable[[m.Probed], None],
) -> None:
    """Probe a worker, and report the result once.

    Args:
        surroundings: clock and network.
        asked: the request, which names the worker to reach.
        by: name of the probing worker.
        after: runs an action after a delay, unless the process has died by then.
        answer: called with the answer.
    """
    answered = greeted = False

    def come_back(reason: str) -> None:
        nonlocal answered
        if not answered:
            answered = True
            port.close("probed")
            answer(m.Probed(name=asked.name, reachable=not reason, reason=reason, greeted=greeted))

    def on_frame(content: object) -> bool:
        nonlocal greeted
        if content == WELCOME:
            greeted = True
            port.send("more")
        else:
            come_back("")
        return True

    port = surroundings.network.connect(
        by, asked.host, ProbeHello(), receive=on_frame, closed=come_back
    )
    after(surroundings.heartbeat_timeout_s, lambda: come_back("no answer"))
