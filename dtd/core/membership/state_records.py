"""The coordinator's state in small records: the run of the job, its setbacks, deadlines, trust.

No decisions here; `membership.state` holds them together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dtd.core.membership.records import Recovery, SetAside, Worker
from dtd.core.membership.transitions import GenerationState
from dtd.core.observe.links import Links
from dtd.wire import messages as m


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorIdentity:
    """What this coordinator says of itself.

    Attributes:
        version: dtd's; workers of another release are refused, unless it is empty.
        host: its name, for those who read why.
        store_id, epoch: of its store; see REGISTERED in protocol.md.
    """

    version: str = ""
    host: str = ""
    store_id: str = ""
    epoch: int = 0


@dataclass(slots=True, kw_only=True)
class Decision:
    """A generation that is decided, and that nobody hears of before it is written down.

    Attributes:
        members: in rank order.
        holds: for each, whether it has the state that the generation starts from.
        lost: committed steps that it goes back.
        redone: a step under way is done again.
        before: what the job's record said of its newest generation before.
        failure: why it could not be written down; empty while it is being tried.
        again_at: when it is tried again.
    """

    members: list[Worker]
    holds: list[bool]
    lost: int
    redone: bool
    before: dict[str, Any]
    failure: str = ""
    again_at: float | None = None


class Finding(NamedTuple):
    """States of a generation differ after `step` steps; `digest` counts, none if it is empty."""

    generation: int
    step: int
    digest: str


@dataclass(slots=True, kw_only=True)
class Run:
    """The generation that the job runs in, or the one before while there is none.

    Attributes:
        generation: its number, the newest that was given.
        highest_seen: the highest number that a worker has shown it was given; new ones exceed it.
        phase: where it stands.
        decision: the next one, while it is being written down.
        roster: names in rank order; empty when no generation is forming, running or ending.
        roster_id: of that roster.
        start_step: committed step from which it runs.
        reported_steps: the newest step that each member says it has committed in it.
        has_run: it has run, or was running when this coordinator started.
        advanced_at: when its committed step was last seen to advance.
        lost_member: a worker has died or hung in it, since it last advanced.
        brought: members that brought the state which it starts from; empty if unknown.
        last_words: what members said when they left it, by name.
        said_ended: by member, the names of those who say that its process has ended.
    """

    generation: int = 0
    highest_seen: int = 0
    phase: GenerationState = GenerationState.NONE
    decision: Decision | None = None
    roster: list[str] = field(default_factory=list)
    roster_id: int = 0
    start_step: int = 0
    reported_steps: dict[str, int] = field(default_factory=dict)
    has_run: bool = False
    advanced_at: float | None = None
    lost_member: bool = False
    brought: frozenset[str] = frozenset()
    last_words: dict[str, m.Frozen | m.Finished] = field(default_factory=dict)
    said_ended: dict[str, set[str]] = field(default_factory=dict)

    def begin(self, brought: Iterable[str] = ()) -> None:
        """Nobody has said anything in the generation that begins, or is taken up."""
        self.reported_steps.clear()
        self.last_words.clear()
        self.said_ended.clear()
        self.brought = frozenset(brought)

    def reported_step(self, name: str) -> int:
        """The newest step that a member says it has committed."""
        return self.reported_steps.get(name, self.start_step)


@dataclass(slots=True, kw_only=True)
class Setbacks:
    """What keeps the job from getting on, generation after generation.

    Attributes:
        no_progress_generations: in a row, that committed no step.
        brief_generations: in a row, that broke after hardly a step.
        crashed_workers: that died or hung in generations that ran, since the job got beyond
            `crash_step`.
        last_ends: how their processes have ended, as far as their successors know.
        crash_generations: in a row, that ran, lost such a worker and did not get further.
        crash_step: committed steps of the job when that happened, at most.
    """

    no_progress_generations: int = 0
    brief_generations: int = 0
    crashed_workers: list[str] = field(default_factory=list)
    last_ends: dict[str, str] = field(default_factory=dict)
    crash_generations: int = 0
    crash_step: int = 0


@dataclass(slots=True, kw_only=True)
class WaitingTimes:
    """What the next generation waits for.

    Attributes:
        settle_by: when the first generation may form without waiting for more workers.
        must_settle: the job has not formed a generation since it was activated.
        newer_since: when it was first seen that an absent worker may hold a newer state than those
            that are present.
        resumed: the operator does not want to wait for those.
        form_at: no generation is formed before, after several that came to nothing.
    """

    settle_by: float | None = None
    must_settle: bool = True
    newer_since: float | None = None
    resumed: bool = False
    form_at: float | None = None


@dataclass(slots=True, kw_only=True)
class EndingTimes:
    """A generation that ends, and what the job recovers from.

    Attributes:
        freeze_by: when members that have not reported FROZEN are given up.
        stop_by: when a generation of a job that is to end is broken off.
        recovery: what the job is recovering from, until it commits again.
    """

    freeze_by: float | None = None
    stop_by: float | None = None
    recovery: Recovery | None = None


@dataclass(slots=True, kw_only=True)
class Isolation:
    """Workers, and links between them, on which the job does not build for a while.

    Attributes:
        set_aside: by name, workers on which the job's code has failed (`membership.isolation`).
        verdict_by: when the job fails if only such workers are present.
        links: pairs of workers that cannot reach each other.
    """

    set_aside: dict[str, SetAside] = field(default_factory=dict)
    verdict_by: float | None = None
    links: Links = field(default_factory=Links)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Messages of a worker that were dropped since an operator was told, and when that was."""

    dropped: int = 0
    told_at: float | None = None


@dataclass(slots=True, kw_only=True)
class Trust:
    """What workers say, weighed against what others say.

    Attributes:
        vouched: members of the job's newest known generation who have come and had not left it.
        distrusted: newest generation in which states differed and none had a majority.
        finding: what came of comparing the digests in the last words of the newest generation.
        contradicted: processes whose memory of a generation the others contradict, and whose word
            of it does not count any more.
        agreed: by state, the digest that each rank says all had agreed on.
        claims: saved states of each worker that nobody has confirmed yet.
        tallies: what was dropped of workers' messages, by name (`dtd.core.trust.hearing`).
    """

    vouched: set[str] = field(default_factory=set)
    distrusted: int = 0
    finding: Finding | None = None
    contradicted: set[tuple[str, int]] = field(default_factory=set)
    agreed: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict)
    claims: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
