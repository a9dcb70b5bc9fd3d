"""When the next fault is injected, and into whom.

Two paces.  `one_by_one` lets the cluster settle before each fault, so that what follows has one
cause; `mixed` goes on while victims of earlier faults are still on their way back, as long as
enough healthy workers train.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

from scripts.chaosrun.drill import Drill
from scripts.chaosrun.faults import KINDS
from scripts.chaosrun.hurt_workers import kill
from scripts.chaosrun.injection import Injection
from scripts.local_cluster import COORDINATOR

SETTLE_S: Final = 120.0
RECOVER_S: Final = 15.0
NEXT_LINE_S: Final = 10.0
STEPS_WITHIN: Final = 1.2
COMES_BACK_SHARE: Final = 0.35
BOUNDARY_SHARE: Final = 0.15
ADOPTION_S: Final = 2.0
FEWEST_FIT: Final = 2
# On a victim's way back: lines of its log, and how long after each it may be killed again.
_RETURNING: Final = (
    ("worker_started", 0.6),
    ("job_prepared", 3.0),
    ("generation_assigned", 0.08),
)
_CUTS: Final = ("link", "oneway", "partition")


def one_by_one(drill: Drill, kinds: Sequence[str], *, until_s: float) -> None:
    """Inject these in this order, each into a settled cluster."""
    for kind in kinds:
        settled = drill.until(lambda: drill.settled(len(drill.workers)), SETTLE_S)
        if time.time() >= until_s:
            return
        if not settled:
            drill.say(f"not settled within {SETTLE_S:g} s: only {', '.join(drill.fit())} train")
        drill.go_on(drill.chance.uniform(0.0, 0.5))
        victim = drill.chance.choice(drill.fit() or drill.workers)
        await_moment(drill, victim)
        injection = KINDS[kind].inject(drill, victim)
        if injection is None:
            drill.say(f"{kind} of {victim} could not be done")
            continue
        tell(drill, injection)
        await_recovery(drill, injection)
        if COORDINATOR in injection.victims:
            drill.go_on(drill.chance.uniform(0.0, ADOPTION_S))


def kills(drill: Drill, count: int, *, until_s: float) -> None:
    """SIGKILL so many times, in all phases: some victims are killed again as they come back."""
    while len(drill.injections) < count and time.time() < until_s:
        one_by_one(drill, ["kill"], until_s=until_s)
        if len(drill.injections) < count and drill.chance.random() < COMES_BACK_SHARE:
            _kill_returning(drill, drill.injections[-1])


def _kill_returning(drill: Drill, before: Injection) -> None:
    """Kill the victim once more, somewhere on its way back."""
    (victim,) = before.victims
    event, within_s = drill.chance.choice(_RETURNING)

    def has_come() -> bool:
        return drill.scene.last_s.get((victim, event), 0.0) > before.at_s

    if not drill.until(has_come, SETTLE_S):
        drill.say(f"{victim} has not come to {event} within {SETTLE_S:g} s")
        return
    drill.go_on(drill.chance.uniform(0.0, within_s))
    injection = kill(drill, victim)
    tell(drill, injection)
    await_recovery(drill, injection)


def mixed(
    drill: Drill, kinds: Sequence[str], count: int, *, quiet_s: float, until_s: float
) -> None:
    """Inject so many by chance, as weights say, spread over the time that there is."""
    while len(drill.injections) < count and time.time() < until_s:
        drill.until(lambda: len(drill.fit()) > FEWEST_FIT, SETTLE_S)
        kind = _choose(drill, kinds)
        victim = drill.chance.choice(drill.fit() or drill.workers)
        await_moment(drill, victim)
        injection = KINDS[kind].inject(drill, victim)
        if injection is None:
            continue
        tell(drill, injection)
        await_recovery(drill, injection)
        drill.go_on(drill.chance.uniform(0.0, 2 * quiet_s))


def _choose(drill: Drill, kinds: Sequence[str]) -> str:
    """A kind by weight; one cut at a time, since the end of one would end the other."""
    now_s = time.time()
    cutting = any(one.kind in _CUTS and now_s < one.over_s for one in drill.injections)
    may = [kind for kind in kinds if not (cutting and kind in _CUTS)] or [*kinds]
    return drill.chance.choices(may, [KINDS[kind].weight for kind in may])[0]


def await_moment(drill: Drill, victim: str) -> None:
    """Some moment of a step: a commit of the victim's and a random part of a step after it.

    Now and then it is a step after which there is a checkpoint or an evaluation.
    """
    every = int(drill.spec["checkpoint"]["every_steps"])
    boundary = every > 0 and drill.chance.random() < BOUNDARY_SHARE
    before = drill.scene.last_commit(victim)

    def committed() -> bool:
        last = drill.scene.last_commit(victim)
        return last is not None and last is not before and not (boundary and last.step % every)

    drill.until(committed, NEXT_LINE_S)
    pause_s = drill.chance.uniform(0.0, STEPS_WITHIN * drill.scene.step_s())
    drill.go_on(pause_s)


def await_recovery(drill: Drill, injection: Injection) -> None:
    """Until somebody commits again, in a newer generation if there must be one."""
    ends = KINDS[injection.kind].ends_generation and injection.generation > 0

    def recovered() -> bool:
        last = drill.scene.last_commit()
        if last is None or last.at_s <= injection.at_s:
            return False
        return last.generation > injection.generation or not ends

    away_s = 0.0
    if COORDINATOR in injection.victims:
        away_s = max(0.0, injection.over_s - time.time())
        drill.until(lambda: not math.isinf(injection.back_s), away_s + RECOVER_S)
    if not drill.until(recovered, away_s + RECOVER_S):
        drill.say(f"nothing was committed within {away_s + RECOVER_S:g} s after that")


def tell(drill: Drill, injection: Injection) -> None:
    """One line for whoever watches."""
    note = f" ({injection.note})" if injection.note else ""
    drill.say(
        f"{len(drill.injections):4d} {injection.kind} of {', '.join(injection.victims)}{note},"
        f" in generation {injection.generation}, {injection.phase}"
    )
