"""Members that have not said what others of their generation have: that they run, or have left it.

A member may send heartbeats and withhold such a word, by a fault or as a lie.  Where what others
report proves what it does not say, nobody waits: steps that two members have committed need all of
them.  Otherwise it is named after a while, with the way to give it up.  It is put out only after
ten times the longest limit of its job, since the member that has spoken may be the one that lies,
and the other may be loading a large state.  One that stays where others have left at a step
boundary is told to leave at once.

Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from typing import Final

from dtd.cluster import admission, ending, forming, standstill
from dtd.cluster.records import Job, Worker
from dtd.cluster.roster import natural_key
from dtd.cluster.state import ClusterState
from dtd.cluster.state_records import Lag
from dtd.cluster.transitions import GenerationState, WorkerState

TELL_AFTER_S: Final = 10.0
"""Seconds that a word is missing before status names the member and the remedy."""

SURE: Final = 2
"""So many members must report a step before it proves anything about another member."""

_TRAINING: Final = frozenset({WorkerState.FORMING, WorkerState.RUNNING, WorkerState.DISCONNECTED})
_LEFT: Final = frozenset({WorkerState.FROZEN, WorkerState.FINISHED})
_WORDS: Final = {
    GenerationState.FORMING: ("that it runs", frozenset({WorkerState.RUNNING, *_LEFT})),
    GenerationState.RUNNING: ("that it has finished", frozenset({WorkerState.FINISHED})),
    GenerationState.ENDING: ("that it has left", _LEFT),
}


def look(cluster: ClusterState, job: Job, now: float) -> None:
    """Note who has not spoken yet, and stop waiting for one that holds the others up."""
    if cluster.run.phase is GenerationState.FORMING:
        _infer_that_all_run(cluster, job, now)
    word, said, late = _find(cluster)
    lag = cluster.run.lag
    if not late:
        cluster.run.lag = None
        return
    if lag is None or lag.word != word:
        lag = cluster.run.lag = Lag(word, now)
    if not said:
        return
    late_s = now - lag.since
    if cluster.run.phase is GenerationState.ENDING and cluster.ending.freeze_by is None:
        _hurry(cluster, late, late_s, now)
    if cluster.run.phase is not GenerationState.RUNNING and late_s > most_s(job):
        for worker in late:
            why = f"it has not said {word} for {late_s:.0f} s, as others have"
            admission.evict(cluster, worker, why, now)


def most_s(job: Job) -> float:
    """Return the most seconds that a member's word may be missing in any case."""
    return standstill.MOST_LIMITS * job.terms.longest_limit_s


def behind(cluster: ClusterState) -> tuple[str, list[str], list[str]]:
    """(what, who has said it, who has not); nobody unless it has been missing for a while."""
    lag = cluster.run.lag
    if lag is None or cluster.now - lag.since < TELL_AFTER_S:
        return "", [], []
    word, said, late = _find(cluster)
    return word, [one.name for one in said], [one.name for one in late]


def explain(cluster: ClusterState) -> str:
    """Return the members whose word has been missing for long, and the remedy; empty if none."""
    word, said, late = behind(cluster)
    if not late:
        return ""
    names, remedy = ", ".join(late), f"`dtdctl kill-worker {late[0]}` gives it up"
    if not said:
        return f"; {names} has not come to the end of its step: {remedy}"
    have = "have" if len(said) > 1 else "has"
    return f"; {', '.join(said)} {have} said {word}, and {names} not: {remedy}"


def _find(cluster: ClusterState) -> tuple[str, list[Worker], list[Worker]]:
    """(what, who has said it, who has not); nobody is behind unless somebody has said it.

    A generation that ends may wait for the step of one that is alone in it.
    """
    if cluster.run.phase not in _WORDS:
        return "", [], []
    word, states = _WORDS[cluster.run.phase]
    members = cluster.members()
    said = [one for one in members if one.state in states]
    if not said and cluster.run.phase is not GenerationState.ENDING:
        return "", [], []
    late = [one for one in members if one.state in _TRAINING and one.state not in states]
    late.sort(key=lambda one: natural_key(one.name))
    return (word, said, late) if said and late else ("", [], late)


def _infer_that_all_run(cluster: ClusterState, job: Job, now: float) -> None:
    """Each step needs every member, so all of them run once two have committed one."""
    reported = cluster.run.reported_steps.values()
    if sum(step > cluster.run.start_step for step in reported) < SURE:
        return
    for worker in cluster.members():
        if worker.state is WorkerState.FORMING:
            forming.member_running(cluster, job, worker, now)


def _hurry(cluster: ClusterState, late: list[Worker], late_s: float, now: float) -> None:
    """Tell those that stay where others have left at a step boundary to leave at once."""
    gets_on = any(standstill.gets_on(one.liveness.heartbeat) for one in late)
    if gets_on or late_s <= max(map(ending.freeze_patience_s, late)):
        return
    names = ", ".join(one.name for one in late)
    ending.end_now(cluster, f"{names} did not leave at the step boundary as others did", now)
