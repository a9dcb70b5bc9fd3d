"""The kinds of faults that a run can choose from, and their schedules: times and victims.

An injector does one thing to one victim, writes it down with the moment at which it took effect,
and arranges for its end.  It neither waits for what comes of it nor judges that.

Two schedules.  `one_by_one` lets the cluster settle before each fault, so that what follows has one
cause; `mixed` continues while victims of earlier faults are still on their way back, as long as
enough healthy workers train.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from dtd.wire import messages as m
from scripts.chaosrun.faulty_task import GET_STUCK, HOLD_GIL
from scripts.chaosrun.harness import TAKES_EFFECT_S, Harness
from scripts.chaosrun.judge import Injection
from scripts.cluster.disks import rot
from scripts.cluster.fault_proxy import BOTH, TO_CALLER, TO_TARGET, Direction
from scripts.cluster.log_timeline import fell_due
from scripts.cluster.networks import COORDINATOR, CUTTABLE

# --- worker processes: killed, stopped, hanging, leaving, joining ---------------------------------


HANG_S: Final = (3.0, 6.0)
ABSENCE_S: Final = (1.0, 4.0)


def kill(harness: Harness, victim: str) -> Injection:
    """SIGKILL."""
    return harness.strike("kill", victim)


def stop(harness: Harness, victim: str) -> Injection:
    """SIGSTOP, and SIGCONT after a while."""
    injection = harness.begin("stop", victim)
    harness.cluster.signal(victim, signal.SIGSTOP)
    harness.heal(injection, HANG_S, lambda: harness.cluster.signal(victim, signal.SIGCONT))
    return injection


def gil(harness: Harness, victim: str) -> Injection | None:
    """The training thread calls a C function that keeps the interpreter's lock."""
    hang_s = harness.chance.uniform(*HANG_S)
    injection = _command(harness, victim, HOLD_GIL, round(hang_s))
    if injection is not None:
        injection.over_s = injection.at_s + round(hang_s)
    return injection


def stuck(harness: Harness, victim: str) -> Injection | None:
    """The training thread never returns from user code."""
    injection = _command(harness, victim, GET_STUCK, 0.0)
    if injection is not None:
        injection.over_s = injection.at_s
    return injection


def term(harness: Harness, victim: str) -> Injection:
    """SIGTERM: it leaves in good order, and comes back after a while."""
    injection = harness.begin("term", victim)
    injection.pids.add(harness.cluster.pid(victim))
    _absence(harness, victim, injection)
    harness.cluster.signal(victim, signal.SIGTERM)
    return injection


def leave(harness: Harness, victim: str) -> Injection | None:
    """Drained by the operator, and back after a while."""
    injection = harness.begin("leave", victim)
    injection.pids.add(harness.cluster.pid(victim))
    _absence(harness, victim, injection)
    if harness.cluster.try_ask(m.DrainWorker(name=victim)) is None:
        harness.injections.remove(injection)
        return None
    return injection


def join(harness: Harness, _victim: str) -> Injection | None:
    """One more worker than before; the one that joined last time leaves for it."""
    spare = harness.spare
    if not spare:
        return None
    injection = harness.begin("join", spare)
    injection.over_s = injection.at_s
    if not harness.cluster.runs(spare):
        harness.cluster.start(spare)
        return injection
    injection.note = "the spare worker leaves again"
    injection.pids.add(harness.cluster.pid(spare))
    injection.back_s = injection.at_s
    harness.cluster.stay_down(spare, math.inf)
    harness.cluster.signal(spare, signal.SIGTERM)
    return injection


def _command(harness: Harness, victim: str, what: str, argument: float) -> Injection | None:
    """Have the victim's training thread misbehave, and note the moment at which it begins to."""
    pid = harness.cluster.pid(victim)
    command = harness.commands / f"{what}-{pid}"
    injection = harness.begin(what, victim)
    written = command.with_name(f".{command.name}")
    written.write_text(str(argument))
    written.rename(command)  # it appears whole
    if not harness.until(lambda: not command.exists(), TAKES_EFFECT_S):
        command.unlink(missing_ok=True)
        harness.injections.remove(injection)
        return None
    injection.at_s = time.time()
    injection.generation = harness.timeline.newest_with((victim,), injection.at_s)
    return injection


def _absence(harness: Harness, victim: str, injection: Injection) -> None:
    absence_s = harness.chance.uniform(*ABSENCE_S)
    injection.over_s = time.time() + absence_s
    harness.cluster.stay_down(victim, absence_s)


# --- links: dead, one-way, partitioned, damaging, slow --------------------------------------------


CUT_S: Final = (4.0, 8.0)
SLOW_S: Final = (2.0, 5.0)
DELAY_S: Final = 0.02
NARROW_BYTES_PER_S: Final = 20e6
FLIP_WITHIN_BYTES: Final = 1_000_000
FLIP_BACK_WITHIN_BYTES: Final = 64


def link(harness: Harness, victim: str) -> Injection | None:
    """The link to the next worker in the ring is dead, in both directions, without any sign."""
    roster = harness.timeline.roster
    if victim not in roster or len(roster) < 2:
        return None
    other = roster[(roster.index(victim) + 1) % len(roster)]
    return _cut(harness, "link", (victim, other), [(victim, other), (other, victim)])


def oneway(harness: Harness, victim: str) -> Injection | None:
    """The victim is not heard any more, or hears nothing any more."""
    others = harness.cluster.names - {victim}
    deaf = harness.chance.random() < 0.5
    ways = [(other, victim) if deaf else (victim, other) for other in sorted(others)]
    return _cut(harness, "oneway", (victim,), ways, note="deaf" if deaf else "mute")


def partition(harness: Harness, victim: str) -> Injection | None:
    """The victim's cable is pulled."""
    others = sorted(harness.cluster.names - {victim})
    ways = [way for other in others for way in ((victim, other), (other, victim))]
    return _cut(harness, "partition", (victim,), ways)


def flip(harness: Harness, victim: str) -> Injection | None:
    """One bit on its way to the victim is wrong: in a gradient, most likely."""
    return _flip(harness, "flip", victim, TO_TARGET, FLIP_WITHIN_BYTES)


def flip_back(harness: Harness, victim: str) -> Injection | None:
    """One bit that the victim sends back is wrong: in a beat, or in state that it gives."""
    return _flip(harness, "flip_back", victim, TO_CALLER, FLIP_BACK_WITHIN_BYTES)


def _flip(
    harness: Harness, kind: str, victim: str, direction: Direction, within_bytes: int
) -> Injection | None:
    injection = harness.begin(kind, victim)
    proxy = harness.cluster.network.proxies[victim]
    one = proxy.flip_next(direction, after_bytes=harness.chance.randrange(within_bytes))
    if not harness.until(one.done.is_set, TAKES_EFFECT_S):
        proxy.unflip(direction)
        harness.injections.remove(injection)
        return None
    roster = harness.timeline.roster
    if victim in roster:
        injection.victims = (victim, roster[roster.index(victim) - 1])
    injection.at_s = injection.over_s = one.at_s
    injection.generation = harness.timeline.newest_with(injection.victims, injection.at_s)
    return injection


def slow(harness: Harness, victim: str) -> Injection:
    """The victim's data port is far away, and its line narrow."""
    proxy = harness.cluster.network.proxies[victim]
    injection = harness.begin("slow", victim)
    for direction in BOTH:
        proxy.delay(direction, DELAY_S)
        proxy.narrow(direction, NARROW_BYTES_PER_S)
    harness.heal(injection, SLOW_S, proxy.restore)
    return injection


def _cut(
    harness: Harness,
    kind: str,
    victims: tuple[str, ...],
    ways: list[tuple[str, str]],
    *,
    note: str = "",
) -> Injection | None:
    network = harness.cluster.network
    if not isinstance(network, CUTTABLE):
        return None
    injection = harness.begin(kind, *victims, note=note)
    for sender, receiver in ways:
        network.cut(sender, receiver)

    def restore() -> None:
        for sender, receiver in ways:
            network.restore(sender, receiver)

    harness.heal(injection, CUT_S, restore)
    return injection


# --- the coordinator, disks, everything at once ---------------------------------------------------


AWAY_S: Final = (8.0, 15.0)
DISK_S: Final = (3.0, 8.0)


def coordinator(harness: Harness, _victim: str) -> Injection:
    """Kill -9 of the coordinator; it is started again at once."""
    return harness.strike("coordinator", COORDINATOR)


def coordinator_away(harness: Harness, _victim: str) -> Injection:
    """Kill -9 of the coordinator, which stays away for a while."""
    injection = harness.begin("coordinator_away", COORDINATOR)
    away_s = harness.away_s or harness.chance.uniform(*AWAY_S)
    injection.over_s = injection.at_s + away_s
    injection.note = f"{away_s:.0f} s"
    harness.cluster.stay_down(COORDINATOR, away_s)
    harness.kill(COORDINATOR, injection)
    return injection


def orphan(harness: Harness, victim: str) -> Injection:
    """A worker is killed while the coordinator is away: no ring can be formed without it."""
    injection = coordinator_away(harness, victim)
    injection.kind = "orphan"
    injection.victims = (COORDINATOR, victim)
    harness.kill(victim, injection)
    return injection


def everything(harness: Harness, _victim: str) -> Injection:
    """SIGKILL of every daemon at once."""
    cluster = harness.cluster
    return harness.strike("all", *sorted(name for name in cluster.names if cluster.runs(name)))


def disk(harness: Harness, _victim: str) -> Injection | None:
    """The checkpoint writer's disk is full or read-only for a while."""
    disks = harness.cluster.disks
    if disks is None or not harness.timeline.roster:
        return None
    victim = harness.timeline.roster[0]
    if any(_is_bad_now(one, victim) for one in harness.injections):
        return None  # a full disk cannot be made read-only and back without losing track
    directory = harness.cluster.state_dir(victim)
    injection = harness.begin("disk", victim)
    if harness.chance.random() < 0.5:
        injection.note = "full"
        disks.fill(directory)
        harness.heal(injection, DISK_S, lambda: disks.empty(directory))
    else:
        injection.note = "read-only"
        disks.set_read_only(directory, read_only=True)
        undo = lambda: disks.set_read_only(directory, read_only=False)  # noqa: E731
        harness.heal(injection, DISK_S, undo)
    return injection


def _is_bad_now(injection: Injection, victim: str) -> bool:
    return (
        injection.kind == "disk" and victim in injection.victims and injection.over_s > time.time()
    )


def rotten(harness: Harness, victim: str) -> Injection | None:
    """A byte of the newest checkpoint of some worker is wrong, or a file of it is gone."""
    cluster = harness.cluster
    for name in [victim, *sorted(cluster.names - {victim, COORDINATOR})]:
        if any(_is_bad_now(one, name) for one in harness.injections):
            continue  # it may be read-only
        directory = cluster.state_dir(name)
        damage = partial(rot, directory, harness.chance)
        note = cluster.disks.inside(damage) if cluster.disks is not None else damage()
        if note:
            injection = harness.begin("rot", name, note=note)
            injection.over_s = injection.back_s = injection.at_s
            return injection
    return None


# --- all kinds ------------------------------------------------------------------------------------


Needs = Literal["", "cut", "proxies", "disks"]
Injector = Callable[[Harness, str], "Injection | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault.

    Attributes:
        inject: does it to a worker (or to none in particular); None when it could not be done.
        needs: features that the run must offer.
        ends_generation: whether the ring must be formed again because of it.
        weight: how often it is chosen in a mix.
    """

    inject: Injector
    needs: Needs = ""
    ends_generation: bool = True
    weight: float = 1.0


KINDS: Final[dict[str, Kind]] = {
    "kill": Kind(inject=kill, weight=4.0),
    "stop": Kind(inject=stop, weight=2.0),
    "gil": Kind(inject=gil),
    "stuck": Kind(inject=stuck, weight=0.5),
    "term": Kind(inject=term),
    "leave": Kind(inject=leave),
    "join": Kind(inject=join),
    "link": Kind(inject=link, needs="cut"),
    "oneway": Kind(inject=oneway, needs="cut"),
    "partition": Kind(inject=partition, needs="cut"),
    "flip": Kind(inject=flip, needs="proxies", weight=1.5),
    "flip_back": Kind(
        inject=flip_back,
        needs="proxies",
        ends_generation=False,
        weight=0.5,
    ),
    "slow": Kind(inject=slow, needs="proxies", ends_generation=False),
    "coordinator": Kind(inject=coordinator, ends_generation=False, weight=2.0),
    "coordinator_away": Kind(inject=coordinator_away, ends_generation=False, weight=0.3),
    "orphan": Kind(inject=orphan, weight=0.3),
    "disk": Kind(inject=disk, needs="disks", ends_generation=False),
    "rot": Kind(inject=rotten, ends_generation=False),
    "all": Kind(inject=everything, weight=0.3),
}


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
        settled = harness.until(harness.whole, harness.settle_s)
        if time.time() >= until_s:
            return
        if not settled:
            harness.say(
                f"not settled within {harness.settle_s:g} s: only {', '.join(harness.fit())} train"
            )
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

    if not harness.until(has_come, harness.settle_s):
        harness.say(f"{victim} has not come to {event} within {harness.settle_s:g} s")
        return
    harness.go_on(harness.chance.uniform(0.0, within_s))
    injection = kill(harness, victim)
    tell(harness, injection)
    await_recovery(harness, injection)


def mixed(
    harness: Harness, kinds: Sequence[str], count: int, *, quiet_s: float, until_s: float
) -> None:
    """Inject so many at random, by weights, spread over the run's time."""
    fewest = min(FEWEST_FIT, len(harness.workers) - 1)
    while len(harness.injections) < count and time.time() < until_s:
        harness.until(lambda: len(harness.fit()) > fewest, harness.settle_s)
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
