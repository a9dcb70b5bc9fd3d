"""A blocking connection whose time-outs are played, so that no machine is too slow for them."""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Callable

LOOK_AGAIN_S = 0.01
ANY_BYTES = 1 << 30


class PlayedSocket(socket.socket):
    """A connection on which time passes only as a test says.

    Args:
        connected: is replaced by this one.
        pause_s: how long every read takes.
        read_bytes: the most that one read returns.
        is_silent: asked while nothing can be read; once it is true, a limit has passed.

    Attributes:
        now_s: time that has passed.
        reads: how often something was read.
    """

    def __init__(
        self,
        connected: socket.socket,
        *,
        pause_s: float = 0.0,
        read_bytes: int = ANY_BYTES,
        is_silent: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(fileno=connected.detach())
        super().settimeout(None)
        self.now_s = 0.0
        self.reads = 0
        self._limit_s: float | None = None
        self._pause_s = pause_s
        self._read_bytes = read_bytes
        self._is_silent = is_silent

    def settimeout(self, value: float | None, /) -> None:
        self._limit_s = value

    def gettimeout(self) -> float | None:
        return self._limit_s

    def recv_into(self, buffer: memoryview) -> int:  # type: ignore[override]
        limit_s = math.inf if self._limit_s is None else self._limit_s
        if limit_s < self._pause_s:
            self.now_s += limit_s
            raise TimeoutError
        while not select.select([self], [], [], LOOK_AGAIN_S)[0]:
            if limit_s < math.inf and self._is_silent():
                raise TimeoutError
        self.now_s += self._pause_s
        self.reads += 1
        return super().recv_into(buffer[: self._read_bytes])
