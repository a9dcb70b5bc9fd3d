"""Probes whether other workers' data ports can be reached from here, and reports failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from dtd import diagnostics
from dtd.address import Address
from dtd.diagnostics import Diagnostic
from dtd.errors import DtdError
from dtd.net.data_server import PROBE_SCOPE
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.frames import Hold
from dtd.wire.greeting import DataCredential

# --- which other workers cannot be reached from here: for the log and for `systemctl status` ---


log = structlog.get_logger()


class PeerDiagnostics:
    """The workers that probes have not reached; a cluster has at most `MAX_WORLD` of them."""

    def __init__(self) -> None:
        self._unreached: dict[str, Diagnostic] = {}

    @property
    def first(self) -> Diagnostic | None:
        """The one that has lasted longest."""
        return next(iter(self._unreached.values()), None)

    def probed(self, probe: m.Probe, answer: m.Probed) -> None:
        """A worker was called; a failure is logged when it is news."""
        known = self._unreached.pop(probe.name, None)
        if answer.reachable:
            return
        where = str(Address(probe.host, probe.port))
        tell = diagnostics.data_port_narrow if answer.greeted else diagnostics.data_port_closed
        diagnostic = tell(probe.name, where, answer.reason)
        self._unreached[probe.name] = diagnostic
        while len(self._unreached) > m.MAX_WORLD:
            del self._unreached[next(iter(self._unreached))]
        if known != diagnostic:
            log.warning(
                "peer_unreachable",
                peer=probe.name,
                address=where,
                message=diagnostic.message,
                remedy=diagnostic.remedy,
            )

    def forget(self) -> None:
        """A ring stands: all its workers are reached."""
        self._unreached.clear()


# --- answer PROBEs: whether another worker's data port can be reached from here ----------------
#
# Opens a connection as for a fetch, waits for the WELCOME of the worker that is meant,
# and fetches as many zeros as a chunk of a bucket may have: there are paths that pass small packets
# and lose large ones, and a WELCOME would come through those.  Both ends of a link probe, so both
# directions carry a payload.  What a broken link is worth is decided by the coordinator.


MAX_PROBES: Final = 16
PROBE_BYTES: Final = 256 * 1024
"""More than any path carries in one packet, whatever a network card puts together."""

MOST_S: Final = 30.0
"""A link that is slower than PROBE_BYTES in this time is no link for training."""


class Probes:
    """Those under way in one worker.

    Args:
        by: its name.
        answered: called with the question and its answer.
    """

    def __init__(self, by: str, answered: Callable[[m.Probe, m.Probed], None]) -> None:
        self._by = by
        self._answered = answered
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, message: m.Probe, *, timeout_s: float) -> None:
        """Try to reach another worker; too many requests at once are not answered."""
        if len(self._tasks) >= MAX_PROBES:
            return
        task = asyncio.create_task(self._answer(message, timeout_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: m.Probe, timeout_s: float) -> None:
        self._answered(message, await probe(message, by=self._by, timeout_s=timeout_s))


async def probe(message: m.Probe, *, by: str, timeout_s: float) -> m.Probed:
    """Call the worker that `message` names, and fetch something from it.

    Args:
        message: names the worker.
        by: this worker's name.
        timeout_s: bound on connecting and on its WELCOME together, and then on every pause.
    """
    call = _Call(by, message)
    loop = asyncio.get_running_loop()
    greeted = False
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: call.link, message.host, message.port)
            answered = await call.welcomed
        greeted = answered == message.name
        reason = "" if greeted else f"{answered} answers there"
        if greeted:
            await _come(call, timeout_s)
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
        if greeted:
            reason = f"it answers, but {PROBE_BYTES >> 10} KiB do not arrive: {reason}"
    except OSError as error:
        reason = error.strerror or str(error)
    except DtdError as error:
        reason = str(error)
    finally:
        call.hang_up()
    return m.Probed(name=message.name, reachable=not reason, reason=reason, greeted=greeted)


async def _come(call: _Call, timeout_s: float) -> None:
    """Wait for the payload as long as more of it comes.

    Raises:
        TimeoutError: nothing comes any more, or too slowly.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + MOST_S
    seen_bytes = -1
    while not call.fetched.done():
        if call.link.received_bytes == seen_bytes or loop.time() > until_s:
            raise TimeoutError
        seen_bytes = call.link.received_bytes
        await asyncio.wait([call.fetched], timeout=timeout_s)
    call.fetched.result()


class _Call:
    """One connection, until the requested bytes have come.

    Attributes:
        welcomed: the answering worker's name.
        fetched: the payload is here.
    """

    def __init__(self, by: str, message: m.Probe) -> None:
        ticket = DataCredential(
            secret=message.ticket_key,
            scope=PROBE_SCOPE,
            expires_s=message.ticket_expires_s,
        )
        role = m.Role.FETCH
        self.link = Link(
            self,
            hello=ticket.hello(role, by),
            secret=ticket.secret,
        )
        loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[str] = loop.create_future()
        self.fetched: asyncio.Future[None] = loop.create_future()
        self._payload = bytearray()

    def hang_up(self) -> None:
        """End the call, in good order where it was answered."""
        done = self.fetched
        if done.done() and not done.cancelled() and not done.exception():
            self.link.send(m.Goodbye())
            self.link.close()
        else:
            self.link.abort()
        for future in (self.welcomed, self.fetched):
            if not future.cancel() and not future.cancelled():
                future.exception()  # told by the other one, or not waited for any more

    # --- LinkHandler -------------------------------------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """The connection is open."""
        link.send(m.FetchOpen(resource=PROBE_SCOPE))
        if not self.welcomed.done():
            self.welcomed.set_result(message.name)

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Memory for the requested bytes."""
        if not isinstance(message, m.FetchData) or payload_bytes != PROBE_BYTES:
            return None
        self._payload = bytearray(payload_bytes)
        return memoryview(self._payload)

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """The resource is open, or its requested bytes are here."""
        if isinstance(message, m.FetchInfo) and not message.more:
            link.send(m.FetchRange(blob=0, offset=0, length=PROBE_BYTES))
        elif isinstance(message, m.FetchData) and not self.fetched.done():
            self.fetched.set_result(None)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """It hung up first."""
        why = error or DtdError("it closed the connection without a reason")
        for future in (self.welcomed, self.fetched):
            if not future.done():
                future.set_exception(why)
