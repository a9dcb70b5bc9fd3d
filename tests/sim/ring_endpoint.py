"""One generation's two links in the simulation: to the next rank and from the previous one.

The counterpart of `dtd.exchange.endpoint`: connects, retries while the neighbour is not ready,
passes frames to the node, sends and expects heartbeats, opens lifelines, and reports once that the
ring is up and once that it is broken, with the evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dtd.cluster.detector import Detector
from dtd.cluster.links import ENDED
from dtd.errors import DtdError
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.schedules import RingSchedules
from dtd.wire import messages as m
from tests.sim.data_port import DataPort, LifelineHello, RingHello
from tests.sim.lifeline import Lifeline
from tests.sim.network import DAMAGED, Port
from tests.sim.oracle import Broken
from tests.sim.ring_node import CHUNK_BYTES, SCRATCH_SLOTS, Frame, RingNode
from tests.sim.surroundings import Surroundings

CONNECT_PAUSE_S: Final = 0.05
LINK_HEARTBEAT: Final = "beat"
NEXT: Final = "next"
PREVIOUS: Final = "previous"


class RingEndpoint:
    """A worker's end of one generation's ring.

    Args:
        surroundings: clock, network, oracle.
        assign: the generation.
        data_port: port to which the previous rank connects.
        lifeline: holds a connection to each neighbour that ends with this process.
        after: runs an action after a delay, unless the process has died by then.
        changed: called whenever a waiting trainer should check its condition again.
        reached: called with the phase of every chunk that arrives; returns False if the process
            has ended.

    Attributes:
        ahead: the job's steps after the open round, minus the number of its exchange.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        assign: m.Assign,
        data_port: DataPort,
        lifeline: Lifeline,
        *,
        after: Callable[[float, Callable[[], None]], None],
        changed: Callable[[], None],
        reached: Callable[[int, int], bool],
    ) -> None:
        self.assign = assign
        self.suspect = ""
        self.evidence = ""
        self.why_broken = ""
        self.ahead = 1
        self._surroundings = surroundings
        self._data_port = data_port
        self._lifeline = lifeline
        self._lifelines: list[Port] = []
        self._after = after
        self._changed = changed
        world_size = len(assign.roster)
        self._name = assign.roster[assign.rank].name
        self._previous_rank = (assign.rank - 1) % world_size
        self._names = {
            NEXT: assign.roster[(assign.rank + 1) % world_size].name,
            PREVIOUS: assign.roster[self._previous_rank].name,
        }
        self._out: Port | None = None
        self._in: Port | None = None
        self._answered = False
        self._holds = False
        self._detector = Detector(
            timeout_s=surroundings.heartbeat_timeout_s, tick_s=surroundings.heartbeat_interval_s
        )
        self.node = RingNode(
            Machine(
                RingSchedules(assign.rank, world_size, chunk_bytes=CHUNK_BYTES),
                generation=assign.generation,
                first_step=assign.held_step,
                scratch_slots=SCRATCH_SLOTS,
            ),
            roster_id=assign.roster_id,
            oracle=surroundings.oracle,
            send=self._send,
            resume=self._resume,
            changed=changed,
            reached=reached,
        )

    def is_up(self) -> bool:
        """Whether both links are connected."""
        return len(self.assign.roster) == 1 or (self._in is not None and self._answered)

    def connect(self) -> None:
        """Begin to connect to both neighbours."""
        assign = self.assign
        if len(assign.roster) == 1 or self.why_broken:
            return
        for side in (NEXT, PREVIOUS):
            self._detector.watch(side, self._surroundings.scheduler.now)
        self._beat()
        key = (assign.generation, assign.roster_id, self._previous_rank)
        self._data_port.expect_ring(key, self)
        self._connect_next()

    def end(self, reason: str) -> None:
        """Leave the ring."""
        self._fail("", "", reason)

    # --- links -----------------------------------------------------------------------------

    def _connect_next(self) -> None:
        if self.why_broken:
            return
        assign = self.assign
        self._out = self._surroundings.network.connect(
            self._name,
            self._names[NEXT],
            RingHello(key=(assign.generation, assign.roster_id, assign.rank)),
            receive=self._on_answer,
            closed=self._on_out_closed,
        )

    def accept_ring(self, port: Port) -> None:
        """The previous rank has connected."""
        if self.why_broken:
            port.close("the ring has ended")
            return
        self._in = port
        self._heard(PREVIOUS)
        port.receive, port.closed = self._on_frame, self._on_in_closed
        port.send(LINK_HEARTBEAT)
        self._hold_lifelines()
        self._changed()

    def accept_lifeline(self, port: Port, rank: int) -> None:
        """Accept a neighbour's lifeline, which is idle until the neighbour's process ends."""
        roster = self.assign.roster
        name = roster[rank].name if rank < len(roster) else ""
        if self.why_broken or name not in self._names.values():
            port.close("no neighbour in this ring")
            return
        self._lifelines.append(port)
        port.closed = lambda _: self._fail(name, ENDED, "its process has ended")

    def _hold_lifelines(self) -> None:
        """Open lifelines; both neighbours have connected, so they know this ring."""
        if self.is_up():
            assign = self.assign
            key = (assign.generation, assign.roster_id, assign.rank)
            self._lifeline.hold(set(self._names.values()), LifelineHello(key=key))

    def _on_answer(self, _content: object) -> bool:
        if not self._answered:
            self._answered = True
            self._hold_lifelines()
        self._heard(NEXT)
        self._changed()
        return True

    def _on_out_closed(self, reason: str) -> None:
        if reason == "connection refused" and not self._answered:
            self._after(CONNECT_PAUSE_S, self._connect_next)
        else:
            self._lost(NEXT, reason)

    def _on_in_closed(self, reason: str) -> None:
        self._lost(PREVIOUS, reason)

    def _lost(self, side: str, reason: str) -> None:
        self._fail(self._names[side], "corrupt" if reason == DAMAGED else "reset", reason)

    def _fail(self, suspect: str, evidence: str, reason: str) -> None:
        if self.why_broken:
            return
        self.suspect, self.evidence, self.why_broken = suspect, evidence, reason
        for port in (self._out, self._in):
            if port is not None:
                port.abort("connection reset")
        for port in self._lifelines:
            port.close("the ring has ended")
        self._changed()

    # --- silence ---------------------------------------------------------------------------

    def _beat(self) -> None:
        """Send heartbeats, and check for silent neighbours."""
        if self.why_broken:
            return
        if self._out is not None and self._answered:
            self._out.send(LINK_HEARTBEAT)
        if self._in is not None:
            self._in.send(LINK_HEARTBEAT)
        if self._holds:
            self._heard(PREVIOUS)
        now = self._surroundings.scheduler.now
        for side, _ in self._detector.suspects(now)[:1]:
            stood = self._answered if side == NEXT else self._in is not None
            silent_s = self._detector.silence_s(side, now)
            what = "sends nothing" if stood else "cannot be reached"
            evidence = "silent" if stood else "unreachable"
            self._fail(self._names[side], evidence, f"{what} for {silent_s:.1f} s")
        self._after(self._surroundings.heartbeat_interval_s, self._beat)

    def _heard(self, side: str) -> None:
        self._detector.heard(side, self._surroundings.scheduler.now)

    # --- frames ----------------------------------------------------------------------------

    def _on_frame(self, content: object) -> bool:
        self._heard(PREVIOUS)
        if content == LINK_HEARTBEAT:
            return True
        try:
            self._holds = not self.node.receive(content)
        except DtdError as error:
            raise Broken(f"an honest frame was refused: {error}") from error
        return not self._holds

    def _send(self, frame: Frame, size_bytes: int) -> None:
        assert self._out is not None
        self._out.send(frame, size_bytes)

    def _resume(self) -> None:
        self._holds = False
        if self._in is not None:
            self._in.resume()
