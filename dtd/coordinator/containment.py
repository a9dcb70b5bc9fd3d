"""Limits internal errors of the coordinator to the connection whose message caused them.

No message from a peer may end this process, even if a check is missing.  So an exception that
nobody expected is caught here and nowhere else: it costs that peer its connection, is told as the
incident `internal_error` and logged with its traceback, and the daemon goes on.  What a peer did
wrong by the protocol (ProtocolError) is not meant: that ends its connection anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import structlog

from dtd.errors import ErrorCode, ProtocolError, RequestRefused
from dtd.net.link import Link
from dtd.net.rates import Allowance
from dtd.text.shown import one_line

log = structlog.get_logger()

# --- recent refusals and their reasons, so that a flood does not fill the log ------------------
#
# What an operator is told of it is in `dtd.cluster.status`.


MAX_REFUSALS: Final = 32
LOG_EVERY_S: Final = 60.0
MAX_LOGGED_PER_S: Final = 1.0
LOG_BURST: Final = 16.0


class Refusals:
    """Times of the last logged refusals, or failures, by place and reason; the oldest first."""

    def __init__(self) -> None:
        self._logged_s: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._may_log = Allowance(MAX_LOGGED_PER_S, LOG_BURST)

    def note(self, place: str, reason: str, now: float) -> bool:
        """Take one down; returns whether it should be logged."""
        logged_s = self._logged_s.pop((place, reason), None)
        due = logged_s is None or now - logged_s >= LOG_EVERY_S
        # The log grows by this much only, however many hosts connect.
        logs = due and self._may_log.takes(1, now)
        self._logged_s[place, reason] = now if logs or logged_s is None else logged_s
        while len(self._logged_s) > MAX_REFUSALS:
            self._logged_s.popitem(last=False)
        return logs


# --- internal errors -----------------------------------------------------------------------------


AGAIN_AFTER_S: Final = 1.0
"""A loop that must not end begins again so long after it failed."""

MAX_CAUSE_CHARACTERS: Final = 200
REMEDY: Final = "its log has the traceback, at `internal_error_traceback`: report it"


class Containment:
    """Catches errors of this process."""

    def __init__(self, now: Callable[[], float], incident: Callable[..., None]) -> None:
        self._now = now
        self.incident = incident
        self._told = Refusals()

    @contextlib.contextmanager
    def around(self, doing: str, link: Link | None = None, *, worker: str = "") -> Iterator[None]:
        """Close `link` on any unexpected exception; protocol errors and refusals propagate."""
        try:
            yield
        except (ProtocolError, RequestRefused):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends here
            self.failed(error, doing, link, worker=worker)

    def failed(
        self, error: BaseException, doing: str, link: Link | None = None, *, worker: str = ""
    ) -> None:
        """Report an error, and close the connection that it came from."""
        where, cause = _place(error), one_line(f"{type(error).__name__}: {error}")
        cause = cause[:MAX_CAUSE_CHARACTERS]
        if self._told.note(where, type(error).__name__, self._now()):
            log.error("internal_error_traceback", doing=doing, cause=cause, exc_info=error)
            said = f"{worker or 'the coordinator'}: {doing} failed at {where}: {cause}"
            self.incident("internal_error", said, worker=worker)
        if link is not None:
            why = f"the coordinator failed at {doing}"
            link.fail(ProtocolError(ErrorCode.INTERNAL, why, remedy=REMEDY))

    async def forever(self, doing: str, run: Callable[[], Awaitable[None]]) -> None:
        """Await `run`, and begin it again whenever it fails."""
        while True:
            try:
                await run()
                return
            except Exception as error:  # noqa: BLE001 - as above
                self.failed(error, doing)
            await asyncio.sleep(AGAIN_AFTER_S)

    def stray(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Handle an exception of a callback or a task that nothing waits for."""
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
