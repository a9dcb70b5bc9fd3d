"""The judge of a simulation: what must never happen, whatever the faults.

Every process tells it what it does; it compares with what all others did.  It knows more than any
process could, so it never takes part in a decision.  The rules:

* a generation's number belongs to one roster, whose workers have the same data;
* a ring accepts frames of its own roster only, and sums every rank once and nobody twice;
* a state is what its step says: no step is skipped, repeated or mixed with another; one generation
  and step have one lineage;
* within a generation nobody is more than one step ahead of anybody;
* once a newer generation runs, an older one commits at most the step it had prepared;
* a generation starts from the newest state that any of its members remembers, and at most one
  step behind anybody who lives;
* a job that is done has done all its steps, equally everywhere, and its result is on a disk;
* the cores' own invariants hold after every event, and whoever waits says what for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtd.core.books import GenerationState
from dtd.core.member import Member, MemberState
from dtd.core.membership import Membership
from dtd.core.membership_events import Job, JobState
from dtd.core.ring import Ring
from dtd.sim.replica import State, expected
from dtd.wire import messages as m

Generation = tuple[str, int]
EXPLAIN_EVERY = 16


class Broken(AssertionError):
    """A rule was broken; the message says which, and who did it."""


def require(holds: bool, rule: str, *details: Any) -> None:
    """Raise when a rule does not hold."""
    if not holds:
        raise Broken(": ".join([rule, *map(str, details)]))


class Oracle:
    """What has happened so far, seen from above.

    Args:
        remembered: the steps that living workers have in memory, by name, for a job.
        saved: the newest step of a job on any disk.
    """

    def __init__(
        self, *, remembered: Callable[[str], dict[str, int]], saved: Callable[[str], int]
    ) -> None:
        self._remembered = remembered
        self._saved = saved
        self.frames = 0
        self.commits = 0
        self.checks = 0
        self.ended_jobs: dict[str, Job] = {}
        self._rosters: dict[Generation, m.Assign] = {}
        self._datasets: dict[Generation, str] = {}
        self._lineages: dict[tuple[str, int, int], str] = {}
        self._steps: dict[Generation, dict[int, int]] = {}
        self._running: dict[str, tuple[int, int]] = {}

    # --- data plane ------------------------------------------------------------------------

    def accepted(self, ring_roster: int, frame_roster: int) -> None:
        """A ring has taken a frame in."""
        self.frames += 1
        require(ring_roster == frame_roster, "a frame of another roster was accepted")

    def summed(self, world_size: int, bucket: list[int]) -> None:
        """A bucket is complete on one rank."""
        whole = (1 << world_size) - 1
        require(all(one == whole for one in bucket), "a contribution is missing or counted twice")

    def ring(self, core: Ring) -> None:
        """A ring has handled an event."""
        self.checks += 1
        core.check_invariants()
        if self.checks % EXPLAIN_EVERY == 0:
            require(bool(core.explain()), "a ring does not say what it waits for")

    # --- members ---------------------------------------------------------------------------

    def member(self, name: str, core: Member) -> None:
        """A member has handled an event."""
        self.checks += 1
        core.check_invariants()
        silent = core.state is MemberState.RUNNING
        require(silent != bool(core.explain()), "a member waits and does not say for what", name)

    def assigned(self, assign: m.Assign, own: tuple[int, int], dataset: str) -> None:
        """A worker joins a generation; `own` is the newest state it really has."""
        data = self._datasets.setdefault((assign.job, assign.generation), dataset)
        require(data == dataset, "workers with different data train together", assign)
        known = self._rosters.setdefault((assign.job, assign.generation), assign)
        same = (known.roster_id, known.roster) == (assign.roster_id, assign.roster)
        require(same, "two rosters have one number", assign.generation)
        start = (assign.held_generation, assign.held_step)
        require(
            own <= start,
            "a generation starts from an old state although a member has a newer one",
            f"generation {assign.generation} starts from {start}",
            f"{assign.roster[assign.rank].name} has {own}",
        )
        if self._running.get(assign.job, (0, 0))[0] < assign.generation:
            living = self._remembered(assign.job)
            require(
                max(living.values(), default=0) <= assign.held_step + 1,
                "steps are lost that a living worker remembers",
                f"generation {assign.generation} starts from {start}",
                living,
            )

    def adopted(self, assign: m.Assign, state: State) -> None:
        """A worker has the state that its generation starts from."""
        require(
            state.key == (assign.held_generation, assign.held_step),
            "a worker starts from another state than it was told",
            assign,
            state,
        )
        self._honest(state)

    def joined(self, assign: m.Assign) -> None:
        """A rank knows that all ranks have joined with the same state."""
        newest = (assign.generation, assign.held_step)
        self._running[assign.job] = max(self._running.get(assign.job, (0, 0)), newest)

    def committed(self, assign: m.Assign, state: State) -> None:
        """A rank has committed a step."""
        self.commits += 1
        self._honest(state)
        start = assign.held_step
        steps = self._steps.setdefault((assign.job, assign.generation), {})
        steps[assign.rank] = state.step
        others = [steps.get(rank, start) for rank in range(len(assign.roster))]
        require(
            max(others) - min(others) <= 1,
            "a rank is two steps ahead of another",
            f"generation {assign.generation}",
            others,
        )
        running, running_start = self._running[assign.job]
        require(
            assign.generation >= running or state.step <= running_start + 1,
            "a fenced generation goes on",
            f"generation {assign.generation} commits step {state.step}",
            f"generation {running} runs from {running_start}",
        )

    def _honest(self, state: State) -> None:
        require(
            state.content == expected(state.job, state.step),
            "a state is not what its step says",
            state,
        )
        known = self._lineages.setdefault((state.job, *state.key), state.lineage)
        require(known == state.lineage, "two states have one generation and step", state)

    # --- coordinator -----------------------------------------------------------------------

    def membership(self, core: Membership, now: float) -> None:
        """The coordinator has handled an event."""
        self.checks += 1
        core.check_invariants()
        books = core.books
        waits = books.job is not None and books.generation_state is not GenerationState.RUNNING
        require(
            bool(core.explain()) or not waits,
            "the job waits and the coordinator does not say for what",
            books.generation_state,
        )
        deadline = core.next_deadline(now)
        require(deadline is None or deadline > now, "a deadline that has passed is asked for again")
        watched = books.job is None or not books.members() or deadline is not None
        require(watched, "a generation has members and nobody looks at the clock")

    def ended(self, job: Job) -> None:
        """A job has reached its last state."""
        require(job.id not in self.ended_jobs, "a job ends twice", job.id)
        self.ended_jobs[job.id] = job
        if job.state is JobState.DONE:
            require(self._saved(job.id) == job.step, "no disk has the result", job.id)
            digests = set(job.result["replica_digests"].values())
            require(job.step == job.total_steps, "a job is done before its last step", job.step)
            require(
                digests == {expected(job.id, job.step)},
                "the replicas of a finished job differ from an honest one",
                job.result,
            )
