"""A simulated worker process: member core, control connection, data port and modelled trainer.

The counterpart of `dtd.worker.daemon`.  A process lives until it crashes, restarts or exits; its
disk outlives it.  Paused like by SIGSTOP it does nothing, and later does everything that came due.
"""

from __future__ import annotations

from collections.abc import Callable

from dtd.core import member
from dtd.sim import reports
from dtd.sim.data_port import DataPort
from dtd.sim.network import Port
from dtd.sim.replica import Disk
from dtd.sim.ring_endpoint import RingEndpoint
from dtd.sim.surroundings import COORDINATOR, Surroundings
from dtd.sim.trainer import Trainer
from dtd.wire import messages as m


class WorkerProcess:
    """One incarnation of a worker.

    Args:
        surroundings: clock, network, chance, oracle, story.
        name: its stable name.
        incarnation: a number that no other process has.
        disk: what earlier incarnations have saved.
        dataset: fingerprint of its data; workers with different ones must not train together.
        fails_at_step: in this step the job's own code raises here.
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
    ) -> None:
        self.surroundings = surroundings
        self.name = name
        self.incarnation = incarnation
        self.disk = disk
        self.data_port = DataPort()
        self.fails_at_step = fails_at_step
        self.alive = True
        self.trainer: Trainer | None = None
        self._dataset = dataset
        self._paused = False
        self._due: list[Callable[[], None]] = []
        self._look_asked = False
        self._control: Port | None = None
        self._ring: RingEndpoint | None = None
        self.core = member.Member(
            m.Register(
                name=name,
                incarnation=incarnation,
                pid=1000 + incarnation,
                host="simulated",
                device="cpu",
                data_host=name,
                data_port=7118,
                version="0",
            )
        )
        surroundings.network.listen(name, self.data_port)
        self._connect()
        self._beat()

    # --- life ------------------------------------------------------------------------------

    def crash(self) -> None:
        """Die at once."""
        self.alive = False
        self.surroundings.network.vanish(self.name)

    def pause(self) -> None:
        """Stop like by SIGSTOP."""
        self._paused = True
        self.surroundings.network.pause(self.name)

    def unpause(self) -> None:
        """Go on like by SIGCONT."""
        self._paused = False
        due, self._due = self._due, []
        for action in due:
            self.after(0.0, action)
        self.surroundings.network.unpause(self.name)

    def leave(self) -> None:
        """The administrator stops it in good order."""
        self.feed(member.StopAsked(reason="stopped by the administrator"))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later, unless the process has died by then."""
        self.surroundings.scheduler.after(delay_s, lambda: self._when_due(action))

    def _when_due(self, action: Callable[[], None]) -> None:
        if self._paused:
            self._due.append(action)
        elif self.alive:
            action()

    # --- control connection ----------------------------------------------------------------

    def _connect(self) -> None:
        self._control = self.surroundings.network.connect(
            self.name, COORDINATOR, None, receive=self._on_message, closed=self._on_closed
        )

    def _on_message(self, content: object) -> bool:
        if isinstance(content, m.Welcome):
            self.feed(member.ControlOpened())
        else:
            assert isinstance(content, m.Message)
            self.feed(member.FromCoordinator(message=content))
        return True

    def _on_closed(self, _reason: str) -> None:
        self._control = None
        self.after(self.surroundings.draw(self.surroundings.pace.reconnect_s), self._connect)

    def tell(self, message: m.Message) -> None:
        """Send something to the coordinator; lost when the connection is down."""
        if self._control is not None:
            self._control.send(message)

    def _beat(self) -> None:
        trainer, ring = self.trainer, self._ring
        step = trainer.state.step if trainer is not None and trainer.state is not None else 0
        beat = m.Heartbeat(
            state=self.core.state.value,
            job=ring.assign.job if ring is not None else "",
            generation=ring.assign.generation if ring is not None else 0,
            step=step,
            step_s=0.1,
        )
        self.tell(beat)
        self.after(self.surroundings.heartbeat_interval_s, self._beat)

    # --- member ----------------------------------------------------------------------------

    def feed(self, event: member.Event) -> None:
        """Hand an event to the core and do what it answers."""
        effects = self.core.handle(event, self.surroundings.scheduler.now)
        self.surroundings.oracle.member(self.name, self.core)
        for effect in effects:
            if self.alive:
                self._perform(effect)

    def _perform(self, effect: member.Effect) -> None:
        if isinstance(effect, member.Tell):
            self.tell(effect.message)
        elif isinstance(effect, member.WarmUp):
            self.trainer = Trainer(self, effect.prepare)
            delay_s = self.surroundings.draw(self.surroundings.pace.warm_up_s)
            self.after(delay_s, lambda: self._on_warm(effect.prepare))
        elif isinstance(effect, member.FormRing):
            self._form_ring(effect.assign)
        elif isinstance(effect, member.BreakRing):
            assert self._ring is not None
            self._ring.end(effect.reason)
        elif isinstance(effect, member.EndAtBoundary):
            self._end_at_boundary(effect)
        elif isinstance(effect, member.Raise):
            self._raise(effect.signal)
        else:
            self._end(effect)

    def _on_warm(self, prepare: m.Prepare) -> None:
        assert self.trainer is not None
        self.feed(reports.warmed(prepare, self.trainer.held(), dataset=self._dataset))

    def _form_ring(self, assign: m.Assign) -> None:
        assert self.trainer is not None
        self.surroundings.oracle.assigned(assign, self.trainer.key, self._dataset)
        if self._ring is not None:
            self._ring.end(f"generation {assign.generation} follows")
        self.data_port.withdraw()
        self._ring = RingEndpoint(
            self.surroundings,
            assign,
            self.data_port,
            after=self.after,
            changed=self._look_soon,
        )
        self.trainer.serve(self._ring)

    def _look_soon(self) -> None:
        """Outside the current callback: a trainer that goes on may send and receive."""
        if not self._look_asked:
            self._look_asked = True
            self.after(0.0, self._look)

    def _look(self) -> None:
        assert self.trainer is not None
        self._look_asked = False
        self.trainer.look()

    def _end_at_boundary(self, effect: member.EndAtBoundary) -> None:
        assert self.trainer is not None
        flags = self.trainer.flags
        flags.stop |= effect.stop
        flags.leave |= effect.leave
        flags.end |= not effect.stop

    def _raise(self, signal: str) -> None:
        if signal == "KILL":
            self._end_process(f"{self.name} is killed", again=True)
        elif signal == "STOP":
            self.pause()
        else:
            self.leave()

    def _end(self, effect: member.Restart | member.Exit) -> None:
        again = isinstance(effect, member.Restart)
        verb = "starts afresh" if again else "exits"
        self._end_process(f"{self.name} {verb}: {effect.reason}", again=again)

    def _end_process(self, line: str, *, again: bool) -> None:
        self.surroundings.tell(line)
        self.crash()
        if again:
            self.surroundings.restarted(self.name)
