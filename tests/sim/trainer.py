"""A modelled trainer: takes over a state, trains in a generation, reports its end, and repeats.

It is modelled on `dtd.worker.job.training_thread` and runs on a simulated thread
(`tests.sim.thread`); the loop is in `tests.sim.loop`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from dtd.cluster import member
from dtd.cluster.generation.branches import told_by
from dtd.engine.control_word import Flags
from dtd.engine.step_protocol import Reaction, StateKey, TakeOver, reaction
from dtd.errors import DivergenceError, RingBroken, TaskError
from dtd.wire import messages as m
from tests.sim import loop, regroup, reports
from tests.sim.fetch import Fetch
from tests.sim.oracle import require
from tests.sim.phases import Phase
from tests.sim.replica import State, fresh
from tests.sim.residuals import value
from tests.sim.ring_endpoint import RingEndpoint
from tests.sim.session import Shell, begin
from tests.sim.thread import Reach, Request, Routine, Thread, Wait

CORRUPT: Final = "corrupt"


class TrainingThread:
    """One job's training thread.

    Args:
        shell: the process to which it belongs.
        prepare: the job.
    """

    def __init__(self, shell: Shell, prepare: m.Prepare) -> None:
        self.session = begin(shell, prepare.job, prepare.spec, prepare.from_job)
        shell.surroundings.oracle.prepares(prepare)
        self.thread = Thread(
            shell.after,
            clock=lambda: shell.surroundings.scheduler.now,
            got_on=lambda: self.session.watch.mark(shell.surroundings.scheduler.now),
            reached=self._reached,
        )
        self._shell = shell
        self._rank = -1

    def serve(self, ring: RingEndpoint) -> None:
        """Take part in a generation."""
        self.session.flags = Flags()
        self._rank = ring.assign.rank
        self.session.branches = told_by(ring.assign)
        sharded = self.session.mirrors is not None
        roster, rank = ring.assign.roster, ring.assign.rank
        owns = roster[rank].serves or not any(member.serves for member in roster)
        self.session.writes = owns if sharded else rank < self.session.copies
        self.thread.run(self._serve(ring))

    def save(self, save: m.Save) -> None:
        """Write the held state between generations."""
        self.thread.run(self._write(save))

    def _write(self, save: m.Save) -> Routine:
        session, key = self.session, StateKey(save.generation, save.step)
        require(session.engine.can_make(key), "a worker is to save what it has not", save)
        if session.engine.take_over(key) is TakeOver.COMMIT:
            self._shell.surroundings.oracle.completed(session.commit())
        else:
            session.discard()
        state = session.live
        yield session.busy("checkpoint_s")
        session.save(state)
        return "saved"

    def _reached(self, here: Reach) -> bool:
        return self._shell.reached(here.phase, rank=self._rank, step=here.step)

    # --- one generation --------------------------------------------------------------------

    def _serve(self, ring: RingEndpoint) -> Routine:
        self.session.watch.begin(self._shell.surroundings.scheduler.now)
        self.session.watch.begins("take over", specialises=False)
        try:
            yield from self._take_over(ring)
            yield Wait(ring.is_up, ring)
            outcome = yield from loop.train(self.session, ring)
        except RingBroken as error:
            if self.session.engine.interrupted():
                self.session.discard()
            self._shell.surroundings.oracle.shards.froze(self._shell.name, self.session.state)
            regroup.leave(self.session)
            self._shell.surroundings.oracle.causes.froze(ring.assign, error.evidence, error.message)
            self._froze(ring, error.suspect, error.evidence, error.message)
            return "broken"
        except DivergenceError as error:
            self._diverged(ring, error)
            return "diverged"
        except TaskError as error:
            self.session.discard()
            failed = m.Failed(
                job=ring.assign.job,
                reason=error.message,
                traceback="",
                step=self.session.held().step,
            )
            self._shell.surroundings.oracle.causes.task_failed(
                self._shell.name, ring.assign, step=failed.step
            )
            self._shell.feed(failed)
            self._froze(ring, "", "", "its training has failed")
            ring.end(error.message)
            return "failed"
        finally:
            self.session.watch.end()
        if outcome in ("yielded", "left"):
            self._froze(ring, "", "", "the generation ended at a step boundary")
        else:
            assert self.session.agreed is not None
            self._shell.feed(
                reports.finished(ring.assign, self.session.agreed, stopped=outcome == "stopped")
            )
        return outcome

    def _froze(
        self,
        ring: RingEndpoint,
        suspect: str,
        evidence: str,
        reason: str,
        *,
        diverged: DivergenceError | None = None,
    ) -> None:
        generation, step = self.session.prepared_key()
        self._shell.feed(
            m.Frozen(
                job=ring.assign.job,
                generation=ring.assign.generation,
                roster_id=ring.assign.roster_id,
                held=(self.session.held(), *self.session.saved())[: m.MAX_HELD],
                prepared_generation=generation,
                prepared_step=step,
                suspect=suspect,
                evidence=evidence,
                reason=reason,
                diverged_step=diverged.step if diverged is not None else 0,
                differs=diverged.entry if diverged is not None else "",
            )
        )

    def _diverged(self, ring: RingEndpoint, error: DivergenceError) -> None:
        """The majority keeps what it has trained, the others restart; without one all forget."""
        assign = ring.assign
        answer = reaction(
            assign.rank, step=error.step, dissenters=error.dissenters, majority=error.majority
        )
        if answer is Reaction.FORGET:
            self._shell.surroundings.oracle.agreements.forgets(
                self._shell.name, majority=error.majority
            )
            self.session.forget()
            self._froze(ring, "", "diverged", error.message, diverged=error)
        elif answer is Reaction.START_AFRESH:
            diverged = member.Diverged(generation=assign.generation, reason=error.message)
            self._shell.feed(diverged)
            require(not self._shell.alive, "one that differs from most goes on", self._shell.name)
        else:
            differs = assign.rank in error.dissenters
            self._shell.surroundings.oracle.agreements.keeps(self._shell.name, differs=differs)
            if answer is Reaction.REBUILD:
                self.session.forget()
            first = assign.roster[error.dissenters[0]].name
            self._froze(ring, first, "diverged", error.message, diverged=error)

    # --- the state -------------------------------------------------------------------------

    def _take_over(self, ring: RingEndpoint) -> Generator[Request, None, None]:
        """Obtain the generation's starting state: it is held already, or committed, or fetched."""
        assign, session = ring.assign, self.session
        yield Reach(Phase.TAKE_OVER, assign.held_step)
        yield session.busy("load_s")
        start = StateKey(assign.held_generation, assign.held_step)
        holds = assign.roster[assign.rank].holds
        fetches = session.engine.can_make(start) and not holds
        require(not fetches, "who has prepared the step is told to fetch it", assign)
        way = session.engine.take_over(start) if holds else None
        if way is TakeOver.COMMIT:
            self._shell.surroundings.oracle.completed(session.commit())
        else:
            session.discard()
        if way is None:
            yield from self._fetch(ring)
            yield from session.digest()
        elif way not in (TakeOver.COMMIT, TakeOver.KEEP):
            self._load(ring, start)
        oracle = self._shell.surroundings.oracle
        oracle.adopted(assign, session.live)
        oracle.shards.adopted(self._shell.name, session.live)
        oracle.residuals.adopted(assign, session.live, value(session.residual))
        if holds and not all(one.holds for one in assign.roster):
            self._shell.data_port.offer(assign.generation, session.live)

    def _load(self, ring: RingEndpoint, start: StateKey) -> None:
        """Replace the state in memory by the checkpoint, or by a fresh state."""
        session, assign = self.session, ring.assign
        if self._shell.disk.is_spoilt(assign.job, start):
            why = "the state that it offered is damaged"
            ring.end(why)
            raise RingBroken(why)
        saved = self._shell.disk.find(assign.job, start)
        unborn = fresh(assign.job, session.data, sharded=session.mirrors is not None)
        known = (saved, session.begun(), unborn)
        own = [state for state in known if state and state.key == start]
        require(bool(own), "a worker is told to hold what it has not", assign, session.state)
        session.adopt(own[0])

    def _fetch(self, ring: RingEndpoint) -> Generator[Request, None, None]:
        assign, session = ring.assign, self.session
        oracle, fetched = (
            self._shell.surroundings.oracle,
            (assign.held_generation, assign.held_step),
        )
        held = session.live if session.engine.live is not None else None
        if session.mirrors is not None and held is not None and held.key != fetched:
            held = None  # it is told to return to an older state, of which it has no shard
        oracle.lineage.copies(assign, self._shell.incarnation, held)
        fetch = Fetch(
            self._shell,
            assign.generation,
            [one.name for one in assign.roster if one.holds],
            receiving=lambda: self._reached(Reach(Phase.RECEIVE_STATE, assign.held_step)),
            changed=self.thread.look,
        )
        try:
            yield Wait(fetch.over, ring)
        finally:
            fetch.close()
        if fetch.why_failed:
            ring.end(fetch.why_failed)
            raise RingBroken(
                fetch.why_failed, suspect=fetch.donors_lost[-1], evidence="unreachable"
            )
        session.adopt(regroup.common(session, _whole(fetch.states())))


def _whole(pieces: list[State]) -> State:
    """Combine pieces; if they are of different states, all are requested from one donor."""
    return pieces[0]
