"""Schedules of faults: their times and victims.

Two schedules.  `one_by_one` lets the cluster settle before each fault, so that what follows has one
cause; `mixed` continues while victims of earlier faults are still on their way back, as long as
enough healthy workers train.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

from scripts.chaosrun.faults import KINDS, kill
from scripts.chaosrun.harness import Harness
from scripts.chaosrun.outcomes import Injection
from scripts.cluster.log_timeline import fell_due
from scripts.cluster.networks import COORDINATOR

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


def one_by_one(harness: Harness, kinds: Sequence[str], *, until_s: float) -> None:
    """Inject these in this order, each into a settled cluster."""
    for kind in kinds:
        settled = harness.until(lambda: harness.settled(len(harness.workers)), SETTLE_S)
        if time.time() >= until_s:
            return
        if not settled:
            harness.say(f"not settled within {SETTLE_S:g} s: only {', '.join(harness.fit())} train")
        harness.go_on(harness.chance.uniform(0.0, 0.5))
        victim = harness.chance.choice(harness.fit() or harness.workers)
        await_moment(harness, victim)
        injection = KINDS[kind].inject(harness, victim)
        if injection is None:
            harness.say(f"{kind} of {victim} could not be done")
            continue
        tell(harness, injection)
        await_recovery(harness, injection)
        if COORDINATOR in injection.victims:
            harness.go_on(harness.chance.uniform(0.0, ADOPTION_S))


def kills(harness: Harness, count: int, *, until_s: float) -> None:
    """SIGKILL so many times, in all phases: some victims are killed again as they come back."""
    while len(harness.injections) < count and time.time() < until_s:
        one_by_one(harness, ["kill"], until_s=until_s)
        if len(harness.injections) < count and harness.chance.random() < COMES_BACK_SHARE:
            _kill_returning(harness, harness.injections[-1])


def _kill_returning(harness: Harness, before: Injection) -> None:
    """Kill the victim once more, somewhere on its way back."""
    (victim,) = before.victims
    event, within_s = harness.chance.choice(_RETURNING)

    def has_come() -> bool:
        return harness.timeline.last_s.get((victim, event), 0.0) > before.at_s

    if not harness.until(has_come, SETTLE_S):
        harness.say(f"{victim} has not come to {event} within {SETTLE_S:g} s")
        return
    harness.go_on(harness.chance.uniform(0.0, within_s))
    injection = kill(harness, victim)
    tell(harness, injection)
    await_recovery(harness, injection)


def mixed(
    harness: Harness, kinds: Sequence[str], count: int, *, quiet_s: float, until_s: float
) -> None:
    """Inject so many at random, by weights, spread over the run's time."""
    while len(harness.injections) < count and time.time() < until_s:
        harness.until(lambda: len(harness.fit()) > FEWEST_FIT, SETTLE_S)
        kind = _choose(harness, kinds)
        victim = harness.chance.choice(harness.fit() or harness.workers)
        await_moment(harness, victim)
        injection = KINDS[kind].inject(harness, victim)
        if injection is None:
            continue
        tell(harness, injection)
        await_recovery(harness, injection)
        harness.go_on(harness.chance.uniform(0.0, 2 * quiet_s))


def _choose(harness: Harness, kinds: Sequence[str]) -> str:
    """A kind by weight; one cut at a time, since the end of one would end the other."""
    now_s = time.time()
    cutting = any(one.kind in _CUTS and now_s < one.over_s for one in harness.injections)
    may = [kind for kind in kinds if not (cutting and kind in _CUTS)] or [*kinds]
    return harness.chance.choices(may, [KINDS[kind].weight for kind in may])[0]


def await_moment(harness: Harness, victim: str) -> None:
    """Some moment of a step: a commit of the victim's and a random part of a step after it.

    Now and then it is a step after which there is a checkpoint or an evaluation.
    """
    every = int(harness.spec["checkpoint"]["every_steps"])
    boundary = every > 0 and harness.chance.random() < BOUNDARY_SHARE
    before = harness.timeline.last_commit(victim)

    def committed() -> bool:
        last = harness.timeline.last_commit(victim)
        if last is None or last is before:
            return False
        return not boundary or fell_due(last.step, last.steps, every)

    harness.until(committed, NEXT_LINE_S)
    pause_s = harness.chance.uniform(0.0, STEPS_WITHIN * harness.timeline.step_s())
    harness.go_on(pause_s)


def await_recovery(harness: Harness, injection: Injection) -> None:
    """Wait until a worker commits again, in a newer generation if there must be one."""
    ends = KINDS[injection.kind].ends_generation and injection.generation > 0

    def recovered() -> bool:
        last = harness.timeline.last_commit()
        if last is None or last.at_s <= injection.at_s:
            return False
        return last.generation > injection.generation or not ends

    away_s = 0.0
    if COORDINATOR in injection.victims:
        away_s = max(0.0, injection.over_s - time.time())
        harness.until(lambda: not math.isinf(injection.back_s), away_s + RECOVER_S)
    if not harness.until(recovered, away_s + RECOVER_S):
        harness.say(f"nothing was committed within {away_s + RECOVER_S:g} s after that")


def tell(harness: Harness, injection: Injection) -> None:
    """Print one line about a fault."""
    note = f" ({injection.note})" if injection.note else ""
    harness.say(
        f"{len(harness.injections):4d} {injection.kind} of {', '.join(injection.victims)}{note},"
        f" in generation {injection.generation}, {injection.phase}"
    )
