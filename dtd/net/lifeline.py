"""Signals the death of this process to its neighbours at once.

When a process is killed the kernel first frees its memory and only then closes its sockets. With
torch in memory that takes 50 ms, on a busy machine three times as long, with a GPU longer still;
during that time no peer notices. A thread with its own table of file descriptors ends earlier: its
sockets are closed as soon as it ends, a few milliseconds after the kill. So one thread does nothing
but hold an idle connection to each ring neighbour.

The lifeline is only a hint: a ring without lifelines works as well, and notices a death when its
links are reset.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import queue
import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dtd.address import Address
from dtd.errors import DtdError
from dtd.net.blocking_link import BlockingLink, Connect, connect_tcp
from dtd.net.tls import tls_connect
from dtd.security.identity import WORKER
from dtd.wire import messages as m
from dtd.wire.greeting import DataCredential

_SYS_CLOSE_RANGE: Final = 436  # same number on all architectures; Linux 5.9
_CLOSE_RANGE_UNSHARE: Final = 2
_FIRST_PRIVATE: Final = 3
_ALL: Final = 0xFFFFFFFF
_FIRST_NUMBER: Final = 600
"""Numbers of this thread's descriptors: far from those of the process, to avoid confusion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The connections to hold."""

    targets: Sequence[Address]
    name: str
    entry: DataCredential
    context: ssl.SSLContext | None
    timeout_s: float


class Lifeline(threading.Thread):
    """Holds connections that end with the process.  One instance per process."""

    def __init__(self) -> None:
        super().__init__(name="lifeline", daemon=True)
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._held: list[BlockingLink] = []

    def hold(
        self,
        targets: Sequence[Address],
        *,
        name: str,
        entry: DataCredential,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Connect to `targets` as `name`; earlier connections are closed."""
        self._orders.put(
            _Order(
                targets=tuple(targets),
                name=name,
                entry=entry,
                context=context,
                timeout_s=timeout_s,
            )
        )

    def run(self) -> None:
        """Follow orders until the process ends."""
        if not _own_descriptors():
            return
        while True:
            order = self._orders.get()
            collects = gc.isenabled()
            # A garbage collection in this thread could close other threads' descriptors, by number.
            gc.disable()
            try:
                self._obey(order)
            finally:
                if collects:
                    gc.enable()

    def _obey(self, order: _Order) -> None:
        for link in self._held:
            link.close()
        made = [_greet(target, order) for target in order.targets]
        self._held = [link for link in made if link is not None]


def _greet(target: Address, order: _Order) -> BlockingLink | None:
    connect: Connect = _connect_far
    if order.context is not None:
        connect = tls_connect(order.context, WORKER, under=_connect_far)
    try:
        return BlockingLink(
            target,
            role=m.Role.LIFELINE,
            name=order.name,
            timeout_s=order.timeout_s,
            entry=order.entry,
            connect=connect,
        )
    except (OSError, DtdError):
        return None


def _connect_far(target: Address, timeout_s: float) -> socket.socket:
    with connect_tcp(target, timeout_s) as made:
        number = fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_NUMBER)
    link = socket.socket(fileno=number)
    link.settimeout(timeout_s)
    return link


def _own_descriptors() -> bool:
    """Give this thread its own descriptor table, empty except for the standard streams."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(
        ctypes.c_long(_SYS_CLOSE_RANGE),
        ctypes.c_uint(_FIRST_PRIVATE),
        ctypes.c_uint(_ALL),
        ctypes.c_uint(_CLOSE_RANGE_UNSHARE),
    )
    return int(result) == 0
