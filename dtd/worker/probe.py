"""Answer PROBEs: whether another worker's data port can be reached from here.

Opens a connection as whoever fetches would, waits for the WELCOME of the worker that is meant, and
closes it.  What a broken link is worth is decided by the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dtd.errors import DtdError
from dtd.net.data_server import PROBE_SCOPE
from dtd.net.handshake import Pass
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import Hold

MAX_PROBES: Final = 16


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
        """Try to reach another worker; who asks for too much at once is not answered."""
        if len(self._tasks) >= MAX_PROBES:
            return
        task = asyncio.create_task(self._answer(message, timeout_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: m.Probe, timeout_s: float) -> None:
        self._answered(message, await probe(message, by=self._by, timeout_s=timeout_s))


async def probe(message: m.Probe, *, by: str, timeout_s: float) -> m.Probed:
    """Call the worker that `message` names.

    Args:
        message: whom.
        by: this worker's name.
        timeout_s: bound on connecting and on its WELCOME together.
    """
    call = _Call(by, message)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: call.link, message.host, message.port)
            answered = await call.answer
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
    except OSError as error:
        reason = error.strerror or str(error)
    except DtdError as error:
        reason = str(error)
    else:
        reason = "" if answered == message.name else f"{answered} answers there"
    finally:
        call.hang_up()
    return m.Probed(name=message.name, reachable=not reason, reason=reason)


class _Call:
    """One connection, until it is answered."""

    def __init__(self, by: str, message: m.Probe) -> None:
        ticket = Pass(
            secret=message.ticket_key,
            scope=PROBE_SCOPE,
            expires_unix_s=message.ticket_expires_unix_s,
        )
        role = m.Role.FETCH
        self.link = Link(
            self,
            Connection(opened=True, role=role),
            hello=ticket.hello(role, by),
            secret=ticket.secret,
        )
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hang_up(self) -> None:
        """End the call, in good order where it was answered."""
        if self.answer.done() and not self.answer.cancelled() and not self.answer.exception():
            self.link.send(m.Goodbye())
            self.link.close()
        else:
            self.link.abort()

    # --- LinkHandler -------------------------------------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """Somebody answered."""
        if not self.answer.done():
            self.answer.set_result(message.name)

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Nothing was asked for."""
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """Nothing was asked for."""

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """It hung up first."""
        if not self.answer.done():
            self.answer.set_exception(error or DtdError("it hung up without a word"))
