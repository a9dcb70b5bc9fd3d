"""The coordinator's decisions: who works, on what, in which generation, from which state.

    REGISTER -> idle -PREPARE-> warming -WARMED-> ready -ASSIGN-> forming -RUNNING-> running
                                                    ^                                  |
                                                    +--- frozen <-FROZEN---------------+-> finished

A generation is *forming* until every member runs, *running* until somebody is lost, freezes or has
to be added, and *ending* until every living member has frozen.  Pure: events and a clock value in,
effects out.  The coordinator never sees a gradient or a parameter.

This file dispatches; what changes the books is in `admission`, `adoption`, `forming`, `running`,
`ending`, `suspicion`, `standstill` and `jobs`.
"""

from __future__ import annotations

from dtd.core.membership import (
    admission,
    ending,
    forming,
    isolation,
    jobs,
    reconnection,
    running,
    saving,
    standstill,
    suspicion,
    waiting,
)
from dtd.core.membership import roster as choice
from dtd.core.membership.events import (
    CancelRequested,
    DeleteRequested,
    DrainRequested,
    Effect,
    Event,
    FromWorker,
    JobSaved,
    KillRequested,
    ResumeRequested,
    Revoked,
    Submitted,
    Undeliverable,
    WorkerLost,
)
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.state_records import CoordinatorIdentity, Run
from dtd.core.membership.transitions import (
    ENDED,
    GONE,
    MEMBERS,
    GenerationState,
    JobEvent,
    JobState,
    WorkerState,
)
from dtd.core.observe import figures
from dtd.core.observe.detector import Detector
from dtd.core.trust import contradiction, doubt, hearing, vouching
from dtd.errors import RequestRefused
from dtd.wire import messages as m

MAX_FRUITLESS_GENERATIONS = 64
MAX_DEADLY_GENERATIONS = 4
"""So many generations in a row in which a worker died or hung in the same step end the job."""
UNREACHED = GONE | {WorkerState.AWAY}
TRAINING = frozenset({WorkerState.FORMING, WorkerState.RUNNING, WorkerState.AWAY})


STOPPING = "stopping at the next step boundary; a second `dtdctl cancel` does not wait for that"


class Membership:
    """The whole control plane of one cluster.

    Args:
        heartbeat_interval_s: how often workers are told to send heartbeats.
        heartbeat_timeout_s: silence after which a worker counts as lost.
        last_generation: the highest number ever announced; new ones exceed it.
        identity: what this coordinator says of itself.
    """

    def __init__(
        self,
        *,
        heartbeat_interval_s: float = 0.25,
        heartbeat_timeout_s: float = 1.5,
        last_generation: int = 0,
        identity: CoordinatorIdentity | None = None,
    ) -> None:
        self.books = ClusterState(
            heartbeat_interval_s=heartbeat_interval_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
            detector=Detector(timeout_s=heartbeat_timeout_s, tick_s=heartbeat_interval_s),
            run=Run(generation=last_generation),
            identity=identity or CoordinatorIdentity(),
            epoch=max(1, identity.epoch) if identity is not None else 1,
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Advance by one event.

        Raises:
            RequestRefused: an operator's request cannot be met; nothing has changed.
        """
        books = self.books
        books.effects, books.now = [], now
        books.slept(books.detector.awake(now))
        if isinstance(event, FromWorker):
            self._on_message(event.name, event.message, now)
        elif isinstance(event, WorkerLost):
            self._on_worker_lost(event, now)
        elif isinstance(event, Submitted):
            jobs.submit(books, event.job)
        elif isinstance(event, CancelRequested):
            jobs.cancel(books, event.job)
        elif isinstance(event, ResumeRequested):
            jobs.resume(books, event.job)
        elif isinstance(event, DeleteRequested):
            jobs.delete(books, event.job, event.step)
        elif isinstance(event, DrainRequested):
            admission.let_leave(books, self._connected(event.name), "drained by the operator", now)
        elif isinstance(event, KillRequested):
            self._on_kill_requested(event)
        elif isinstance(event, JobSaved | Undeliverable):
            self._on_effect_done(event, now)
        elif isinstance(event, Revoked):
            admission.bar_revoked(books, event.name, event.reason, now)
        suspicion.evict_silent(books, now)
        suspicion.probe(books, now)
        self._advance(now)
        return books.effects

    def hears(self, name: str, message: m.Message) -> bool:
        """Whether what a registered worker says counts, also for those who keep figures of it."""
        return hearing.judge(self.books, name, message).word is hearing.Word.COUNTS

    def awaits(self, name: str, message: m.Message) -> bool:
        """Whether a worker answers what it was told to do; that is heard whatever its share is."""
        return saving.awaits(self.books, name, message)

    def next_deadline(self, now: float) -> float | None:
        """When `handle(Ticked(), ...)` must be called if nothing else happens before."""
        books = self.books
        waits = (
            books.detector.next_deadline(now),
            books.waiting.settle_by,
            waiting.resume_by(books),
            books.ending.freeze_by,
            books.waiting.form_at,
            books.ending.stop_by,
            books.run.decision.again_at if books.run.decision is not None else None,
            books.isolation.links.next_deadline(),
            running.admission_deadline(books),
            saving.next_deadline(books, now),
            isolation.next_deadline(books),
        )
        return min(
            (moment for moment in waits if moment is not None and moment > now), default=None
        )

    def begin_again(self, *, given_up: bool) -> list[Job]:
        """Forget all that a process started anew would not know, after an error in this machine.

        Args:
            given_up: the active job is, too: it has happened with it again and again.

        Returns:
            The jobs that have not ended, in their order, to be submitted again.
        """
        books = self.books
        known = [*([books.job] if books.job is not None else []), *books.queue]
        jobs_left = [job for job in known if job.state not in ENDED]
        books.forget_all()
        books.incident("core_begun_again", "the coordinator begins again after an error of its own")
        if given_up and jobs_left:
            jobs.end_for_error(books, jobs_left.pop(0))
        return jobs_left

    def check_invariants(self) -> None:
        """Raise AssertionError when the books do not balance."""
        self.books.check_invariants()

    # --- events ----------------------------------------------------------------------------

    def _on_message(self, name: str, message: m.Message, now: float) -> None:
        books = self.books
        number = doubt.implausible(books, name, message)
        if number:
            hearing.turn_away(books, name, message, hearing.false(doubt.why_implausible(number)))
            return
        if isinstance(message, m.Register):
            if not reconnection.comes_back(books, message, now):
                admission.register(books, message, now)
            return
        worker = books.workers.get(name)
        if worker is None:  # it was not let in, and has yet to read that
            return
        books.detector.heard(name, now)
        verdict = hearing.judge(books, name, message)
        if verdict.word is not hearing.Word.COUNTS:
            hearing.turn_away(books, name, message, verdict)
        elif isinstance(message, m.Heartbeat):
            self._on_heartbeat(worker, message, now)
        elif isinstance(message, m.Leave):
            admission.let_leave(books, worker, message.reason, now)
        elif isinstance(message, m.Probed):
            suspicion.probed(books, worker, message, now)
        elif isinstance(message, m.Warmed):
            admission.warmed(books, worker, message)
        elif books.job is not None and getattr(message, "job", "") == books.job.id:
            self._on_job_message(books.job, worker, message, now)

    def _on_heartbeat(self, worker: Worker, message: m.Heartbeat, now: float) -> None:
        message = standstill.believable(self.books.job, message)
        worker.liveness.heartbeat = message
        self.books.send(worker.name, m.HeartbeatAck())
        job = self.books.job
        if job is not None and message.job == job.id and worker.state in MEMBERS:
            step = message.step
            running.progressed(self.books, job, worker.name, message.generation, step, now)
            standstill.judge(self.books, job, worker, now)
            if self.books.straggler.is_due(now):
                self.books.straggler.look(self.books.running_beats(), now)

    def _on_job_message(self, job: Job, worker: Worker, message: m.Message, now: float) -> None:
        books = self.books
        if isinstance(message, m.Progress):
            jobs.progress(books, job, worker.name, message, now)
        elif isinstance(message, m.Evaluated):
            job.metrics = figures.metrics(message.metrics)
        elif isinstance(message, m.CheckpointSaved):
            key = message.generation, message.step  # who has saved a state has committed it
            running.progressed(books, job, worker.name, *key, now)
            vouching.saved(books, job, worker.name, message)
        elif isinstance(message, m.Agreed):
            vouching.agreed(books, job, worker.name, message)
        elif isinstance(message, m.Failed):
            isolation.failed(books, job, worker, message, now)
        elif isinstance(message, m.Notice):
            if message.event == "checkpoint_failed":
                saving.failed(books, worker.name, message.message, now)
            books.incident(message.event, f"{worker.name}: {message.message}", worker=worker.name)
        elif isinstance(message, m.Frozen | m.Finished) and worker.state is WorkerState.WARMING:
            admission.taken_back(books, worker, message, now)
        else:
            self._on_member_message(job, worker, message, now)

    def _on_member_message(self, job: Job, worker: Worker, message: m.Message, now: float) -> None:
        if isinstance(message, m.Running):
            forming.member_running(self.books, job, worker, now)
        elif isinstance(message, m.Frozen):
            standstill.forgive(self.books, worker)
            running.left(self.books, job, worker.name, message, now)
            ending.member_frozen(self.books, job, worker, message, now)
            suspicion.accused(self.books, worker.name, message, now)
            suspicion.left(self.books, worker.name, message, now)
        elif isinstance(message, m.Finished):
            running.left(self.books, job, worker.name, message, now)
            ending.member_finished(self.books, job, worker, message)
            suspicion.left(self.books, worker.name, message, now)

    def _on_effect_done(self, event: JobSaved | Undeliverable, now: float) -> None:
        if isinstance(event, Undeliverable):
            jobs.undeliverable(self.books, event, now)
        elif self.books.job is not None:
            forming.saved(self.books, self.books.job, event, now)

    def _on_worker_lost(self, event: WorkerLost, now: float) -> None:
        worker = self.books.workers.get(event.name)
        if worker is None or worker.incarnation != event.incarnation or worker.state in GONE:
            return
        if event.farewell or not reconnection.goes_away(self.books, worker, event.reason):
            admission.lose(self.books, worker, event.reason, now)

    def _on_kill_requested(self, event: KillRequested) -> None:
        worker = self._connected(event.name)
        worker.liveness.signalled, pid = True, worker.registration.pid
        self.books.send(worker.name, m.Signal(signal=event.signal))
        self.books.incident(
            "worker_signalled",
            f"SIG{event.signal} sent to {worker.name} (pid {pid}) by the operator",
            worker=worker.name,
        )

    def _connected(self, name: str) -> Worker:
        worker = self.books.workers.get(name)
        if worker is not None and worker.state not in UNREACHED:
            return worker
        here = [w.name for w in self.books.workers.values() if w.state not in UNREACHED]
        known = ", ".join(sorted(here, key=choice.natural_key)) or "none"
        raise RequestRefused(f"no worker {name!r} is connected", remedy=f"connected: {known}")

    # --- whatever has become possible -------------------------------------------------------

    def _advance(self, now: float) -> None:
        books = self.books
        if books.job is None and books.queue:
            jobs.activate(books, books.queue.popleft(), now)
        if books.job is not None:
            running.bear_out(books, books.job, now)
            vouching.count(books, books.job)
        admission.release_leavers(books)
        if books.job is not None:
            isolation.try_again(books, books.job, now)
        if books.job is not None:
            standstill.give_up_returning(books, books.job, now)
            admission.give_up_warming(books, books.job, now)
            jobs.break_off_late(books, books.job, now)
        if books.job is not None and books.run.phase is GenerationState.RUNNING:
            self._advance_running(books.job, now)
        if books.job is not None and books.run.phase is GenerationState.ENDING:
            self._advance_ending(books.job, now)
        if books.job is not None and books.run.phase is GenerationState.NONE:
            self._advance_waiting(books.job, now)
        if books.job is None and books.queue:
            self._advance(now)

    def _advance_running(self, job: Job, now: float) -> None:
        if all(member.state is WorkerState.FINISHED for member in self.books.members()):
            self._finish(job, now)
        else:
            running.admit_ready(self.books, job, now)

    def _finish(self, job: Job, now: float) -> None:
        early = job.state is JobState.STOPPING and job.step < job.total_steps
        saving.begin(self.books, job, self._verdict(job) if early else JobState.DONE, now)

    def _verdict(self, job: Job) -> JobState:
        return JobState(job.verdict) if job.verdict else JobState.CANCELLED

    def _advance_ending(self, job: Job, now: float) -> None:
        books = self.books
        if books.ending.freeze_by is not None and now >= books.ending.freeze_by:
            standstill.give_up_late(books, job, now)
        if any(books.workers[n].state is not WorkerState.FINISHED for n in books.not_frozen()):
            return
        if ending.is_complete(books):
            self._finish(job, now)
            return
        ending.close(books, job, now)
        suspicion.settle(books, job, now)
        admission.release_leavers(books)

    def _advance_waiting(self, job: Job, now: float) -> None:
        """Form a generation once nothing is worth waiting for any more."""
        books = self.books
        contradiction.settle(books, job, now)
        if job.state is JobState.SAVING:
            saving.advance(books, job, now)
            return
        if job.state is JobState.STOPPING:
            self._end_waiting(job, now)
            return
        if books.run.decision is not None:
            forming.save_again(books, job, now)
            return
        admission.compare(books, job)
        if not waiting.may_form(books, job, now):
            self._let_wait(job)
            return
        forming.count_prepared(books, job)
        why = self._hopeless(job)
        if why:
            jobs.give_up(books, job, why)
            saving.begin(books, job, JobState.FAILED, now)
            return
        forming.decide(books, job)

    def _let_wait(self, job: Job) -> None:
        """No generation forms; tell an operator once."""
        before = job.state
        warms_up = bool(self.books.warming_since)
        self.books.move_job(job, JobEvent.WARMS_UP if warms_up else JobEvent.WAITS)
        if job.state is not before:
            kind = f"job_{job.state.value}"
            self.books.incident(kind, f"job {job.id} waits: {self.explain()}")

    def _end_waiting(self, job: Job, now: float) -> None:
        """Members that this coordinator has not heard of yet may come back with what they hold."""
        if doubt.lasts(self.books, job):
            admission.end_doubt(self.books, job)
        never_heard = [name for name in job.roster if name not in self.books.workers]
        patience_s = reconnection.ADOPTION_PATIENCE * self.books.heartbeat_timeout_s
        hopes_s = patience_s if never_heard else 0.0
        saving.begin(self.books, job, self._verdict(job), now, hopes_s=hopes_s)

    def _hopeless(self, job: Job) -> str:
        """Why it makes no sense to go on; empty when it does."""
        past = self.books.setbacks
        if past.crash_generations >= MAX_DEADLY_GENERATIONS:
            ends = {name: past.last_ends.get(name, "") for name in past.crashed_workers}
            dead = ", ".join(f"{name} ({end})" if end else name for name, end in ends.items())
            return (
                f"step {past.crash_step + 1} kills worker after worker: {dead} died or hung in it"
            )
        if past.no_progress_generations >= MAX_FRUITLESS_GENERATIONS:
            return f"{MAX_FRUITLESS_GENERATIONS} generations in a row committed no step"
        return ""

    # --- explaining ------------------------------------------------------------------------

    def explain(self) -> str:
        """Why the job does not advance right now; empty when it does."""
        books, job = self.books, self.books.job
        if job is None:
            return "no job: submit one with `dtdctl submit JOB.toml`"
        if job.state is JobState.SAVING:
            return saving.explain(books, job)
        if books.run.phase is GenerationState.RUNNING:
            stops = job.state is JobState.STOPPING
            return standstill.explain(books) or STOPPING * stops
        kept = standstill.explain(books)
        if kept:
            return kept
        if books.run.phase is GenerationState.FORMING:
            late = [w.name for w in books.members() if w.state in TRAINING]
            return f"forming generation {books.run.generation}: waiting for {', '.join(late)}"
        if books.run.phase is GenerationState.ENDING:
            late = [w.name for w in books.members() if w.state in TRAINING]
            return f"ending generation {books.run.generation}: waiting for {', '.join(late)}"
        return waiting.explain(books, job)
