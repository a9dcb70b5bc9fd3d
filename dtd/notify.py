"""What the service manager is told: sd_notify(3) of systemd, without its library.

A daemon under systemd finds the path of a datagram socket in NOTIFY_SOCKET and says there that it
is ready, what it does, that its event loop turns, and that it ends.  Without the variable nothing
is said.  Nor is anything waited for: a word that the manager has no room for is dropped, because
no training stops for the sake of a display.

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

from dtd.shown import one_line

STATUS_EVERY_S: Final = 1.0
MAX_STATUS_CHARACTERS: Final = 500


class Notifier:
    """Speaks to the service manager, if there is one.

    Args:
        address: path of its socket; "@" begins an abstract one; empty: there is none.
        watchdog_s: it kills a process of which it hears nothing for so long; 0: it does not.
    """

    def __init__(self, address: str = "", *, watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._status = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Notifier:
        """As NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say; the last names who is watched."""
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        watched = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        microseconds = environ.get("WATCHDOG_USEC", "")
        known = watched and microseconds.isascii() and microseconds.isdigit()
        return cls(address, watchdog_s=int(microseconds) / 1e6 if known else 0.0)

    def ready(self) -> None:
        """The daemon can be called; said again after a restart in place, which does no harm."""
        self._tell("READY=1")

    def status(self, text: str) -> None:
        """What the daemon does, for `systemctl status`; said only when it has changed."""
        line = one_line(" ".join(text.split()), MAX_STATUS_CHARACTERS)
        if line != self._status and self._tell(f"STATUS={line}"):
            self._status = line

    def watchdog(self) -> bool:
        """The event loop turns; whether the manager has taken that."""
        return self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon ends, and will not be back in this process."""
        self._tell("STOPPING=1")

    async def keep(self, describe: Callable[[], str]) -> None:
        """Until cancelled, feed the watchdog at half its time, and tell the status every second.

        Both are done by the event loop that does the daemon's work: if it hangs, they end.

        Args:
            describe: what the daemon does, in one line.
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
