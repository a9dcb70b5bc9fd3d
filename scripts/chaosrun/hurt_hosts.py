"""Faults of the coordinator, of disks, and of everything at once."""

from __future__ import annotations

import time
from typing import Final

from scripts.chaosrun.disks import SmallDisks, rot
from scripts.chaosrun.drill import Drill
from scripts.chaosrun.injection import Injection
from scripts.local_cluster import COORDINATOR

AWAY_S: Final = (8.0, 15.0)
DISK_S: Final = (3.0, 8.0)


def coordinator(drill: Drill, _victim: str) -> Injection:
    """Kill -9 of the coordinator; it is started again at once."""
    return drill.strike("coordinator", COORDINATOR)


def coordinator_away(drill: Drill, _victim: str) -> Injection:
    """Kill -9 of the coordinator, which stays away for a while."""
    injection = drill.begin("coordinator_away", COORDINATOR)
    away_s = drill.away_s or drill.chance.uniform(*AWAY_S)
    injection.over_s = injection.at_s + away_s
    injection.note = f"{away_s:.0f} s"
    drill.cluster.stay_down(COORDINATOR, injection.over_s)
    drill.kill(COORDINATOR, injection)
    return injection


def orphan(drill: Drill, victim: str) -> Injection:
    """A worker is killed while the coordinator is away: nobody can form a ring without it."""
    injection = coordinator_away(drill, victim)
    injection.kind = "orphan"
    injection.victims = (COORDINATOR, victim)
    drill.kill(victim, injection)
    return injection


def everything(drill: Drill, _victim: str) -> Injection:
    """SIGKILL of every daemon at once."""
    cluster = drill.cluster
    return drill.strike("all", *sorted(name for name in cluster.names if cluster.runs(name)))


def disk(drill: Drill, _victim: str) -> Injection | None:
    """The checkpoint writer's disk is full or read-only for a while."""
    disks = drill.cluster.disks
    if not isinstance(disks, SmallDisks) or not drill.scene.roster:
        return None
    victim = drill.scene.roster[0]
    if any(_is_bad_now(one, victim) for one in drill.injections):
        return None  # a full disk cannot be made read-only and back without losing track
    directory = drill.cluster.state_dir(victim)
    injection = drill.begin("disk", victim)
    if drill.chance.random() < 0.5:
        injection.note = "full"
        disks.fill(directory)
        drill.heal(injection, DISK_S, lambda: disks.empty(directory))
    else:
        injection.note = "read-only"
        disks.set_read_only(directory, read_only=True)
        undo = lambda: disks.set_read_only(directory, read_only=False)  # noqa: E731
        drill.heal(injection, DISK_S, undo)
    return injection


def _is_bad_now(injection: Injection, victim: str) -> bool:
    return (
        injection.kind == "disk" and victim in injection.victims and injection.over_s > time.time()
    )


def rotten(drill: Drill, victim: str) -> Injection | None:
    """A byte of the newest checkpoint of some worker is wrong, or a file of it is gone."""
    cluster = drill.cluster
    for name in [victim, *sorted(cluster.names - {victim, COORDINATOR})]:
        if any(_is_bad_now(one, name) for one in drill.injections):
            continue  # it may be read-only
        directory = cluster.state_dir(name)
        note = cluster.disks.inside(lambda where=directory: rot(where, drill.chance))  # type: ignore[misc]
        if note:
            injection = drill.begin("rot", name, note=note)
            injection.over_s = injection.back_s = injection.at_s
            return injection
    return None
