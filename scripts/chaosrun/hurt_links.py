"""Faults of the network between daemons: dead, one-way, partitioned, damaging, slow."""

from __future__ import annotations

from typing import Final

from scripts.chaosrun.drill import TAKES_EFFECT_S, Drill
from scripts.chaosrun.injection import Injection
from scripts.chaosrun.networks import CuttableNetwork
from scripts.fault_proxy import BOTH, TO_CALLER, TO_TARGET, Direction

CUT_S: Final = (4.0, 8.0)
SLOW_S: Final = (2.0, 5.0)
DELAY_S: Final = 0.02
NARROW_BYTES_PER_S: Final = 20e6
FLIP_WITHIN_BYTES: Final = 1_000_000
FLIP_BACK_WITHIN_BYTES: Final = 64


def link(drill: Drill, victim: str) -> Injection | None:
    """The link to the next worker in the ring is dead, in both directions; nobody is told."""
    roster = drill.scene.roster
    if victim not in roster or len(roster) < 2:
        return None
    other = roster[(roster.index(victim) + 1) % len(roster)]
    return _cut(drill, "link", (victim, other), [(victim, other), (other, victim)])


def oneway(drill: Drill, victim: str) -> Injection | None:
    """The victim is not heard any more, or hears nothing any more."""
    others = drill.cluster.names - {victim}
    deaf = drill.chance.random() < 0.5
    ways = [(other, victim) if deaf else (victim, other) for other in sorted(others)]
    return _cut(drill, "oneway", (victim,), ways, note="deaf" if deaf else "mute")


def partition(drill: Drill, victim: str) -> Injection | None:
    """The victim's cable is pulled."""
    others = sorted(drill.cluster.names - {victim})
    ways = [way for other in others for way in ((victim, other), (other, victim))]
    return _cut(drill, "partition", (victim,), ways)


def flip(drill: Drill, victim: str) -> Injection | None:
    """One bit on its way to the victim is wrong: in a gradient, most likely."""
    return _flip(drill, "flip", victim, TO_TARGET, FLIP_WITHIN_BYTES)


def flip_back(drill: Drill, victim: str) -> Injection | None:
    """One bit that the victim sends back is wrong: in a beat, or in state that it gives."""
    return _flip(drill, "flip_back", victim, TO_CALLER, FLIP_BACK_WITHIN_BYTES)


def _flip(
    drill: Drill, kind: str, victim: str, direction: Direction, within_bytes: int
) -> Injection | None:
    injection = drill.begin(kind, victim)
    proxy = drill.cluster.network.proxies[victim]
    one = proxy.flip_next(direction, after_bytes=drill.chance.randrange(within_bytes))
    if not drill.until(one.done.is_set, TAKES_EFFECT_S):
        proxy.unflip(direction)
        drill.injections.remove(injection)
        return None
    roster = drill.scene.roster
    if victim in roster:
        injection.victims = (victim, roster[roster.index(victim) - 1])
    injection.at_s = injection.over_s = one.at_s
    injection.generation = drill.scene.newest_with(injection.victims, injection.at_s)
    return injection


def slow(drill: Drill, victim: str) -> Injection:
    """The victim's data port is far away, and its line narrow."""
    proxy = drill.cluster.network.proxies[victim]
    injection = drill.begin("slow", victim)
    for direction in BOTH:
        proxy.delay(direction, DELAY_S)
        proxy.narrow(direction, NARROW_BYTES_PER_S)
    drill.heal(injection, SLOW_S, proxy.restore)
    return injection


def _cut(
    drill: Drill,
    kind: str,
    victims: tuple[str, ...],
    ways: list[tuple[str, str]],
    *,
    note: str = "",
) -> Injection | None:
    network = drill.cluster.network
    if not isinstance(network, CuttableNetwork):
        return None
    injection = drill.begin(kind, *victims, note=note)
    for sender, receiver in ways:
        network.cut(sender, receiver)

    def restore() -> None:
        for sender, receiver in ways:
            network.restore(sender, receiver)

    drill.heal(injection, CUT_S, restore)
    return injection
