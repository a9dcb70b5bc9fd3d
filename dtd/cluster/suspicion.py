"""Finds the cause when a generation does not advance, from the fastest evidence first.

A reset connection is known at once.  This file handles the rest: silence towards the coordinator, a
neighbour's report that a link died, and the probes that clear a link of suspicion; for stuck
threads see `membership.standstill`.  Part of the membership machine; changes the cluster, adds
effects.
"""

from __future__ import annotations

from dtd.cluster import admission, dissent, divergence, jobs, joiners
from dtd.cluster.divergence import Divergence
from dtd.cluster.events import SaveJob
from dtd.cluster.links import DEAD, ENDED
from dtd.cluster.reconnection import NEVER_HEARD
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.state_records import Finding
from dtd.cluster.transitions import MEMBERS, GenerationState, JobState, WorkerEvent, WorkerState
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


def left(
    cluster: ClusterState, job: Job, name: str, message: m.Frozen | m.Finished, now: float
) -> None:
    """Keep a member's last report; a member that more than half call different is not awaited."""
    cluster.run.last_words[name] = message
    if not isinstance(message, m.Frozen):
        return
    suspect = cluster.workers.get(message.suspect)
    if suspect is None:
        return
    _keep_away(cluster, job, suspect, message, now)
    if suspect.state not in MEMBERS | {WorkerState.FROZEN}:
        return
    naming = [by for by, one in dissent.claims(cluster) if one.suspect == suspect.name != by]
    if 2 * len(naming) > len(cluster.run.roster):
        admission.expel(cluster, suspect, dissent.MINORITY, now)


def _keep_away(
    cluster: ClusterState, job: Job, suspect: Worker, message: m.Frozen, now: float
) -> None:
    """Set a joiner aside whose state differs from the majority's; it restarts by itself."""
    differs = message.evidence == dissent.DIVERGED
    if differs and suspect.name in joiners.dispensable(cluster, job):
        joiners.keep_away(cluster, job, suspect, message.reason, now)


def settle(cluster: ClusterState, job: Job, now: float) -> None:
    """Restart members whose state differs, by their own reports, once all members have left.

    Without a majority, all members that still hold a state restart.  If that happens repeatedly at
    one point, it is not accidental, and the job fails.
    """
    finding = cluster.trust.finding = dissent.find(cluster, job)
    for name, why in dissent.contradicted(cluster, job):
        cluster.incident("report_contradicted", why, worker=name)
    if finding is not None and not finding.digest:
        hopeless = _note_divergence(cluster, job, finding)
        if hopeless:
            jobs.finish(cluster, JobState.FAILED, hopeless)
            return
    hopeless = _note_transfer(cluster)
    if hopeless and not job.verdict:
        jobs.give_up(cluster, job, hopeless)
    for worker in cluster.available():
        why = dissent.why_distrusted(cluster, worker, cluster.run.last_words.get(worker.name))
        if why:
            admission.expel(cluster, worker, why, now)


def _note_divergence(cluster: ClusterState, job: Job, finding: Finding) -> str:
    """Note that states differ without a majority; returns why that is not accidental, or ""."""
    cluster.trust.distrusted = finding.generation
    seen = [(name, one) for name, one in dissent.claims(cluster) if not one.suspect]
    known = divergence.remembered(job.divergences)
    for entry in [one.differs for _, one in seen] or [""]:
        known = divergence.noted(known, Divergence(finding.generation, finding.step, entry))
    job.divergences = tuple(known)
    cluster.emit(SaveJob(job=job))
    why = divergence.why_hopeless(known)
    said = "".join(f"; {name}: {one.reason}" for name, one in seen[:1])
    return f"{why}{said}" if why else ""


def _note_transfer(cluster: ClusterState) -> str:
    """Note that a copied state differs at once; returns why that is not accidental, or "".

    It is not if the job, which cannot go on without that worker, comes to the same point again.
    """
    run = cluster.run
    seen = [
        one
        for _, one in dissent.claims(cluster)
        if one.suspect and one.suspect not in run.brought and one.diverged_step == run.start_step
    ]
    if 2 * len(seen) <= len(run.brought) or not run.brought:
        return ""
    known = cluster.trust.differed_when_copied
    for one in seen:
        known = divergence.noted(known, Divergence(run.generation, run.start_step, one.differs))
    cluster.trust.differed_when_copied = known
    why = divergence.why_hopeless(known)
    return f"{why}; {seen[0].reason}" if why else ""


def accused(cluster: ClusterState, name: str, message: m.Frozen, now: float) -> None:
    """A member has lost its neighbour: evict that one if the coordinator cannot reach it either.

    A lifeline is closed only by the end of a process.  The suspect's control connection may still
    be open, since the kernel closes it later.  The reports of two members are therefore sufficient.
    A single member may lie, so its report counts only once the suspect misses heartbeats or its
    connection ends.
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
