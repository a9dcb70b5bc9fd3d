"""Notifications to the service manager: systemd's sd_notify(3), without its library.

A daemon under systemd finds the path of a datagram socket in NOTIFY_SOCKET and says there that it
is ready, what it is doing, that its event loop is running, and that it is stopping.  Without the
variable nothing is sent.  Sending never blocks: a message for which the manager has no room is
dropped, because training must not wait for a display.

A worker that replaces its process keeps pid and environment, so the next READY=1 comes from the
same main process: systemd takes it for what it is, no news.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

from dtd.text.shown import one_line

STATUS_EVERY_S: Final = 1.0
MAX_STATUS_CHARACTERS: Final = 500


class Notifier:
    """Sends notifications to the service manager, if there is one.

    Args:
        address: path of its socket; "@" begins an abstract one; empty: there is none.
        watchdog_s: silence in seconds after which the manager kills the process; 0: never.
    """

    def __init__(self, address: str = "", *, watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._status = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Notifier:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, the process that is watched."""
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        watched = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        microseconds = environ.get("WATCHDOG_USEC", "")
        known = watched and microseconds.isascii() and microseconds.isdigit()
        return cls(address, watchdog_s=int(microseconds) / 1e6 if known else 0.0)

    def ready(self) -> None:
        """The daemon accepts connections; sent again after a restart in place."""
        self._tell("READY=1")

    def status(self, text: str) -> None:
        """Set the daemon's status for `systemctl status`; sent only when it has changed."""
        line = one_line(" ".join(text.split()), MAX_STATUS_CHARACTERS)
        if line != self._status and self._tell(f"STATUS={line}"):
            self._status = line

    def watchdog(self) -> bool:
        """Report that the event loop is running; returns whether the manager accepted it."""
        return self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon is stopping, and will not continue in this process."""
        self._tell("STOPPING=1")

    def extend(self, time_s: float) -> None:
        """Ask for this much time until the daemon has stopped, whatever its TimeoutStopSec= is."""
        self._tell(f"EXTEND_TIMEOUT_USEC={round(time_s * 1e6)}")

    async def keep(self, describe: Callable[[], str]) -> None:
        """Until cancelled, feed the watchdog at half its time, and tell the status every second.

        Both are done by the event loop that does the daemon's work: if it hangs, they end.
        """
        if self._address:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_status(describe))
                tasks.create_task(self._keep_watchdog())

    async def _keep_status(self, describe: Callable[[], str]) -> None:
        while True:
            self.status(describe())
            await asyncio.sleep(STATUS_EVERY_S)

    async def _keep_watchdog(self) -> None:
        while self._watchdog_s > 0:
            taken = self.watchdog()
            # A busy manager takes nothing for a moment; a second miss would end this process.
            await asyncio.sleep(self._watchdog_s / 2 if taken else STATUS_EVERY_S)

    def _tell(self, text: str) -> bool:
        """Whether the manager has taken it; never blocks."""
        if not self._address:
            return False
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as speaker,
        ):
            speaker.sendto(text.encode("utf-8", "replace"), self._address)
            return True
        return False
