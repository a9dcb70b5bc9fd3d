"""The oracle of a simulation: rules that must hold under all faults.

Every process reports its actions to the oracle, which compares them with those of all others.  The
oracle knows more than any process can, so it never takes part in a decision.  The rules for
committed steps are in `tests.sim.lineage`; the other rules are:

* a generation number belongs to one roster, whose workers have the same data; the generation begins
  only after a member has certainly left the previous one, and with as many workers as the job
  requires;
* no worker is told a decision that is not stored, and whatever is stored is found again;
* commands for an older generation are not obeyed; a worker that is ready is admitted;
* a ring accepts only frames of its own roster, and each sum contains every rank exactly once;
* a state has the content that belongs to its step, unless its bits were flipped;
* within a generation no rank is more than one step, or one round of steps, ahead of another;
* replicas that differ commit nothing more (`tests.sim.agreements`);
* the shards of a state are all there, and of one step (`tests.sim.shard_rules`);
* a rank's residual goes forward and back with its steps (`tests.sim.residuals`);
* once a newer generation runs, an older one commits only the state from which the newer one
  started;
* no worker is evicted or restarted, no ring breaks and no link is reported as bad without a cause
  (`tests.sim.causes`);
* what a job has computed is on a disk when its workers are let go (`tests.sim.keeping`);
* a job that is to start from another one's checkpoint does not begin at step 0 unless the operator
  says so;
* workers move between jobs only as they should (`tests.sim.allotments`);
* the coordinator relies on nothing that is untrue (`tests.sim.beliefs`);
* the cores' own invariants hold after every event, and a job or worker that waits states the
  reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from dtd.cluster import machine
from dtd.cluster.events import Incident
from dtd.cluster.member import Member, Tell
from dtd.cluster.records import Job
from dtd.cluster.several_jobs.pools import SURPLUS
from dtd.cluster.state import ClusterState, most_workers
from dtd.cluster.transitions import ENDED, GenerationState, JobState, MemberState, WorkerState
from dtd.cluster.workers.admission import MOVES
from dtd.engine.control_word import Flags
from dtd.exchange.schedule.machine import Machine
from dtd.wire import messages as m
from tests.sim.agreements import Agreements
from tests.sim.allotments import Allotments
from tests.sim.beliefs import Beliefs
from tests.sim.causes import COORDINATOR, Causes
from tests.sim.keeping import Keeping
from tests.sim.lineage import Broken, Lineage, Memory, require
from tests.sim.replica import State, expected
from tests.sim.residuals import Residuals
from tests.sim.rows import RANK_BITS, round_begin
from tests.sim.shard_rules import ShardRules
from tests.sim.store import SimulatedStore

__all__ = ["Broken", "Oracle", "require"]

Generation = tuple[str, int]
EXPLAIN_EVERY = 16
JOINS_S = 20.0
"""Time within which a ready worker joins a running generation."""
HANGS = ("is stuck", "has been stuck", "does not answer", "training hangs")
ENDING = ("stopping", "saving")
MASK = (1 << RANK_BITS) - 1


class Oracle:
    """Everything that has happened so far, as known to no single process.

    Args:
        remembered: the states of a job that living workers have in memory.
        saved: the newest step of a job on any disk.
    """

    def __init__(
        self, *, remembered: Callable[[str], Iterable[Memory]], saved: Callable[[str], int]
    ) -> None:
        self._remembered = remembered
        self.frames = 0
        self.commits = 0
        self.checks = 0
        self.ended_jobs: dict[str, Job] = {}
        self._ended_for_good: set[str] = set()
        self.causes = Causes()
        self.lineage = Lineage()
        self.residuals = Residuals()
        self.agreements = Agreements()
        self.shards = ShardRules()
        self.keeping = Keeping(
            self.causes,
            self.agreements,
            remembered=remembered,
            saved=saved,
            given_up=self.lineage.is_given_up,
        )
        self._rosters: dict[Generation, m.Assign] = {}
        self._datasets: dict[Generation, str] = {}
        self._steps: dict[Generation, dict[int, int]] = {}
        self._running: dict[str, tuple[int, int]] = {}
        self._waiting: dict[str, dict[tuple[str, int], float]] = {}
        self._numbers: set[int] = set()
        self._newest: dict[str, Job] = {}
        self._trains: dict[str, int] = {}
        self._resumed: set[str] = set()
        self._connected: set[str] = set()
        self._dead: set[str] = set()
        self._origins: dict[str, str] = {}
        self._waived: set[str] = set()
        self.allotments = Allotments()
        self.beliefs = Beliefs(remembered=remembered, trains=self._trains, resumed=self._resumed)

    @property
    def generations(self) -> int:
        """Number of generations that were decided."""
        return len(self._numbers)

    # --- the plan --------------------------------------------------------------------------

    def backed_up(self) -> None:
        """A backup of the coordinator's store is taken."""
        self.lineage.backed_up()

    def went_back(self) -> None:
        """The coordinator's store is restored from a backup."""
        self.causes.went_back = True
        self.lineage.went_back()

    # --- data plane ------------------------------------------------------------------------

    def accepted(self, ring_roster: int, frame_roster: int) -> None:
        """A ring has accepted a frame."""
        self.frames += 1
        require(ring_roster == frame_roster, "a frame of another roster was accepted")

    def summed(self, world_size: int, bucket: list[int]) -> None:
        """A bucket is complete on one rank."""
        whole = (1 << world_size) - 1
        ranks = {one & MASK for one in bucket}
        require(ranks <= {whole}, "a contribution is missing or counted twice")
        require(len(set(bucket)) <= 1, "elements of one bucket have other rows")

    def ring(self, core: Machine) -> None:
        """A ring has handled an event."""
        self.checks += 1
        core.check_invariants()
        if self.checks % EXPLAIN_EVERY == 0:
            require(bool(core.explain()), "a ring does not say what it waits for")

    def prepares(self, prepare: m.Prepare) -> None:
        """A worker is told of a job, and perhaps of another one with whose weights it begins."""
        self._origins[prepare.job] = prepare.from_job

    # --- members ---------------------------------------------------------------------------

    def member(self, name: str, core: Member) -> None:
        """A member has handled an event."""
        self.checks += 1
        self._dead.discard(name)
        core.check_invariants()
        in_ring = core.state in (MemberState.FORMING, MemberState.RUNNING)
        self._trains[name] = core.assign.generation if in_ring and core.assign is not None else 0
        silent = core.state is MemberState.RUNNING
        require(
            silent != bool(core.explain()),
            "a member waits and does not say for what",
            name,
        )

    def idles(self, name: str, core: Member) -> None:
        """A member's training thread has nothing to do."""
        trains = core.state in (MemberState.FORMING, MemberState.RUNNING)
        require(not trains, "a member has left its generation and does not say so", name)

    def obeyed(
        self, name: str, before: m.Assign | None, message: object, effects: Sequence[object]
    ) -> None:
        """A member has handled an event when `before` was its assignment."""
        if before is None or not isinstance(message, m.Assign | m.Freeze):
            return
        if isinstance(message, m.Freeze) and message.generation == before.generation:
            require(bool(effects), "a member does not heed that its generation ends", name)
        newest = before.generation + isinstance(message, m.Assign)
        if message.generation < newest:
            deeds = [one for one in effects if not isinstance(one, Tell)]
            require(not deeds, "what belongs to an older generation is obeyed", name, message)

    def leaves(self, name: str, reason: str) -> None:
        """A worker's process ends by its own decision; most are started again."""
        if self.ended_jobs:
            # It served a job that is over, and is absent until it reconnects.
            self.causes.struck([name])
        if "this process served another" in reason and COORDINATOR in self.causes.touched:
            self.causes.struck([name])  # a new coordinator does not know for which job it is ready
        self.causes.require([name], "a worker's process ends", reason)

    def assigned(self, assign: m.Assign, dataset: str) -> None:
        """A worker joins a generation."""
        data = self._datasets.setdefault((assign.job, assign.generation), dataset)
        require(data == dataset, "workers with different data train together", assign)
        known = self._rosters.setdefault((assign.job, assign.generation), assign)
        same = (known.roster_id, known.roster) == (assign.roster_id, assign.roster)
        require(same, "two rosters have one number", assign.generation)
        alike = (known.strides, known.whole_bytes) == (assign.strides, assign.whole_bytes)
        require(alike, "ranks have different schedules", known, assign)
        self.lineage.assigned(assign)

    def adopted(self, assign: m.Assign, state: State) -> None:
        """A worker has the starting state of its generation."""
        self._honest(state)
        begins = state.key == (0, 0) and self._origins.get(assign.job)
        waived = not begins or assign.job in self._waived
        require(waived, "a job begins without what it is to start from", assign.job)
        self.agreements.adopted(assign, state)
        self.lineage.adopted(assign, state)

    def joined(self, assign: m.Assign, incarnation: int) -> None:
        """A rank has learnt that all ranks have joined with the same state."""
        newest = (assign.generation, assign.held_step)
        self._running[assign.job] = max(self._running.get(assign.job, (0, 0)), newest)
        self.beliefs.joined(assign)
        self.lineage.took_part(assign, incarnation)

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
            min(others) >= round_begin(state.data, max(others)),
            "a rank is two steps ahead of another",
            f"generation {assign.generation}",
            others,
        )
        self._not_fenced(assign, state)

    def completed(self, state: State) -> None:
        """A rank commits its prepared step because a newer generation starts from it."""
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

    def asked(self, name: str, before: Flags, after: Flags) -> None:
        """A rank is asked to end its generation at a step boundary, perhaps again."""
        lost = (before.stop and not after.stop) or (before.leave and not after.leave)
        require(not lost, "what a rank was asked for is forgotten", name, before, after)

    def _honest(self, state: State) -> None:
        self.shards.honest(state)
        content = expected(state.job, state.step, state.data)
        honest = state.corrupt or state.content == content
        require(honest, "a state is not what its step says", state)

    # --- coordinator -----------------------------------------------------------------------

    def told(self, name: str, message: m.Message, store: SimulatedStore) -> None:
        """A message is sent to a worker: the decision that it follows from must be stored."""
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
        elif isinstance(message, m.Release) and message.reason == SURPLUS:
            self.causes.struck([name])  # the one that it had replaced has come back
        elif isinstance(message, m.Release) and (
            message.state == "left" or any(one in message.reason for one in (*HANGS, MOVES))
        ):
            if MOVES in message.reason:
                self.causes.struck([name])
            heard_of_all = not self._dead & self._connected
            if heard_of_all and not self._ends(message.job, store):
                self.keeping.let_go(name, message.job)

    def _ends(self, job: str, store: SimulatedStore) -> bool:
        """Whether the job ends or has ended: which states it may discard is judged then.

        A store that fails may not know it yet.
        """
        ended = job in self.ended_jobs and store.refused(job)
        return ended or (store.written(job) or {}).get("state") in (*ENDING, *ENDED)

    def answered(self, job: str, store: SimulatedStore) -> None:
        """The operator is told that a job is cancelled."""
        state = (store.written(job) or {}).get("state")
        stands = state in ENDING or state in ENDED or store.refused(job)
        require(stands, "a cancel is answered before it is written down", job, state)

    def membership(self, cluster: ClusterState, now: float, connected: Collection[str]) -> None:
        """The coordinator, to which these are `connected`, has handled an event."""
        self.checks += 1
        cluster.check_invariants()
        self._connected = set(connected)
        self.beliefs.check(cluster, now, connected)
        if cluster.job is not None and self._forms(cluster, cluster.job):
            job = cluster.job
            start = job.start_generation, job.start_step
            self._numbers.add(job.generation)
            self._one_after_the_other(job)
            least = int(job.spec["elastic"]["min_workers"])
            require(
                len(cluster.run.roster) >= least, "a generation has fewer workers than asked for"
            )
            self.lineage.decided(
                job.id,
                job.generation,
                start,
                members=job.roster,
                living=self._remembered(job.id),
                excused=self.beliefs.waited_for(job.id, connected),
                on_disk=start in self.keeping.on_disks(job.id),
            )
        waits = cluster.job is not None and cluster.run.phase is not GenerationState.RUNNING
        require(
            bool(machine.explain(cluster)) or not waits,
            "the job waits and the coordinator does not say for what",
            cluster.run.phase,
        )
        if self.checks % EXPLAIN_EVERY == 0:
            self._joiners(cluster, now)
        deadline = machine.next_deadline(cluster, now)
        require(
            deadline is None or deadline >= now, "a deadline that has passed is asked for again"
        )
        watched = cluster.job is None or not cluster.members() or deadline is not None
        require(watched, "a generation has members and nobody looks at the clock")

    def _forms(self, cluster: ClusterState, job: Job) -> bool:
        """Whether a generation forms, or has begun to end by the event that announced it."""
        phase = cluster.run.phase
        ends = phase is GenerationState.ENDING and job.generation not in self._numbers
        return phase is GenerationState.FORMING or ends

    def _one_after_the_other(self, job: Job) -> None:
        """Check that a member has certainly left the last generation, or the operator said so."""
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

    def resumes(self, job: str) -> bool:
        """The operator declares that no worker trains the job; returns whether that is new."""
        known = job in self._resumed
        self._resumed.add(job)
        self._waived.add(job)
        return not known

    def does_not_resume(self, job: str) -> None:
        """Undo `resumes`, because the coordinator has refused the request."""
        self._resumed.discard(job)

    def died(self, name: str) -> None:
        """A process has ended."""
        self._trains.pop(name, None)
        self._dead.add(name)

    def _joiners(self, cluster: ClusterState, now: float) -> None:
        """Check that ready workers join the running generation if there is room and links work."""
        waiting = {}
        job = cluster.job
        runs = cluster.run.phase is GenerationState.RUNNING
        if job is None:
            return
        if runs and job.state is JobState.RUNNING and not cluster.links.bad:
            most = most_workers(job)
            finishing = any(one.state is WorkerState.FINISHED for one in cluster.members())
            if len(cluster.run.roster) < most and not finishing:
                ready = (one for one in cluster.workers.values() if one.state is WorkerState.READY)
                waiting = {
                    (one.name, cluster.run.generation): now for one in ready if not one.leaving
                }
        known = self._waiting.get(job.id, {})
        self._waiting[job.id] = {one: known.get(one, now) for one in waiting}
        for one, since in self._waiting[job.id].items():
            require(now - since < JOINS_S, "a worker that is ready is not let in", one)

    def foresees(self, incident: Incident) -> None:
        """The coordinator has decided something that it reports once its store is written."""
        if "the job begins afresh" in incident.message:  # with others that a fault has struck
            self.causes.struck([incident.worker])

    def incident(self, incident: Incident) -> None:
        """The coordinator reports an incident."""
        never_told = (incident.job, incident.generation) not in self._rosters
        if incident.generation and never_told and COORDINATOR in self.causes.touched:
            # The coordinator crashed before it could announce the generation.
            self.causes.struck([incident.worker])
        if incident.kind == "worker_lost":
            self.causes.require([incident.worker], "a worker is evicted", incident.message)
        elif incident.kind in ("worker_barred", "link_bad"):
            concerned = incident.message.replace(",", " ").replace(";", " ").split()
            self.causes.require(concerned, "a link is called bad", incident.message)

    def ended(self, job: Job, *, written: bool) -> None:
        """A job has reached its last state; if that was not `written`, it ends again later."""
        require(job.id not in self._ended_for_good, "a job ends twice", job.id)
        self.ended_jobs[job.id] = job
        if written:
            self._ended_for_good.add(job.id)
        lost = self.lineage.lost(job.id)
        require(job.steps_lost <= lost, "steps are called lost that are not", job.steps_lost, lost)
        self.keeping.ended(job, self._connected)
