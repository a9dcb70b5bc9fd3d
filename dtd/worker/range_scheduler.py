"""Schedules the ranges of a state that several threads fetch from several donors.

Ranges are taken one by one, so a fast donor gives more than a slow one, and what a lost donor was
asked for goes back to be taken by the others.  Holds no socket but a set of links to cut: once
`cut` has returned, no_progress writes into the state's memory any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dtd.errors import DtdError, ErrorCode, ProtocolError

RANGE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Range:
    """A part of one blob."""

    blob: int
    offset: int
    length: int


class Cuttable(Protocol):
    """A link that another thread can end."""

    def abort(self) -> None:
        """Raise an error in all threads that block on it."""
        ...


class RangeScheduler:
    """Shared state of the thread that wants a state and those that fetch it.

    Attributes:
        views: memory of every blob, once it has been named.
    """

    def __init__(self, threads: int) -> None:
        self.views: Sequence[memoryview] = ()
        self._changed = threading.Condition()
        self._threads = threads
        self._links: set[Cuttable] = set()
        self._manifest: bytes | None = None
        self._placed = False
        self._missing: deque[Range] = deque()
        self._lacking = 0
        self._over = False

    # --- the thread that wants the state -----------------------------------------------------

    def manifest(self) -> bytes | None:
        """Wait for the manifest; None when nobody is left to give it."""
        self._wait_for(lambda: self._manifest is not None or self._hopeless)
        return self._manifest

    def receive_into(self, views: Sequence[memoryview]) -> bool:
        """Wait until these are filled; False when nobody is left to fill them."""
        ranges = [
            Range(blob, offset, min(RANGE_BYTES, len(view) - offset))
            for blob, view in enumerate(views)
            for offset in range(0, len(view), RANGE_BYTES)
        ]
        with self._changed:
            self.views, self._placed = views, True
            self._missing.extend(ranges)
            self._lacking = len(ranges)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._lacking or self._hopeless)
            return not self._lacking

    def stop(self) -> None:
        """Let no thread begin another range, and cut its links; from any thread."""
        with self._changed:
            self._over = True
            links = tuple(self._links)
            self._changed.notify_all()
        for link in links:
            link.abort()

    def cut(self) -> None:
        """Stop, and wait until nobody touches the memory any more; it is let go of."""
        self.stop()
        self._wait_for(lambda: not self._links)
        self.views = ()  # the ring keeps `stop`, and so this object, until the generation ends

    @property
    def _hopeless(self) -> bool:
        return self._over or not self._threads

    # --- the threads that fetch ----------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Nothing more is wanted."""
        return self._over

    def enter(self, link: Cuttable) -> None:
        """A link is about to be used.

        Raises:
            DtdError: nothing is wanted any more.
        """
        with self._changed:
            if self._over:
                raise _not_wanted()
            self._links.add(link)

    def leave(self, link: Cuttable, asked: Sequence[Range]) -> None:
        """A link will not be used any more, and these ranges have not come on it."""
        with self._changed:
            self._missing.extendleft(reversed(asked))
            self._links.discard(link)
            self._changed.notify_all()

    def end_thread(self) -> None:
        """One thread less."""
        with self._changed:
            self._threads -= 1
            self._changed.notify_all()

    def agree(self, manifest: bytes) -> None:
        """A donor's manifest is here; wait for the memory of its blobs.

        Raises:
            ProtocolError: it is not the same as the first donor's.
            DtdError: nothing is wanted any more.
        """
        with self._changed:
            if self._manifest is None:
                self._manifest = manifest
                self._changed.notify_all()
            if manifest != self._manifest:
                raise ProtocolError(
                    ErrorCode.BAD_PAYLOAD, "its state is not the one that the first donor offered"
                )
            self._changed.wait_for(lambda: self._placed or self._over)
            if self._over:
                raise _not_wanted()

    def take(self, *, wait: bool) -> Range | None:
        """A range to ask for; None when there is none, after `wait` because all have come."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._missing or not self._lacking or self._over)
            return self._missing.popleft() if self._missing and not self._over else None

    def received(self) -> None:
        """One range has come."""
        with self._changed:
            self._lacking -= 1
            if not self._lacking:
                self._changed.notify_all()

    def _wait_for(self, here: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(here)


def _not_wanted() -> DtdError:
    return DtdError("the state is no longer needed")
