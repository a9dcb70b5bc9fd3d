"""A simulated worker process: member core, control connection, data port and modelled trainer.

The counterpart of `dtd.worker.daemon`.  A process lives until it crashes, restarts or exits; its
disk outlives it.  While paused, as by SIGSTOP, it does nothing; actions that became due run when it
resumes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from dtd.cluster import member
from dtd.cluster.workers.progress import LOOK_AFTER_S, TELL_AFTER_S, Verdict
from dtd.wire import messages as m
from tests.sim import reports
from tests.sim.control import Control
from tests.sim.data_port import DataPort
from tests.sim.lifeline import Lifeline
from tests.sim.phases import Here, Phase
from tests.sim.probe import probe
from tests.sim.replica import Disk
from tests.sim.ring_endpoint import RingEndpoint
from tests.sim.surroundings import Surroundings
from tests.sim.trainer import TrainingThread

_VERDICT = tuple(field.name for field in fields(Verdict))


class WorkerProcess:
    """One incarnation of a worker.

    Args:
        surroundings: clock, network, random generators, oracle, story.
        name: its stable name.
        incarnation: a number that no other process has.
        disk: the worker's disk, with the checkpoints of earlier incarnations.
        dataset: fingerprint of its data; workers with different ones must not train together.
        fails_at_step: step in which the job's own code raises an error on this worker.
        pid: process id; a process that replaces itself keeps it.
        broken_until_s: time before which its warm-up fails.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        name: str,
        *,
        incarnation: int,
        disk: Disk,
        dataset: str,
        fails_at_step: int | None,
        pid: int,
        broken_until_s: float = 0.0,
    ) -> None:
        self.surroundings = surroundings
        self.name = name
        self.incarnation = incarnation
        self.disk = disk
        self.data_port = DataPort(
            sending=self._on_sending, pace=surroundings.pace, after=self.after
        )
        self.fails_at_step = fails_at_step
        self.alive = True
        self.pid = pid
        self.replaces_itself = False
        self.trainer: TrainingThread | None = None
        self._dataset = dataset
        self._broken_until_s = broken_until_s
        self._paused = False
        self._due: list[Callable[[], None]] = []
        self._look_asked = False
        self._ring: RingEndpoint | None = None
        self._lifeline = Lifeline(surroundings.network, name, surroundings.lifeline_rng)
        self._control = Control(surroundings, name, after=self.after, received=self._on_message)
        self.core = member.Member(
            m.Register(
                name=name,
                incarnation=incarnation,
                pid=pid,
                host="simulated",
                device="cpu",
                data_host=name,
                data_port=7118,
                version="0",
                instance=f"disk of {name}",
                serves=name in surroundings.servers,
                joined=surroundings.joined.get(name, ""),
            )
        )
        surroundings.network.listen(name, self.data_port)
        self._control.connect()
        self._beat()

    # --- life ------------------------------------------------------------------------------

    @property
    def is_in_ring(self) -> bool:
        """Whether it takes part in a generation whose ring has not broken."""
        return self._ring is not None and not self._ring.why_broken

    def crash(self) -> None:
        """Die immediately; peers notice when the kernel closes the streams."""
        self.alive = False
        self.surroundings.oracle.died(self.name)
        death = self._lifeline.death()
        self.surroundings.network.kill(
            self.name, lifelines_s=death.lifelines_s, streams_s=death.streams_s
        )

    def pause(self) -> None:
        """Stop as by SIGSTOP."""
        self._paused = True
        self.surroundings.network.pause(self.name)

    def unpause(self) -> None:
        """Continue as by SIGCONT."""
        self._paused = False
        due, self._due = self._due, []
        for action in due:
            self.after(0.0, action)
        self.surroundings.network.unpause(self.name)

    def hear_again(self) -> None:
        """Receive a random earlier message about an older generation again."""
        known = self.core.assign
        old = [
            one
            for one in self.surroundings.said.get(self.name, [])
            if isinstance(one, m.Assign | m.Freeze) and known and one.generation < known.generation
        ]
        if old and not self._paused:
            self.feed(self.surroundings.rng.choice(old))

    def leave(self) -> None:
        """Shut down as on the administrator's request."""
        self.feed(member.StopAsked(reason="stopped by the administrator"))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run an action after a delay, unless the process has died by then."""
        self.surroundings.scheduler.after(delay_s, lambda: self._when_due(action))

    def _when_due(self, action: Callable[[], None]) -> None:
        if self._paused and self.alive:
            self._due.append(action)
        elif self.alive:
            action()

    def reached(self, phase: Phase, *, rank: int, step: int) -> bool:
        """Report that the worker reaches a phase; False if a fault ended the process."""
        begin = step - 1
        if step > 0 and self.trainer is not None:
            begin = self.trainer.session.rounds.begin(step)
        here = Here(name=self.name, phase=phase, rank=rank, step=step, begin=begin)
        self.surroundings.triggers.reached(here)
        return self.alive

    def _on_sending(self) -> bool:
        ring = self._ring
        assert ring is not None
        return self.reached(Phase.SEND_STATE, rank=ring.assign.rank, step=ring.assign.held_step)

    # --- coordinator -----------------------------------------------------------------------

    def _on_message(self, message: m.Message) -> None:
        if not isinstance(message, m.Welcome):
            self.feed(message)
        elif self.reached(Phase.REGISTER, rank=-1, step=-1):
            self.feed(member.ControlOpened())

    def tell(self, message: m.Message) -> None:
        """Send a message to the coordinator; it is lost if the connection is down."""
        self._control.send(message)

    def _beat(self) -> None:
        if self.trainer is not None and self.trainer.thread.idle:
            self.surroundings.oracle.idles(self.name, self.core)
        self._control.look()
        self.tell(self._heartbeat())
        self.after(self.surroundings.heartbeat_interval_s, self._beat)

    def _heartbeat(self) -> m.Heartbeat:
        trainer, ring = self.trainer, self._ring
        state = trainer.session.state if trainer is not None else None
        verdict = Verdict() if trainer is None else self._verdict(trainer)
        return m.Heartbeat(
            state=self.core.state.value,
            job=ring.assign.job if ring is not None else "",
            generation=ring.assign.generation if ring is not None else 0,
            step=state.step if state is not None else 0,
            step_s=0.1,
            hop_bytes=self.surroundings.hop_bytes(self.name, self.incarnation),
            **{name: getattr(verdict, name) for name in _VERDICT},
            where="task.py:12 in loss" if verdict.stalled_s > TELL_AFTER_S else "",
        )

    def _verdict(self, trainer: TrainingThread) -> Verdict:
        now, tick_s = self.surroundings.scheduler.now, self.surroundings.heartbeat_interval_s
        watch = trainer.session.watch
        stalled_s = watch.look(now, tick_s=tick_s, waits=trainer.thread.waits())
        if stalled_s >= LOOK_AFTER_S:
            watch.saw(trainer.thread.seen(now))
        return watch.verdict(now, stalled_s)

    # --- member ----------------------------------------------------------------------------

    def feed(self, event: member.Event) -> None:
        """Pass an event to the core and perform the resulting effects."""
        before = self.core.assign
        effects = self.core.handle(event)
        self.surroundings.oracle.obeyed(self.name, before, event, effects)
        self.surroundings.oracle.member(self.name, self.core)
        for effect in effects:
            if self.alive:
                self._perform(effect)

    def _perform(self, effect: member.Effect) -> None:
        if isinstance(effect, member.Tell):
            self.tell(effect.message)
        elif isinstance(effect, m.Prepare):
            self.trainer = TrainingThread(self, effect)
            delay_s = self.surroundings.draw(self.surroundings.pace.warm_up_s)
            self.after(delay_s, lambda: self._on_warm(effect))
        elif isinstance(effect, m.Assign):
            self._form_ring(effect)
        elif isinstance(effect, member.BreakRing):
            assert self._ring is not None
            self._ring.end(effect.reason)
        elif isinstance(effect, member.EndAtBoundary):
            self._end_at_boundary(effect)
        elif isinstance(effect, m.Save):
            assert self.trainer is not None
            self.trainer.save(effect)
        elif isinstance(effect, m.Probe):
            self._probe(effect)
        elif isinstance(effect, m.Signal):
            self._raise(effect.signal)
        else:
            self._end(effect)

    def _on_warm(self, prepare: m.Prepare) -> None:
        assert self.trainer is not None
        if self.surroundings.scheduler.now < self._broken_until_s:
            failed = m.Failed(job=prepare.job, reason="there is no driver", traceback="")
            self.surroundings.oracle.causes.struck([self.name])
            self.feed(failed)
            return
        session = self.trainer.session
        warmed = reports.warmed(
            prepare, session.held(), dataset=self._dataset, saved=session.saved()
        )
        self.feed(warmed)

    def _form_ring(self, assign: m.Assign) -> None:
        assert self.trainer is not None
        self.surroundings.oracle.assigned(assign, self._dataset)
        if self._ring is not None:
            self._ring.end(f"generation {assign.generation} follows")
        self.data_port.withdraw()
        self._ring = RingEndpoint(
            self.surroundings,
            assign,
            self.data_port,
            self._lifeline,
            after=self.after,
            changed=self._look_soon,
            reached=self._on_chunk,
        )
        self._ring.connect()
        self.trainer.serve(self._ring)

    def _on_chunk(self, phase: int, step: int) -> bool:
        assert self._ring is not None
        here = Phase(m.Phase(phase).name.lower())
        return self.reached(here, rank=self._ring.assign.rank, step=step + self._ring.ahead)

    def _look_soon(self) -> None:
        """Resume the trainer outside the current callback, since it may send and receive."""
        if not self._look_asked:
            self._look_asked = True
            self.after(0.0, self._look)

    def _look(self) -> None:
        assert self.trainer is not None
        self._look_asked = False
        self.trainer.thread.look()

    def _end_at_boundary(self, effect: member.EndAtBoundary) -> None:
        assert self.trainer is not None
        session = self.trainer.session
        before = session.flags
        session.flags = before.asked(stop=effect.stop, leave=effect.leave)
        self.surroundings.oracle.asked(self.name, before, session.flags)

    def _probe(self, asked: m.Probe) -> None:
        probe(self.surroundings, asked, by=self.name, after=self.after, answer=self.feed)

    def _raise(self, signal: str) -> None:
        if signal == "KILL":
            self.surroundings.tell(f"{self.name} is killed")
            self.crash()
            self.surroundings.restarted(self.name)
        elif signal == "STOP":
            self.pause()
        else:
            self.leave()

    def _end(self, effect: member.Restart | member.Exit) -> None:
        joined = self.surroundings.joined.get(self.name)
        over = joined in self.surroundings.oracle.ended_jobs
        again = isinstance(effect, member.Restart) and not over
        verb = "starts afresh" if again else "exits"
        release = effect.release if isinstance(effect, member.Restart) else None
        too_early = joined and release is not None and release.state == "unknown"
        if not too_early:
            self.surroundings.oracle.leaves(self.name, effect.reason)
        self.surroundings.tell(f"{self.name} {verb}: {effect.reason}")
        self.alive, self.replaces_itself = False, again
        self.surroundings.oracle.died(self.name)
        self.surroundings.network.vanish(self.name)
        if again:
            self.surroundings.restarted(self.name)
