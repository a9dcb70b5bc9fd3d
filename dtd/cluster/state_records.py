"""The small records of the coordinator's state: current generation, setbacks, deadlines, trust.

`membership.state` combines them.  No decisions here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dtd.cluster.links import Links
from dtd.cluster.records import Divergence, Recovery, SetAside, Worker
from dtd.cluster.transitions import GenerationState
from dtd.wire import messages as m


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorIdentity:
    """The identity that this coordinator announces.

    Attributes:
        version: its dtd release; workers of another release are refused, unless it is empty.
        host: name of its host, for messages.
        store_id: id of its store, which a restored backup has as well.
    """

    version: str = ""
    host: str = ""
    store_id: str = ""


@dataclass(slots=True, kw_only=True)
class Decision:
    """A generation that is decided, and not announced before it is stored.

    Attributes:
        members: workers in rank order.
        holds: for each member, whether it has the generation's starting state.
        lost: number of committed steps that are lost.
        redone: whether a step that had begun is repeated.
        incomplete: which shards of a newer state are missing; empty if there is no such state.
        before: previous values of the fields of the job's record that the decision changed.
        failure: why it could not be stored; empty while an attempt is in progress.
        again_at: when storing is attempted again.
    """

    members: list[Worker]
    holds: list[bool]
    lost: int
    redone: bool
    before: dict[str, Any]
    incomplete: str = ""
    failure: str = ""
    again_at: float | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """The generation in which the job runs, or the previous one while there is none.

    Attributes:
        generation: its number, the newest that was assigned.
        highest: the highest number known, of any job or named by a worker; new ones exceed it.
        phase: its state.
        decision: the next generation, while it is being stored.
        roster: names in rank order; empty when no generation is forming, running or ending.
        roster_id: id of that roster.
        start_step: number of committed steps of its starting state.
        has_run: whether it has run, or was running when this coordinator started.
        advanced_at: when its committed step was last seen to advance.
        lost_member: whether a worker has died or hung in it since it last advanced.
        brought: members that brought its starting state; empty if unknown.
        joined: members that join others which have trained without them; empty if unknown.
        differed: the reports of members that have seen its states differ.
        said_ended: for each member, the names of those that report that its process has ended.
    """

    generation: int = 0
    highest: int = 0
    phase: GenerationState = GenerationState.NONE
    decision: Decision | None = None
    roster: list[str] = field(default_factory=list)
    roster_id: int = 0
    start_step: int = 0
    has_run: bool = False
    advanced_at: float | None = None
    lost_member: bool = False
    brought: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    differed: list[m.Frozen] = field(default_factory=list)
    said_ended: dict[str, set[str]] = field(default_factory=dict)

    def begin(self, brought: Iterable[str] = (), joined: Iterable[str] = ()) -> None:
        """Discard the reports of the previous generation when one begins or is adopted."""
        self.brought, self.joined = frozenset(brought), frozenset(joined)
        self.differed.clear()
        self.said_ended.clear()


@dataclass(slots=True, kw_only=True)
class Setbacks:
    """Repeated failures that prevent the job's progress, counted over generations.

    Attributes:
        no_progress_generations: consecutive generations that committed no step.
        brief_generations: consecutive generations that broke before `state.FRUITFUL_STEPS` steps.
        crashed_workers: workers that died or hung in generations that ran, since the job last got
            beyond `crash_step`.
        last_ends: how their processes ended, as far as the processes that replaced them know.
        crash_generations: consecutive generations that ran, lost such a worker and did not get
            beyond `crash_step`.
        crash_step: the highest number of committed steps at which such a worker was lost.
        dissenters: processes (name, incarnation) whose memory differs from the majority's.
        copies_differed: when a member differed from those from which it had just copied the state.
    """

    no_progress_generations: int = 0
    brief_generations: int = 0
    crashed_workers: list[str] = field(default_factory=list)
    last_ends: dict[str, str] = field(default_factory=dict)
    crash_generations: int = 0
    crash_step: int = 0
    dissenters: set[tuple[str, int]] = field(default_factory=set)
    copies_differed: list[Divergence] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class WaitingTimes:
    """Deadlines and conditions of the next generation.

    Attributes:
        settle_by: when the first generation may form without waiting for more workers.
        must_settle: whether the job has formed no generation since it was activated.
        newer_since: since when an absent worker may hold a newer state than any worker present.
        resumed: whether the operator has decided not to wait for such workers.
        form_at: the earliest time for the next generation, after several that made no progress.
        enough_since: since when enough workers are ready, while others warm up.
    """

    settle_by: float | None = None
    must_settle: bool = True
    newer_since: float | None = None
    resumed: bool = False
    form_at: float | None = None
    enough_since: float | None = None

    def slept(self, gap_s: float) -> None:
        """Postpone deadlines: arriving workers could not be seen for `gap_s`."""
        if self.settle_by is not None:
            self.settle_by += gap_s
        if self.newer_since is not None:
            self.newer_since += gap_s
        if self.enough_since is not None:
            self.enough_since += gap_s


@dataclass(slots=True, kw_only=True)
class EndingTimes:
    """Deadlines of a generation that is ending, and the loss that the job recovers from.

    Attributes:
        freeze_by: when members that have not reported FROZEN are considered lost.
        stop_by: when the generation of a job that is to end is aborted.
        recovery: the loss that the job recovers from, until it commits again.
    """

    freeze_by: float | None = None
    stop_by: float | None = None
    recovery: Recovery | None = None

    def slept(self, gap_s: float) -> None:
        """Postpone deadlines: leaving members could not be seen for `gap_s`."""
        if self.freeze_by is not None:
            self.freeze_by += gap_s
        if self.stop_by is not None:
            self.stop_by += gap_s


@dataclass(slots=True, kw_only=True)
class Isolation:
    """Workers, and links between them, that the job does not use for a while.

    Attributes:
        set_aside: by name, workers on which the job's code has failed (`membership.isolation`).
        verdict_by: when the job fails if only such workers are present.
        links: pairs of workers that cannot reach each other.
    """

    set_aside: dict[str, SetAside] = field(default_factory=dict)
    verdict_by: float | None = None
    links: Links = field(default_factory=Links)
