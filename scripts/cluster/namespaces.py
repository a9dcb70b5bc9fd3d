"""Kernel namespaces that vanish with this process, whatever becomes of it.

A namespace lives as long as somebody holds it.  Here that is a file descriptor of this process and
the daemons that run inside, which die with this process; so there is nothing to clean up, not even
after SIGKILL, and no run can meet the leftovers of another one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar

Kind = Literal["net", "mnt"]
_FLAGS: Final[dict[Kind, int]] = {"net": 0x40000000, "mnt": 0x00020000}
_CLONE_FS: Final = 0x00000200
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


class Namespace:
    """A new namespace of one kind.

    Raises:
        OSError: this process may not make one.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._fd = in_thread(self._unshare)

    @property
    def path(self) -> str:
        """A path to it, for `nsenter`, `ip` and children of this process."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def wrapped(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` inside, as the same process."""
        option = "--net" if self.kind == "net" else "--mount"
        return ["/usr/bin/nsenter", f"{option}={self.path}", *command]

    def run(self, *command: str) -> None:
        """Run a program inside to its end; raises CalledProcessError with what it said."""
        subprocess.run(self.wrapped(command), check=True, capture_output=True)

    def enter(self) -> None:
        """Move the calling thread, which must end there, inside."""
        if self.kind == "mnt":
            _check(_LIBC.unshare(_CLONE_FS), "unshare")
        _check(_LIBC.setns(self._fd, _FLAGS[self.kind]), "setns")

    def inside(self, function: Callable[[], T]) -> T:
        """Call a function inside; sockets that it opens belong there for good."""

        def call() -> T:
            self.enter()
            return function()

        return in_thread(call)

    def close(self) -> None:
        """Let go of it; it ends with the last process inside."""
        os.close(self._fd)

    def _unshare(self) -> int:
        _check(_LIBC.unshare(_FLAGS[self.kind]), "unshare")
        return os.open(f"/proc/thread-self/ns/{self.kind}", os.O_RDONLY)


def may_make(kind: Kind) -> bool:
    """Whether this process may make namespaces of this kind, and configure them."""
    if os.geteuid() != 0:
        return False
    try:
        Namespace(kind).close()
    except OSError:
        return False
    return True


def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread of its own, which ends with it."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
