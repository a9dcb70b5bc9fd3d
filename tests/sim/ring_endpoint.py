"""One generation's links in the simulation: to and from the ranks at all strides of its tree.

The counterpart of `dtd.exchange.endpoint`: connects, retries while the neighbour is not ready,
passes frames to the node, sends and expects heartbeats, opens lifelines, and reports once that the
ring is up and once that it is broken, with the evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from dtd.cluster.workers.detector import Detector
from dtd.cluster.workers.links import ENDED
from dtd.errors import DtdError
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.neighbours import Neighbour, Neighbours
from dtd.exchange.schedule.schedules import RingSchedules
from dtd.exchange.schedule.tree import strides_in
from dtd.wire import messages as m
from tests.sim.data_port import DataPort, LifelineHello, RingHello
from tests.sim.lifeline import Lifeline
from tests.sim.network import DAMAGED, Port
from tests.sim.oracle import Broken
from tests.sim.ring_node import CHUNK_BYTES, SCRATCH_SLOTS, Frame, RingNode
from tests.sim.surroundings import Surroundings

CONNECT_PAUSE_S: Final = 0.05
LINK_HEARTBEAT: Final = "beat"


class RingEndpoint:
    """A worker's end of one generation's ring.

    Args:
        surroundings: clock, network, oracle.
        assign: the generation.
        data_port: port to which neighbours connect.
        lifeline: holds connections to the next and the previous rank that end with this process.
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
        self._name = assign.roster[assign.rank].name
        schedules = RingSchedules(
            assign.rank,
            len(assign.roster),
            chunk_bytes=CHUNK_BYTES,
            whole_bytes=assign.whole_bytes,
            strides=strides_in(assign.strides),
        )
        self._neighbours = Neighbours(assign.roster, schedules.tree)
        self._sides = {str(one): one for one in self._neighbours.ring.values()}
        self._ports: dict[Neighbour, Port] = {}
        self._open: set[Neighbour] = set()
        self._holds: set[Neighbour] = set()
        self._detector = Detector(
            timeout_s=surroundings.heartbeat_timeout_s, tick_s=surroundings.heartbeat_interval_s
        )
        self.node = RingNode(
            Machine(
                schedules,
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
        """Whether all links are connected."""
        return len(self._open) == len(self._sides)

    def connect(self) -> None:
        """Begin to connect to all neighbours."""
        assign = self.assign
        if len(assign.roster) == 1 or self.why_broken:
            return
        for name in self._sides:
            self._detector.watch(name, self._surroundings.scheduler.now)
        self._beat()
        ranks = {one.rank for one in self._sides.values() if not one.opens}
        self._data_port.expect_ring(assign.generation, assign.roster_id, ranks, self)
        for side in self._sides.values():
            if side.opens:
                self._connect(side)

    def end(self, reason: str) -> None:
        """Leave the ring."""
        self._fail("", "", reason)

    # --- links -----------------------------------------------------------------------------

    def _connect(self, side: Neighbour) -> None:
        if self.why_broken:
            return
        assign = self.assign
        self._ports[side] = self._surroundings.network.connect(
            self._name,
            self._neighbours.members[side].name,
            RingHello(key=(assign.generation, assign.roster_id, assign.rank)),
            receive=lambda _: self._on_answer(side),
            closed=lambda reason: self._on_out_closed(side, reason),
        )

    def accept_ring(self, port: Port, rank: int) -> None:
        """A rank that sends to this one has connected."""
        if self.why_broken:
            port.close("the ring has ended")
            return
        side = self._neighbours.ring[rank, False]
        self._ports[side] = port
        port.receive = partial(self._on_frame, side)
        port.closed = partial(self._lost, side)
        port.send(LINK_HEARTBEAT)
        self._stands(side)

    def _stands(self, side: Neighbour) -> None:
        """A link is connected."""
        self._heard(side)
        if side not in self._open:
            self._open.add(side)
            self._hold_lifelines()
            if side.opens and not side.beats:
                self._detector.forget(str(side))
        self._changed()

    def accept_lifeline(self, port: Port, rank: int) -> None:
        """Accept a neighbour's lifeline, which is idle until the neighbour's process ends."""
        both = {self._neighbours.next.rank, self._neighbours.previous.rank}
        if self.why_broken or rank not in both:
            port.close("no neighbour in this ring")
            return
        name = self.assign.roster[rank].name
        self._lifelines.append(port)
        port.closed = lambda _: self._fail(name, ENDED, "its process has ended")

    def _hold_lifelines(self) -> None:
        """Open lifelines; all neighbours have connected, so they know this ring."""
        if self.is_up():
            assign = self.assign
            key = (assign.generation, assign.roster_id, assign.rank)
            members = self._neighbours.members
            both = {members[self._neighbours.next].name, members[self._neighbours.previous].name}
            self._lifeline.hold(both, LifelineHello(key=key))

    def _on_answer(self, side: Neighbour) -> bool:
        self._stands(side)
        return True

    def _on_out_closed(self, side: Neighbour, reason: str) -> None:
        if reason == "connection refused" and side not in self._open:
            self._after(CONNECT_PAUSE_S, partial(self._connect, side))
        else:
            self._lost(side, reason)

    def _lost(self, side: Neighbour, reason: str) -> None:
        name = self._neighbours.members[side].name
        self._fail(name, "corrupt" if reason == DAMAGED else "reset", reason)

    def _fail(self, suspect: str, evidence: str, reason: str) -> None:
        if self.why_broken:
            return
        self.suspect, self.evidence, self.why_broken = suspect, evidence, reason
        for port in self._ports.values():
            port.abort("connection reset")
        for port in self._lifelines:
            port.close("the ring has ended")
        self._changed()

    # --- silence ---------------------------------------------------------------------------

    def _beat(self) -> None:
        """Send heartbeats, and check for silent neighbours."""
        if self.why_broken:
            return
        for side in self._sides.values():
            if side in self._open and (side.opens or side.beats):
                self._ports[side].send(LINK_HEARTBEAT)
        for side in self._holds:
            self._heard(side)
        now = self._surroundings.scheduler.now
        for name, _ in self._detector.suspects(now)[:1]:
            side = self._sides[name]
            stood = side in self._open
            silent_s = self._detector.silence_s(name, now)
            what = "sends nothing" if stood else "cannot be reached"
            evidence = "silent" if stood else "unreachable"
            suspect = self._neighbours.members[side].name
            self._fail(suspect, evidence, f"{what} for {silent_s:.1f} s")
        self._after(self._surroundings.heartbeat_interval_s, self._beat)

    def _heard(self, side: Neighbour) -> None:
        self._detector.heard(str(side), self._surroundings.scheduler.now)

    # --- frames ----------------------------------------------------------------------------

    def _on_frame(self, side: Neighbour, content: object) -> bool:
        self._heard(side)
        if content == LINK_HEARTBEAT:
            return True
        try:
            is_taken = self.node.receive(content, side.rank)
        except DtdError as error:
            raise Broken(f"an honest frame was refused: {error}") from error
        if not is_taken:
            self._holds.add(side)
        return is_taken

    def _send(self, rank: int, frame: Frame, size_bytes: int) -> None:
        self._ports[self._neighbours.ring[rank, True]].send(frame, size_bytes)

    def _resume(self, rank: int) -> None:
        side = self._neighbours.ring[rank, False]
        self._holds.discard(side)
        self._ports[side].resume()
