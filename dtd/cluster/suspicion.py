"""Finds the cause when a generation does not advance, from the fastest evidence first.

A reset connection is known at once.  This file handles the rest: silence towards the coordinator, a
neighbour's report that a link died, and the probes that clear a link of suspicion; for stuck
threads see `membership.standstill`.  Part of the membership machine; changes the cluster, adds
effects.
"""

from __future__ import annotations

from dtd.cluster import admission
from dtd.cluster.links import DEAD, ENDED
from dtd.cluster.reconnection import NEVER_HEARD
from dtd.cluster.records import Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import MEMBERS, GenerationState, WorkerEvent, WorkerState
from dtd.wire import messages as m

MISSED_BEATS = 2.5
"""Heartbeat intervals of silence that confirm a neighbour's report that a worker is dead."""

ADVANCING_STEPS = 1.5
"""A generation advances if its last commit is at most this many step durations ago."""


def evict_silent(cluster: ClusterState, now: float) -> None:
    """Evict workers that are silent for too long, except members of an advancing generation.

    Every step needs every member, so a member of a ring that commits steps is alive, even if the
    coordinator does not hear from it.
    """
    for name, reason in cluster.detector.suspects(now):
        worker = cluster.workers[name]
        if worker.state in MEMBERS and _advances(cluster, now):
            worker.reason = f"{reason}, but its generation advances"
            continue
        admission.evict(cluster, worker, reason, now)
    _evict_ended(cluster, now)


def _advances(cluster: ClusterState, now: float) -> bool:
    job = cluster.job
    running = cluster.run.phase is GenerationState.RUNNING
    if job is None or not running or cluster.run.advanced_at is None:
        return False
    beats = [member.liveness.heartbeat for member in cluster.members()]
    step_s = max((beat.step_s for beat in beats if beat is not None), default=0.0)
    round_steps = job.rounds.end(job.step) - job.step  # nothing advances before the end of a round
    grace_s = max(2 * cluster.heartbeat_interval_s, ADVANCING_STEPS * round_steps * step_s)
    return now - cluster.run.advanced_at <= grace_s


def accused(cluster: ClusterState, name: str, message: m.Frozen, now: float) -> None:
    """A member has lost its neighbour: evict that one if the coordinator cannot reach it either.

    A lifeline is closed by the end of a process, while the kernel closes its control connection
    later; or by a middlebox that forgets idle connections.  So the reports of two members are
    enough, and that of one once the suspect misses heartbeats or its connection ends.
    """
    suspect = cluster.workers.get(message.suspect)
    if suspect is None or suspect.state not in MEMBERS or not message.evidence:
        return
    if suspect.state is WorkerState.DISCONNECTED and suspect.incarnation != NEVER_HEARD:
        admission.lose(cluster, suspect, "its control connection and its ring are both gone", now)
    elif message.evidence == ENDED:
        cluster.run.said_ended.setdefault(suspect.name, set()).add(name)
        _evict_ended(cluster, now)
    elif message.evidence in DEAD and _misses_beats(cluster, suspect.name, now):
        silent_s = cluster.detector.silence_s(suspect.name, now)
        why = f"silent towards its neighbour, and no heartbeat for {silent_s:.1f} s"
        admission.evict(cluster, suspect, why, now)


def _evict_ended(cluster: ClusterState, now: float) -> None:
    """Evict workers reported dead by two neighbours, or by one if heartbeats are missing too."""
    for name, by in cluster.run.said_ended.items():
        suspect = cluster.workers.get(
            name
        )  # that generation may be over, and its members forgotten
        if suspect is None or suspect.state not in MEMBERS:
            continue
        if len(by - {name}) > 1 or _misses_beats(cluster, name, now):
            admission.evict(cluster, suspect, "its process has ended", now)


def _misses_beats(cluster: ClusterState, name: str, now: float) -> bool:
    return cluster.detector.silence_s(name, now) > MISSED_BEATS * cluster.heartbeat_interval_s


def probe(cluster: ClusterState, now: float) -> None:
    """Have the ends of bad links probe each other."""
    for by, other in cluster.isolation.links.due(cluster.living(), now):
        target = cluster.workers[other]
        message = m.Probe(
            name=other, host=target.registration.data_host, port=target.registration.data_port
        )
        cluster.send(by, message)


def probed(cluster: ClusterState, worker: Worker, message: m.Probed, now: float) -> None:
    """Handle the result of a probe; a link that works both ways may be used again."""
    good = cluster.isolation.links.answered(
        worker.name, message.name, now, reachable=message.reachable, greeted=message.greeted
    )
    if not good:
        return
    cluster.incident("link_good", f"{worker.name} and {message.name} reach each other again")
    for one in cluster.workers.values():
        if one.state is WorkerState.ISOLATED and not cluster.isolation.links.unreachable_from(
            one.name
        ):
            cluster.move_worker(one, WorkerEvent.LINK_WORKS)
