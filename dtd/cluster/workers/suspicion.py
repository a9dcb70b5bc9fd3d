"""Members that hold a generation up from outside: silent, or lost to their neighbours.

A reset connection is known at once.  This file handles the rest: silence towards the coordinator, a
neighbour's report that a link died, and the probes that clear a link.  Part of the membership
machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from dtd.cluster.records import Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import MEMBERS, GenerationState, WorkerEvent, WorkerState
from dtd.cluster.workers import admission
from dtd.cluster.workers.links import DEAD, ENDED
from dtd.cluster.workers.registration import NEVER_HEARD
from dtd.wire import messages as m

MISSED_BEATS = 2.5
"""Heartbeat intervals of silence that confirm a neighbour's report that a worker is dead."""

ADVANCING_STEPS = 1.5
"""A generation advances if its last commit is at most this many step durations ago."""


def evict_silent(cluster: ClusterState) -> None:
    """Evict workers that are silent for too long, except members of an advancing generation.

    Every step needs every member, so a member of a ring that commits steps is alive, even if the
    coordinator does not hear from it.
    """
    for name, reason in cluster.detector.suspects(cluster.now):
        worker = cluster.workers[name]
        if worker.state in MEMBERS and _advances(cluster):
            worker.reason = f"{reason}, but its generation advances"
            continue
        admission.evict(cluster, worker, reason)
    _evict_ended(cluster)


def _advances(cluster: ClusterState) -> bool:
    job = cluster.job
    running = cluster.run.phase is GenerationState.RUNNING
    if job is None or not running or cluster.run.advanced_at is None:
        return False
    beats = [member.liveness.heartbeat for member in cluster.members()]
    step_s = max((beat.step_s for beat in beats if beat is not None), default=0.0)
    round_steps = job.rounds.end(job.step) - job.step  # nothing advances before the end of a round
    grace_s = max(2 * cluster.heartbeat_interval_s, ADVANCING_STEPS * round_steps * step_s)
    return cluster.now - cluster.run.advanced_at <= grace_s


def accused(cluster: ClusterState, name: str, message: m.Frozen) -> None:
    """A member has lost its neighbour: evict that one if the coordinator cannot reach it either.

    A lifeline is closed by the end of a process, while the kernel closes its control connection
    later; or by a middlebox that forgets idle connections.  So the reports of two members are
    enough, and that of one once the suspect misses heartbeats or its connection ends.
    """
    suspect = cluster.workers.get(message.suspect)
    if suspect is None or suspect.state not in MEMBERS or not message.evidence:
        return
    if suspect.state is WorkerState.DISCONNECTED and suspect.incarnation != NEVER_HEARD:
        admission.lose(cluster, suspect, "its control connection and its ring are both gone")
    elif message.evidence == ENDED:
        cluster.run.said_ended.setdefault(suspect.name, set()).add(name)
        _evict_ended(cluster)
    elif message.evidence in DEAD and _misses_beats(cluster, suspect.name):
        silent_s = cluster.detector.silence_s(suspect.name, cluster.now)
        why = f"silent towards its neighbour, and no heartbeat for {silent_s:.1f} s"
        admission.evict(cluster, suspect, why)


def _evict_ended(cluster: ClusterState) -> None:
    """Evict workers reported dead by two neighbours, or by one if heartbeats are missing too."""
    for name, by in cluster.run.said_ended.items():
        # That generation may be over, and its members forgotten.
        suspect = cluster.workers.get(name)
        if suspect is None or suspect.state not in MEMBERS:
            continue
        if len(by - {name}) > 1 or _misses_beats(cluster, name):
            admission.evict(cluster, suspect, "its process has ended")


def _misses_beats(cluster: ClusterState, name: str) -> bool:
    beat_s = max(cluster.heartbeat_interval_s, cluster.detector.pause_s(name))
    return cluster.detector.silence_s(name, cluster.now) > MISSED_BEATS * beat_s


def probe(cluster: ClusterState) -> None:
    """Have the ends of bad links probe each other."""
    at = cluster.links.next_deadline()
    if at is None or cluster.now < at:
        return
    for by, other in cluster.links.due(cluster.living(), cluster.now):
        to = cluster.workers[other].registration
        message = m.Probe(name=other, host=to.data_host, port=to.data_port, others=to.others)
        cluster.send(by, message)


def probed(cluster: ClusterState, worker: Worker, message: m.Probed) -> None:
    """Handle the result of a probe; a link that works both ways may be used again."""
    good = cluster.links.answered(
        worker.name, message.name, cluster.now, reachable=message.reachable, greeted=message.greeted
    )
    if not good:
        return
    cluster.incident("link_good", f"{worker.name} and {message.name} reach each other again")
    for one in cluster.workers.values():
        if one.state is WorkerState.ISOLATED and not cluster.links.unreachable_from(one.name):
            cluster.move_worker(one, WorkerEvent.LINK_WORKS)
