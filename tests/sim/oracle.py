"""The judge of a simulation: what must never happen, whatever the faults.

Every process tells it what it does; it compares with what all others did.  It knows more than any
process could, so it never takes part in a decision.  What no committed step may suffer is in
`tests.sim.lineage`; the other rules:

* a generation's number belongs to one roster, whose workers have the same data; it begins when
  somebody has left the one before for certain, with as many workers as the job asks for;
* nobody is told what is not written down, and what is written down is found again;
* what belongs to an older generation is not obeyed; who is ready is let in;
* a ring accepts frames of its own roster only, and sums every rank once and nobody twice;
* a state is what its step says, unless its bits were flipped;
* within a generation nobody is more than one step ahead of anybody, and replicas that differ commit
  nothing more;
* once a newer generation runs, an older one commits only what that one has started from;
* nobody is evicted or restarted, no ring breaks and no link is called bad without a cause in the
  plan that touches one of those concerned;
* a job that is done has done all its steps, equally everywhere, and its result is on a disk;
* a job that was cancelled or has failed leaves on a disk what those remember whom nothing befell;
* what an honest worker says is never called false or out of turn;
* the cores' own invariants hold after every event, and whoever waits says what for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from dtd.core.membership.events import Incident
from dtd.core.membership.machine import Membership
from dtd.core.membership.member import Member
from dtd.core.membership.member_events import Tell
from dtd.core.membership.records import Job
from dtd.core.membership.transitions import (
    ENDED,
    GenerationState,
    JobState,
    MemberState,
    WorkerState,
)
from dtd.core.ring.machine import Ring
from dtd.wire import messages as m
from tests.sim.lineage import Broken, Lineage, Memory, require
from tests.sim.replica import State, expected
from tests.sim.rows import RANK_BITS, Data, entered
from tests.sim.store import SimulatedStore

__all__ = ["Broken", "Oracle", "require"]

Generation = tuple[str, int]
EXPLAIN_EVERY = 16
JOINS_S = 20.0
"""A worker that is ready joins a generation that runs within so long."""
HANGS = ("is stuck", "has been stuck", "does not answer", "training hangs")
ENDING = ("stopping", "saving")
MASK = (1 << RANK_BITS) - 1
COORDINATOR = "coordinator"


class Oracle:
    """What has happened so far, seen from above.

    Args:
        remembered: what living workers have in memory of a job.
        saved: the newest step of a job on any disk.
    """

    def __init__(
        self, *, remembered: Callable[[str], Iterable[Memory]], saved: Callable[[str], int]
    ) -> None:
        self._remembered = remembered
        self._saved = saved
        self.frames = 0
        self.commits = 0
        self.checks = 0
        self.ended_jobs: dict[str, Job] = {}
        self.liars: set[str] = set()  # what these tell the coordinator is not so
        self._ended_for_good: set[str] = set()
        self.lineage = Lineage()
        self._touched: set[str] = set()
        self._flipped = False
        self._task_failed = False
        self._cancels = 0
        self._rosters: dict[Generation, m.Assign] = {}
        self._datasets: dict[Generation, str] = {}
        self._steps: dict[Generation, dict[int, int]] = {}
        self._contents: dict[tuple[str, int, int], set[str]] = {}
        self._running: dict[str, tuple[int, int]] = {}
        self._waiting: dict[tuple[str, int], float] = {}
        self._numbers: set[int] = set()
        self._newest: dict[str, Job] = {}
        self._trains: dict[str, int] = {}
        self._resumed: set[str] = set()
        self._published: set[tuple[str, str, int, int]] = set()

    @property
    def generations(self) -> int:
        """How many were decided."""
        return len(self._numbers)

    # --- the plan --------------------------------------------------------------------------

    def struck(self, names: Collection[str]) -> None:
        """A fault touches these."""
        self._touched.update(names)

    def flipped(self) -> None:
        """Bits of a state have flipped: from now on anybody may be taken for the one who errs."""
        self._flipped = True

    def task_failed(self, name: str) -> None:
        """The job's own code has raised on a worker, and its ring ends."""
        self._task_failed = True
        self.struck([name])

    def cancelled(self) -> None:
        """The operator cancels a job: asked twice, its generation does not end at a boundary."""
        self._cancels += 1

    def caused(self, names: Collection[str], what: str, *details: object) -> None:
        """Something happens to these that must not happen to the innocent."""
        guilty = self._flipped or not self._touched.isdisjoint(names)
        require(guilty, f"{what} without a cause", sorted(names), *details)

    # --- data plane ------------------------------------------------------------------------

    def accepted(self, ring_roster: int, frame_roster: int) -> None:
        """A ring has taken a frame in."""
        self.frames += 1
        require(ring_roster == frame_roster, "a frame of another roster was accepted")

    def summed(self, world_size: int, bucket: list[int]) -> None:
        """A bucket is complete on one rank."""
        whole = (1 << world_size) - 1
        ranks = {one & MASK for one in bucket}
        require(ranks <= {whole}, "a contribution is missing or counted twice")
        require(len(set(bucket)) <= 1, "elements of one bucket have other rows")

    def ring(self, core: Ring) -> None:
        """A ring has handled an event."""
        self.checks += 1
        core.check_invariants()
        if self.checks % EXPLAIN_EVERY == 0:
            require(bool(core.explain()), "a ring does not say what it waits for")

    # --- disks -----------------------------------------------------------------------------

    def published(self, name: str, state: State) -> None:
        """A worker has published a checkpoint."""
        self._published.add((name, state.job, *state.key))

    def written(self, job: Job) -> None:
        """The coordinator writes a job down: who is said to have its newest checkpoint has it."""
        key = (job.checkpoint_generation, job.checkpoint_step)
        for name in set(job.checkpoint_holders) - self.liars:
            known = (name, job.id, *key) in self._published
            require(known, "a checkpoint is said to be where it is not", name, key)

    # --- members ---------------------------------------------------------------------------

    def member(self, name: str, core: Member) -> None:
        """A member has handled an event."""
        self.checks += 1
        core.check_invariants()
        in_ring = core.state in (MemberState.FORMING, MemberState.RUNNING)
        self._trains[name] = core.assign.generation if in_ring and core.assign is not None else 0
        silent = core.state is MemberState.RUNNING
        require(silent != bool(core.explain()), "a member waits and does not say for what", name)

    def obeyed(
        self, name: str, before: m.Assign | None, message: m.Message, effects: Sequence[object]
    ) -> None:
        """A member has heard the coordinator, when `before` was its generation."""
        if before is None or not isinstance(message, m.Assign | m.Freeze):
            return
        newest = before.generation + isinstance(message, m.Assign)
        if message.generation < newest:
            deeds = [one for one in effects if not isinstance(one, Tell)]
            require(not deeds, "what belongs to an older generation is obeyed", name, message)

    def restarted(self, name: str, reason: str) -> None:
        """A worker starts afresh of its own accord."""
        if self.ended_jobs:
            self.struck([name])  # it served a job that is over, and is missed until it is back
        self.caused([name], "a worker restarts", reason)

    def assigned(self, assign: m.Assign, dataset: str) -> None:
        """A worker joins a generation."""
        data = self._datasets.setdefault((assign.job, assign.generation), dataset)
        require(data == dataset, "workers with different data train together", assign)
        known = self._rosters.setdefault((assign.job, assign.generation), assign)
        same = (known.roster_id, known.roster) == (assign.roster_id, assign.roster)
        require(same, "two rosters have one number", assign.generation)
        self.lineage.assigned(assign)

    def adopted(self, assign: m.Assign, state: State) -> None:
        """A worker has the state that its generation starts from."""
        self._honest(state)
        self.lineage.adopted(assign, state)

    def joined(self, assign: m.Assign, incarnation: int) -> None:
        """A rank knows that all ranks have joined with the same state."""
        newest = (assign.generation, assign.held_step)
        self._running[assign.job] = max(self._running.get(assign.job, (0, 0)), newest)
        self.lineage.took_part(assign, incarnation)

    def froze(self, assign: m.Assign, evidence: str, reason: str) -> None:
        """A ring has broken under a rank."""
        names = {member.name for member in assign.roster}
        if self._task_failed or self._cancels > 1:
            return
        self.caused(names, "a ring breaks", f"generation {assign.generation}", evidence, reason)

    def committed(self, assign: m.Assign, state: State) -> None:
        """A rank has committed a step."""
        self.commits += 1
        self._honest(state)
        if self.lineage.is_given_up(state):
            return
        self.lineage.committed(state)
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
        self._not_fenced(assign, state)

    def completed(self, state: State) -> None:
        """A rank commits what it had prepared, because a newer generation starts from it."""
        self.commits += 1
        self._honest(state)
        self.lineage.committed(state)

    def _not_fenced(self, assign: m.Assign, state: State) -> None:
        running, start = self._running[assign.job]
        require(
            assign.generation >= running or state.step <= start,
            "a fenced generation goes on",
            f"generation {assign.generation} commits step {state.step}",
            f"generation {running} runs from {start}",
        )

    def agreed(self, state: State) -> None:
        """A rank has seen that all have the same digest of this state, and goes on."""
        here = self._contents.setdefault((state.job, *state.key), set())
        here.add(state.content)
        require(len(here) == 1, "replicas that differ go on", state)

    def differ(
        self, said: Sequence[bytes], voters: Collection[int] | None, *, majority: bool
    ) -> None:
        """A rank has seen that digests differ, and has been told who has the majority."""
        votes = [one for rank, one in enumerate(said) if voters is None or rank in voters]
        most = max(votes.count(one) for one in votes)
        require(majority == (2 * most > len(votes)), "a majority is none", len(votes), most)

    def _honest(self, state: State) -> None:
        honest = state.corrupt or state.content == expected(state.job, state.step, state.data)
        require(honest, "a state is not what its step says", state)
        ledger = json.loads(state.ledger)
        account = (ledger["epoch"], ledger["committed"])
        require(account == entered(state.data, state.step), "rows are entered wrongly", ledger)
        wrong = ledger["rows_missing"] + ledger["rows_repeated"]
        require(not wrong, "the ledger misses rows, or has some twice", ledger)

    # --- coordinator -----------------------------------------------------------------------

    def told(self, name: str, message: m.Message, store: SimulatedStore) -> None:
        """A message goes out to a worker: what it follows from must be written down."""
        if isinstance(message, m.Assign):
            body = store.written(message.job) or {}
            newest = (body.get("generation"), body.get("roster_id"))
            known = newest == (message.generation, message.roster_id)
            require(known, "a worker is told of a generation that is not written down", newest)
        elif isinstance(message, m.Prepare) and not store.refused(message.job):
            require(store.knows(message.job), "a worker is told of a job not written down")
        elif isinstance(message, m.Release) and message.state in ENDED:
            ended = store.has_ended(message.job) or store.refused(message.job)
            require(ended, "a worker is let go before the end is written down")
        elif isinstance(message, m.Release) and any(one in message.reason for one in HANGS):
            self._is_spare(name, message.job, store)

    def _is_spare(self, name: str, job: str, store: SimulatedStore) -> None:
        """Who is put out because it hangs takes no committed step with it."""
        memories = list(self._remembered(job))
        own = [memory.state.step for memory in memories if memory.name == name]
        others = [memory.state.step for memory in memories if memory.name != name]
        ends = (store.written(job) or {}).get("state") in ENDING
        if own and not ends:
            kept = max([*others, self._saved(job), 0])
            require(kept >= own[0], "the last one that remembers is put out", name, own[0], kept)

    def answered(self, job: str, store: SimulatedStore) -> None:
        """The operator hears that a job is cancelled."""
        state = (store.written(job) or {}).get("state")
        stands = state in ENDING or state in ENDED or store.refused(job)
        require(stands, "a cancel is answered before it is written down", job, state)

    def membership(self, core: Membership, now: float) -> None:
        """The coordinator has handled an event."""
        self.checks += 1
        core.check_invariants()
        books = core.books
        if books.job is not None and books.run.phase is GenerationState.FORMING:
            job = books.job
            start = (job.start_generation, job.start_step)
            self._numbers.add(job.generation)
            self._one_after_the_other(job)
            least = int(job.spec["elastic"]["min_workers"])
            require(len(books.run.roster) >= least, "a generation has fewer workers than asked for")
            self.lineage.decided(
                job.id,
                job.generation,
                start,
                members=job.roster,
                living=self._remembered(job.id),
            )
        waits = books.job is not None and books.run.phase is not GenerationState.RUNNING
        require(
            bool(core.explain()) or not waits,
            "the job waits and the coordinator does not say for what",
            books.run.phase,
        )
        if self.checks % EXPLAIN_EVERY == 0:
            self._joiners(core, now)
        deadline = core.next_deadline(now)
        require(deadline is None or deadline > now, "a deadline that has passed is asked for again")
        watched = books.job is None or not books.members() or deadline is not None
        require(watched, "a generation has members and nobody looks at the clock")

    def _one_after_the_other(self, job: Job) -> None:
        """Somebody has left the last generation for certain, or the operator says so."""
        known = self._newest.get(job.id)
        if known is not None and known.generation == job.generation:
            return
        self._newest[job.id] = replace(job)
        if known is None or job.id in self._resumed:
            self._resumed.discard(job.id)
            return
        trains = [name for name in known.roster if self._trains.get(name) == known.generation]
        left = len(trains) < len(known.roster) or not trains
        require(left, "a generation begins and nobody has left the last one", known.roster)

    def resumed(self, job: str) -> None:
        """The operator says that nobody trains any more."""
        self._resumed.add(job)

    def died(self, name: str) -> None:
        """A process is gone."""
        self._trains.pop(name, None)

    def _joiners(self, core: Membership, now: float) -> None:
        """Who is ready joins what runs, if there is room and its links work."""
        books, waiting = core.books, {}
        job = books.job
        runs = books.run.phase is GenerationState.RUNNING
        if (
            runs
            and job is not None
            and job.state is JobState.RUNNING
            and not books.isolation.links.bad
        ):
            most = int(job.spec["elastic"]["max_workers"])
            finishing = any(one.state is WorkerState.FINISHED for one in books.members())
            if len(books.run.roster) < most and not finishing:
                ready = (one for one in books.workers.values() if one.state is WorkerState.READY)
                waiting = {
                    (one.name, books.run.generation): now for one in ready if not one.leaving
                }
        self._waiting = {one: self._waiting.get(one, now) for one in waiting}
        for one, since in self._waiting.items():
            require(now - since < JOINS_S, "a worker that is ready is not let in", one)

    def incident(self, incident: Incident) -> None:
        """The coordinator tells of something."""
        judged = incident.kind in ("report_dropped", "report_false", "report_contradicted")
        if judged and incident.job not in self.ended_jobs:  # here one may run twice under its id
            require(
                incident.worker in self.liars, "an honest word does not count", incident.message
            )
        if incident.kind == "worker_lost":
            self.caused([incident.worker], "a worker is evicted", incident.message)
        elif incident.kind in ("worker_barred", "link_bad"):
            concerned = incident.message.replace(",", " ").replace(";", " ").split()
            self.caused(concerned, "a link is called bad", incident.message)

    def ended(self, job: Job, *, written: bool) -> None:
        """A job has reached its last state; one that could not be `written` down ends again."""
        require(job.id not in self._ended_for_good, "a job ends twice", job.id)
        self.ended_jobs[job.id] = job
        if written:
            self._ended_for_good.add(job.id)
        lost = self.lineage.lost(job.id)
        require(job.steps_lost <= lost, "steps are called lost that are not", job.steps_lost, lost)
        if job.state is JobState.DONE:
            self._done(job)
        elif COORDINATOR not in self._touched:
            self._kept(job)

    def _kept(self, job: Job) -> None:
        saved = self._saved(job.id)
        for memory in self._remembered(job.id):
            require(
                memory.name in self._touched or memory.state.step <= max(saved, 0),
                "a job ends and discards steps that somebody holds",
                f"{memory.name} holds step {memory.state.step}, saved is {saved}",
            )

    def _done(self, job: Job) -> None:
        require(self._saved(job.id) == job.step, "no disk has the result", job.id)
        require(job.step == job.total_steps, "a job is done before its last step", job.step)
        digests = set(job.result["replica_digests"].values())
        model = job.spec["model"]
        data = Data(length=int(model["rows"]), batch=int(model["batch"]))
        require(len(digests) == 1, "the replicas of a finished job differ", job.result)
        require(
            self._flipped or digests == {expected(job.id, job.step, data)},
            "the replicas of a finished job differ from an honest one",
            job.result,
        )
