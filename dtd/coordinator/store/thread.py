"""The thread that all blocking calls to the store run in, one at a time, urgent ones first.

Writing a job (for which a generation waits) and revoking a credential come first, then incidents
and operators' reads, then printed lines and requests of unauthenticated callers, which are the most
numerous.  Within each class calls run in the order of submission; callers of the last class bound
how many of them wait.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import itertools
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import structlog

log = structlog.get_logger()

T = TypeVar("T")

SLOW_S: Final = 2.0
"""Training goes on while one call lasts; what is decided meanwhile, new generations, waits."""


class Turn(enum.IntEnum):
    """Priority classes, the most urgent first."""

    URGENT = 0
    ORDINARY = 1
    PATIENT = 2


_LAST: Final = len(Turn)


class StoreThread:
    """Runs functions in a thread of its own.

    Args:
        failed: told of an error that is no disk's, by a call that nothing waits for; in any thread.

    Attributes:
        failures: calls that the disk, or the file on it, has failed.
        failure: why the last call failed; empty when it did not.
    """

    def __init__(self, failed: Callable[[BaseException], object] = lambda _error: None) -> None:
        self._failed = failed
        self._calls: queue.PriorityQueue[tuple[int, int, Callable[[], None]]]
        self._calls = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closed = False
        self.failures = 0
        self.failure = ""
        self._begun_s: float | None = None
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    async def run(
        self, function: Callable[..., T], *arguments: Any, turn: Turn = Turn.ORDINARY
    ) -> T:
        """Have a function run and return its result."""
        return await asyncio.wrap_future(self._submit(turn, function, arguments))

    def later(
        self, function: Callable[..., object], *arguments: Any, turn: Turn = Turn.ORDINARY
    ) -> None:
        """Have a function run without waiting for it; failures are told."""
        future = self._submit(turn, function, arguments)
        future.add_done_callback(self._tell_failure)

    def complaint(self) -> str:
        """Why the disk is unreliable; empty when it is not."""
        begun_s = self._begun_s
        lasts_s = 0.0 if begun_s is None else time.monotonic() - begun_s
        return self.failure or (f"one write lasts over {SLOW_S:g} s" if lasts_s > SLOW_S else "")

    async def close(self, last: Callable[[], object]) -> None:
        """Run what was asked for, then `last`, then end."""
        future = self._submit(_LAST, last, ())
        self._closed = True
        await asyncio.wrap_future(future)
        self._thread.join()

    def _submit(
        self, rank: int, function: Callable[..., T], arguments: tuple[Any, ...]
    ) -> Future[T]:
        if self._closed:
            raise RuntimeError("the store is closed")
        future: Future[T] = Future()
        call = functools.partial(self._call, future, function, arguments)
        self._calls.put((rank, next(self._numbers), call))
        return future

    def _tell_failure(self, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, OSError | sqlite3.Error):
            log.error("store_failed", error=str(error))
        elif error is not None:
            self._failed(error)

    def _work(self) -> None:
        rank = -1
        while rank != _LAST:
            rank, _number, call = self._calls.get()
            call()

    def _call(
        self, future: Future[T], function: Callable[..., T], arguments: tuple[Any, ...]
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._begun_s = time.monotonic()
        try:
            result = function(*arguments)
            self.failure = ""
            future.set_result(result)
        except (OSError, sqlite3.Error) as error:
            self.failures += 1
            self.failure = str(error)
            future.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            future.set_exception(error)
        self._begun_s = None
