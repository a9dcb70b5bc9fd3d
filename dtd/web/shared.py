"""Answers that several viewers ask for at once, looked up once for all of them.

All who may log in may read these (`dtd.security.permissions.VIEWER_MAY`), so an answer does not
depend on the caller.  Twenty pages that draw the same curves cost the store one query.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from dtd.web.json_pieces import encoded
from dtd.wire import messages as m

FRESH_S: Final = 2.0
MAX_KEPT: Final = 64

Look = Callable[[m.Message], Awaitable[dict[str, Any]]]


@dataclass(slots=True)
class _Kept:
    task: asyncio.Task[bytes]
    until_s: float = 0.0


class SharedAnswers:
    """Recent answers as JSON.

    Args:
        look: asks the coordinator with the rights that all callers here have.
    """

    def __init__(self, look: Look) -> None:
        self.look = look
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def body(self, message: m.Message) -> bytes:
        """The answer to a request that changes nothing, at most `FRESH_S` old.

        Raises:
            DtdError: it cannot be answered.
        """
        return await self.made(repr(message), lambda: self._answer(message))

    async def made(self, key: str, make: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Return the recent answer for this key, or make one now.

        Raises:
            DtdError: it cannot be made.
        """
        clock = asyncio.get_running_loop().time
        now_s = clock()
        kept = self._kept.get(key)
        if kept is None or (kept.task.done() and now_s >= kept.until_s):
            kept = self._kept[key] = _Kept(asyncio.create_task(make()))
            kept.task.add_done_callback(lambda task: _settle(kept, task, clock() + FRESH_S))
            self._kept.move_to_end(key)
            self._forget()
        return await asyncio.shield(kept.task)

    async def _answer(self, message: m.Message) -> bytes:
        return await encoded(await self.look(message))

    def _forget(self) -> None:
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def close(self) -> None:
        """Answer no more."""
        for kept in self._kept.values():
            kept.task.cancel()
        self._kept.clear()


def _settle(kept: _Kept, task: asyncio.Task[bytes], until_s: float) -> None:
    """A failure is told to those who wait for it, and not kept."""
    if not task.cancelled() and task.exception() is None:
        kept.until_s = until_s
