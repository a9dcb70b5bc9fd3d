"""Where the coordinator's own errors end: at the connection whose message brought one about.

Nothing that a peer says may end this process, whatever has been overlooked.  So an exception that
nobody expected is caught here and nowhere else: it costs that peer its connection, is told as the
incident `internal_error` and logged with its traceback, and the daemon goes on.  What a peer did
wrong by the protocol (ProtocolError) is not meant: that ends its connection anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol

import structlog

from dtd.coordinator.refusals import Refusals
from dtd.errors import ErrorCode, ProtocolError, RequestRefused
from dtd.net.link import Link
from dtd.shown import one_line

log = structlog.get_logger()

AGAIN_AFTER_S: Final = 1.0
"""A loop that must not end begins again so long after it failed."""

MAX_CAUSE_CHARACTERS: Final = 200
REMEDY: Final = "its log has the traceback, at `internal_error_traceback`: report it"


class Teller(Protocol):
    """Whoever tells operators what has happened."""

    def incident(self, kind: str, message: str, *, worker: str = "") -> None:
        """Something for an operator to read."""
        ...


class Containment:
    """Catches errors of this process.

    Args:
        now: the clock of the daemon, in seconds.
        teller: takes incidents.

    Attributes:
        errors: how many there have been, told or not.
    """

    def __init__(self, now: Callable[[], float], teller: Teller) -> None:
        self._now = now
        self._teller = teller
        self._told = Refusals()
        self.errors = 0

    @contextlib.contextmanager
    def around(self, doing: str, link: Link | None = None, *, worker: str = "") -> Iterator[None]:
        """What fails within costs `link` its connection; the answers of a protocol pass.

        Args:
            doing: what is done, for people.
            link: whose message it is about, if anybody's.
            worker: who that is.
        """
        try:
            yield
        except (ProtocolError, RequestRefused):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends here
            self.failed(error, doing, link, worker=worker)

    def failed(
        self, error: BaseException, doing: str, link: Link | None = None, *, worker: str = ""
    ) -> None:
        """Tell of an error, and close the connection that it came from."""
        self.errors += 1
        where, cause = _place(error), one_line(f"{type(error).__name__}: {error}")
        cause = cause[:MAX_CAUSE_CHARACTERS]
        if self._told.note(where, type(error).__name__, self._now()):
            log.error("internal_error_traceback", doing=doing, cause=cause, exc_info=error)
            said = f"{worker or 'the coordinator'}: {doing} failed at {where}: {cause}"
            self._teller.incident("internal_error", said, worker=worker)
        if link is not None:
            why = f"the coordinator failed at {doing}"
            link.fail(ProtocolError(ErrorCode.INTERNAL, why, remedy=REMEDY))

    async def forever(self, doing: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run what must not end; it begins again when it has failed."""
        while True:
            try:
                await run()
                return
            except Exception as error:  # noqa: BLE001 - as above
                self.failed(error, doing)
            await asyncio.sleep(AGAIN_AFTER_S)

    def stray(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """What was raised in a callback or a task that nobody waits for."""
        error, protocol = context.get("exception"), context.get("protocol")
        if not isinstance(error, Exception):
            loop.default_exception_handler(context)
            return
        link = protocol if isinstance(protocol, Link) else None
        self.failed(error, str(context.get("message", "a callback")), link)


def _place(error: BaseException) -> str:
    """FILE:LINE of ours that is nearest to where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "/dtd/" in one.filename and one.filename != __file__]
    ours = ours or list(frames)
    return f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno}" if ours else "?"
