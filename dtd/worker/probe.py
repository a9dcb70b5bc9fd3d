"""Answer a PROBE: whether another worker's data port can be reached from here.

Opens a connection as whoever fetches would, waits for the WELCOME of the worker that is meant, and
closes it.  What a broken link is worth is decided by the coordinator.
"""

from __future__ import annotations

import asyncio

from dtd import __version__
from dtd.errors import DtdError
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Hold


async def probe(message: m.Probe, *, by: str, timeout_s: float) -> m.Probed:
    """Call the worker that `message` names.

    Args:
        message: whom.
        by: this worker's name.
        timeout_s: bound on connecting and on its WELCOME together.
    """
    call = _Call(by)
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

    def __init__(self, by: str) -> None:
        hello = m.Hello(
            role=m.Role.FETCH,
            name=by,
            protocol_min=PROTOCOL_VERSION,
            protocol_max=PROTOCOL_VERSION,
            version=__version__,
            max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES,
        )
        self.link = Link(self, Connection(opened=True, role=m.Role.FETCH), hello=hello)
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
