"""Faults of worker processes: killed, stopped, hanging, leaving, joining."""

from __future__ import annotations

import math
import signal
import time
from typing import Final

from dtd.wire import messages as m
from scripts.chaosrun import orders
from scripts.chaosrun.drill import TAKES_EFFECT_S, Drill
from scripts.chaosrun.injection import Injection

HANG_S: Final = (3.0, 6.0)
ABSENCE_S: Final = (1.0, 4.0)


def kill(drill: Drill, victim: str) -> Injection:
    """SIGKILL."""
    return drill.strike("kill", victim)


def stop(drill: Drill, victim: str) -> Injection:
    """SIGSTOP, and SIGCONT after a while."""
    injection = drill.begin("stop", victim)
    drill.cluster.signal(victim, signal.SIGSTOP)
    drill.heal(injection, HANG_S, lambda: drill.cluster.signal(victim, signal.SIGCONT))
    return injection


def gil(drill: Drill, victim: str) -> Injection | None:
    """The training thread calls a C function that keeps the interpreter's lock."""
    hang_s = drill.chance.uniform(*HANG_S)
    injection = _order(drill, victim, orders.HOLD_GIL, round(hang_s))
    if injection is not None:
        injection.over_s = injection.at_s + round(hang_s)
    return injection


def stuck(drill: Drill, victim: str) -> Injection | None:
    """The training thread never returns from user code."""
    injection = _order(drill, victim, orders.GET_STUCK, 0.0)
    if injection is not None:
        injection.over_s = injection.at_s
    return injection


def term(drill: Drill, victim: str) -> Injection:
    """SIGTERM: it leaves in good order, and comes back after a while."""
    injection = drill.begin("term", victim)
    injection.pids.add(drill.cluster.pid(victim))
    _absence(drill, victim, injection)
    drill.cluster.signal(victim, signal.SIGTERM)
    return injection


def leave(drill: Drill, victim: str) -> Injection | None:
    """Drained by the operator, and back after a while."""
    injection = drill.begin("leave", victim)
    injection.pids.add(drill.cluster.pid(victim))
    _absence(drill, victim, injection)
    if drill.cluster.ask(m.DrainWorker(name=victim)) is None:
        drill.injections.remove(injection)
        return None
    return injection


def join(drill: Drill, _victim: str) -> Injection | None:
    """One more worker than before; the one that joined last time leaves for it."""
    spare = drill.spare
    if not spare:
        return None
    injection = drill.begin("join", spare)
    injection.over_s = injection.at_s
    if not drill.cluster.runs(spare):
        drill.cluster.start(spare)
        return injection
    injection.note = "the spare worker leaves again"
    injection.pids.add(drill.cluster.pid(spare))
    injection.back_s = injection.at_s
    drill.cluster.stay_down(spare, math.inf)
    drill.cluster.signal(spare, signal.SIGTERM)
    return injection


def _order(drill: Drill, victim: str, what: str, argument: float) -> Injection | None:
    """Have the victim's training thread misbehave, and note the moment at which it begins to."""
    pid = drill.cluster.pid(victim)
    order = drill.orders / f"{what}-{pid}"
    injection = drill.begin(what, victim)
    orders.order(drill.orders, what, pid, argument)
    if not drill.until(lambda: not order.exists(), TAKES_EFFECT_S):
        order.unlink(missing_ok=True)
        drill.injections.remove(injection)
        return None
    injection.at_s = time.time()
    injection.generation = drill.scene.newest_with((victim,), injection.at_s)
    return injection


def _absence(drill: Drill, victim: str, injection: Injection) -> None:
    injection.over_s = time.time() + drill.chance.uniform(*ABSENCE_S)
    drill.cluster.stay_down(victim, injection.over_s)
