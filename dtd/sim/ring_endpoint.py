"""One generation's two links in the simulation: to the next rank and from the previous one.

The counterpart of `dtd.net.ring_endpoint`: connects, calls again when the neighbour is not there
yet, hands frames to the node, and says once that the ring is up and once that it is broken.
"""

from __future__ import annotations

from collections.abc import Callable

from dtd.core.ring import Ring
from dtd.errors import DtdError
from dtd.sim.data_port import DataPort, RingHello
from dtd.sim.network import Port
from dtd.sim.oracle import Broken
from dtd.sim.ring_node import CHUNK_BYTES, SCRATCH_SLOTS, Frame, RingNode
from dtd.sim.surroundings import Surroundings
from dtd.wire import messages as m

CONNECT_PAUSE_S = 0.05
WELCOME = "welcome"


class RingEndpoint:
    """A worker's end of one generation's ring.

    Args:
        surroundings: clock, network, oracle.
        assign: the generation.
        data_port: where the previous rank will connect.
        after: does something later, unless the process has died by then.
        changed: called whenever a waiting trainer should look again.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        assign: m.Assign,
        data_port: DataPort,
        *,
        after: Callable[[float, Callable[[], None]], None],
        changed: Callable[[], None],
    ) -> None:
        self.assign = assign
        self.suspect = ""
        self.why_broken = ""
        self._surroundings = surroundings
        self._data_port = data_port
        self._after = after
        self._changed = changed
        world_size = len(assign.roster)
        self._name = assign.roster[assign.rank].name
        self._next = assign.roster[(assign.rank + 1) % world_size].name
        self._previous_rank = (assign.rank - 1) % world_size
        self._out: Port | None = None
        self._in: Port | None = None
        self._answered = False
        self.node = RingNode(
            Ring(
                rank=assign.rank,
                world_size=world_size,
                generation=assign.generation,
                first_step=assign.held_step,
                chunk_bytes=CHUNK_BYTES,
                scratch_slots=SCRATCH_SLOTS,
            ),
            roster_id=assign.roster_id,
            oracle=surroundings.oracle,
            send=self._send,
            resume=self._resume,
            changed=changed,
        )

    def is_up(self) -> bool:
        """Both links stand."""
        return len(self.assign.roster) == 1 or (self._in is not None and self._answered)

    def connect(self) -> None:
        """Begin to connect to both neighbours."""
        assign = self.assign
        if len(assign.roster) > 1 and not self.why_broken:
            key = (assign.generation, assign.roster_id, self._previous_rank)
            self._data_port.expect_ring(key, self._accept)
            self._connect_next()

    def end(self, reason: str) -> None:
        """Take no further part."""
        self._fail("", reason)

    # --- links -----------------------------------------------------------------------------

    def _connect_next(self) -> None:
        if self.why_broken:
            return
        assign = self.assign
        self._out = self._surroundings.network.connect(
            self._name,
            self._next,
            RingHello(key=(assign.generation, assign.roster_id, assign.rank)),
            receive=self._on_answer,
            closed=self._on_out_closed,
        )

    def _accept(self, port: Port) -> None:
        if self.why_broken:
            port.close("the ring has ended")
            return
        self._in = port
        port.receive, port.closed = self._on_frame, self._on_in_closed
        port.send(WELCOME)
        self._changed()

    def _on_answer(self, _content: object) -> bool:
        self._answered = True
        self._changed()
        return True

    def _on_out_closed(self, reason: str) -> None:
        if reason == "connection refused" and not self._answered:
            self._after(CONNECT_PAUSE_S, self._connect_next)
        else:
            self._fail(self._next, reason)

    def _on_in_closed(self, reason: str) -> None:
        self._fail(self.assign.roster[self._previous_rank].name, reason)

    def _fail(self, suspect: str, reason: str) -> None:
        if self.why_broken:
            return
        self.suspect, self.why_broken = suspect, reason
        for port in (self._out, self._in):
            if port is not None:
                port.close("connection reset")
        self._changed()

    # --- frames ----------------------------------------------------------------------------

    def _on_frame(self, content: object) -> bool:
        try:
            return self.node.receive(content)
        except DtdError as error:
            raise Broken(f"an honest frame was refused: {error}") from error

    def _send(self, frame: Frame, size_bytes: int) -> None:
        assert self._out is not None
        self._out.send(frame, size_bytes)

    def _resume(self) -> None:
        if self._in is not None:
            self._in.resume()
