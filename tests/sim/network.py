"""The network between simulated processes: connections that are slow, stalled or cut.

A connection behaves like TCP.  Data arrives in order or not at all.  When a process dies, its peers
receive everything it had sent and then the end of the stream, as soon as the kernel has closed it.
A stalled link delivers everything later; a reset one loses what is in transit.  On a narrow link, a
connection gets stuck at the first large packet, while other connections continue.  Damaged data is
detected, as by a checksum, and ends the connection.  The content is opaque to the network.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tests.sim.scheduler import Scheduler

SMALL_BYTES = 64
LARGE_BYTES = 160
"""Larger packets are always lost on a narrow link."""
LOSS = 0.3
"""Share of packets that a lossy link loses."""
RETRANSMIT_S, MOST_RETRANSMIT_S = 0.2, 3.0
DAMAGED = "a frame was damaged on its way"
Link = tuple[str, str]


class Host(Protocol):
    """A process that accepts connections."""

    def accept(self, port: Port, greeting: object) -> bool:
        """Accept a connection and set the port's callbacks; False refuses it."""
        ...


@dataclass(frozen=True, slots=True)
class _End:
    reason: str


@dataclass(frozen=True, slots=True)
class _Greeting:
    content: object


@dataclass(frozen=True, slots=True)
class _Damaged:
    """Content whose checksum is wrong."""


class Port:
    """One end of a connection.

    Attributes:
        local: name of the process at this end.
        remote: name of the process at the other end.
        is_open: whether this end can send and receive.
        is_lifeline: whether it is closed before the others when its process dies.
        clogged: content in transit to this end, stuck behind a packet that does not get through.
        receive: called with content that arrives; False holds it, and all that follows, until
            `resume`.
        closed: called once when the other end is closed.
    """

    def __init__(self, network: Network, local: str, remote: str, *, is_lifeline: bool) -> None:
        self.local = local
        self.remote = remote
        self.is_lifeline = is_lifeline
        self.is_open = True
        self.peer: Port = self
        self.receive: Callable[[object], bool] = _deaf
        self.closed: Callable[[str], None] = _indifferent
        self.free_at = 0.0
        self.arrives_at = 0.0
        self.misses_rest = False
        self.clogged: deque[object] | None = None
        self._network = network
        self._inbox: deque[object] = deque()
        self._held = False
        self._draining = False

    def send(self, content: object, size_bytes: int = SMALL_BYTES) -> None:
        """Send content; does nothing if this end is closed."""
        if self.is_open:
            self._network.transmit(self, content, size_bytes)

    def resume(self) -> None:
        """Offer held content again."""
        self._held = False
        self._drain()

    def close(self, reason: str) -> None:
        """End the stream after the content in transit; this end receives no further callback."""
        if self.is_open:
            self._network.transmit(self, _End(reason), SMALL_BYTES)
            self.is_open = False

    def abort(self, reason: str) -> None:
        """End the stream immediately; content in transit may be lost."""
        if self.is_open:
            self.peer.misses_rest = self._network.chance()
            self.close(reason)

    def cut(self) -> None:
        """Handle a reset of the connection."""
        if self.is_open:
            self.is_open = False
            self.closed("connection reset")

    def arrive(self, content: object) -> None:
        """Handle content that has arrived."""
        if self.misses_rest and not isinstance(content, _End):
            return
        self._inbox.append(content)
        self._drain()

    def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        while self._inbox and not self._held and self.is_open:
            content = self._inbox.popleft()
            if not self._take(content):
                self._inbox.appendleft(content)
                self._held = True
        self._draining = False

    def _take(self, content: object) -> bool:
        if isinstance(content, _End):
            self.is_open = False
            self.closed(content.reason)
            return True
        if isinstance(content, _Greeting):
            self._network.send_welcome(self, content.content)
            return True
        if isinstance(content, _Damaged):
            self.close("connection reset")
            self.closed(DAMAGED)
            return True
        return self.receive(content)


def _deaf(_content: object) -> bool:
    return True


def _indifferent(_reason: str) -> None:
    return None


class Network:
    """All links of a cluster.

    Args:
        scheduler: the clock.
        rng: random generator for latencies.
        lifeline_rng: random generator for latencies of lifelines.
        latency_s: least and most time in transit.
        bytes_per_s: bandwidth of every connection and direction.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        lifeline_rng: random.Random,
        *,
        latency_s: tuple[float, float] = (0.0001, 0.0005),
        bytes_per_s: float = 1e8,
    ) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._lifeline_rng = lifeline_rng
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._hosts: dict[str, Host] = {}
        self._ports: list[Port] = []
        self._stalled: dict[Link, list[tuple[Port, object]]] = {}
        self._paused: dict[str, list[tuple[Port, object]]] = {}
        self._flips: set[Link] = set()
        self._narrow: set[Link] = set()
        self._lossy: set[Link] = set()
        self._remains: dict[str, list[list[Port]]] = {}

    # --- processes -------------------------------------------------------------------------

    def listen(self, name: str, host: Host) -> None:
        """Register a process that has started; nothing is left of its predecessor."""
        for ports in self._remains.pop(name, []):
            self._end_streams(ports)
        self._hosts[name] = host

    def vanish(self, name: str) -> None:
        """End a process; its peers receive the end of their streams."""
        self._end_streams(self._bereave(name))

    def kill(self, name: str, *, lifelines_s: float, streams_s: float) -> None:
        """Kill a process; its streams are closed only after these delays."""
        dead = self._bereave(name)
        for is_lifeline, delay_s in ((True, lifelines_s), (False, streams_s)):
            ports = [port for port in dead if port.is_lifeline is is_lifeline]
            self._remains.setdefault(name, []).append(ports)
            self._scheduler.after(delay_s, partial(self._end_streams, ports))

    def _bereave(self, name: str) -> list[Port]:
        """Close all ports of a process to sending and receiving, and return them."""
        self._hosts.pop(name, None)
        self._paused.pop(name, None)
        ports = [port for port in self._ports if port.local == name and port.is_open]
        for port in ports:
            port.is_open = False
        return ports

    def _end_streams(self, ports: list[Port]) -> None:
        """End these streams once: the list is empty afterwards."""
        while ports:
            self.transmit(ports.pop(0), _End("connection closed by peer"), SMALL_BYTES)

    def connect(
        self,
        local: str,
        remote: str,
        greeting: object,
        *,
        receive: Callable[[object], bool],
        closed: Callable[[str], None],
        lifeline: bool = False,
    ) -> Port:
        """Open a connection; a refusal is signalled as its end."""
        near = Port(self, local, remote, is_lifeline=lifeline)
        far = Port(self, remote, local, is_lifeline=lifeline)
        near.peer, far.peer = far, near
        near.receive, near.closed = receive, closed
        self._ports = [port for port in self._ports if port.is_open]
        self._ports += [near, far]
        near.send(_Greeting(greeting))
        return near

    def send_welcome(self, port: Port, greeting: object) -> None:
        """Deliver a connection to its target process."""
        host = self._hosts.get(port.local)
        if host is None or not host.accept(port, greeting):
            port.close("connection refused")

    def chance(self) -> bool:
        """A random boolean."""
        return self._rng.random() < 0.5

    # --- carrying --------------------------------------------------------------------------

    def transmit(self, port: Port, content: object, size_bytes: int) -> None:
        """Carry content from a port to its peer, after everything sent before."""
        begins = max(self._scheduler.now, port.free_at)
        port.free_at = begins + size_bytes / self._bytes_per_s
        rng = self._lifeline_rng if port.is_lifeline else self._rng
        latency = rng.uniform(*self._latency_s)
        latency += self._sent_again_s(port)
        port.arrives_at = max(port.arrives_at, port.free_at + latency)
        arrive = partial(self._arrive, port.peer, content, large=size_bytes > LARGE_BYTES)
        self._scheduler.at(port.arrives_at, arrive)

    def _sent_again_s(self, port: Port) -> float:
        """Delay of a packet on a lossy link, which is retransmitted at growing intervals."""
        if (port.local, port.remote) not in self._lossy:
            return 0.0
        waits_s, next_s = 0.0, RETRANSMIT_S
        while self._rng.random() < LOSS and next_s < MOST_RETRANSMIT_S:
            waits_s, next_s = waits_s + next_s, 2 * next_s
        return waits_s

    def _arrive(self, port: Port, content: object, *, large: bool = False) -> None:
        link = (port.remote, port.local)
        if link in self._narrow and (large or port.clogged is not None):
            port.clogged = port.clogged if port.clogged is not None else deque()
            port.clogged.append(content)
            return
        if link in self._flips and not isinstance(content, _End | _Greeting):
            self._flips.remove(link)
            content = _Damaged()
        if link in self._stalled:
            self._stalled[link].append((port, content))
        elif port.local in self._paused:
            self._paused[port.local].append((port, content))
        elif port.is_open:
            port.arrive(content)

    # --- faults ----------------------------------------------------------------------------

    def stall(self, source: str, target: str) -> None:
        """Deliver nothing from one process to another until `release`."""
        self._stalled.setdefault((source, target), [])

    def release(self, source: str, target: str) -> None:
        """Deliver stalled messages, and end the stall."""
        for port, content in self._stalled.pop((source, target), []):
            self._arrive(port, content)

    def heal(self) -> None:
        """Make all links work again."""
        self._flips.clear()
        self._lossy.clear()
        for narrow in list(self._narrow):
            self.widen(*narrow)
        for link in list(self._stalled):
            self.release(*link)

    def lose(self, source: str, target: str) -> None:
        """Lose many of the packets from one process to another, until `keep`."""
        self._lossy.add((source, target))

    def keep(self, source: str, target: str) -> None:
        """End `lose`."""
        self._lossy.discard((source, target))

    def narrow(self, source: str, target: str) -> None:
        """Lose all large packets from one process to another, including retransmissions."""
        self._narrow.add((source, target))

    def widen(self, source: str, target: str) -> None:
        """End `narrow`, and deliver waiting messages."""
        self._narrow.discard((source, target))
        for port in [p for p in self._ports if (p.remote, p.local) == (source, target)]:
            stuck, port.clogged = port.clogged, None
            for content in stuck or ():
                self._arrive(port, content)

    def pause(self, name: str) -> None:
        """Let a process read nothing until `unpause`."""
        self._paused.setdefault(name, [])

    def unpause(self, name: str) -> None:
        """Let a process read again."""
        for port, content in self._paused.pop(name, []):
            self._arrive(port, content)

    def reset(self, one: str, other: str, *, lifelines_only: bool = False) -> None:
        """Reset the connections between two processes; content in transit is lost."""
        for port in [p for p in self._ports if {p.local, p.remote} == {one, other}]:
            if port.is_lifeline or not lifelines_only:
                port.cut()

    def flip(self, source: str, target: str) -> None:
        """Damage the next content from one process to another on an open connection."""
        self._flips.add((source, target))
