"""Which effects wait until a job is written down, and which need not.

What a crash of the coordinator must not make untrue is said after the store has it: an assignment
with its generation, a release with how the job ended.  All else goes out at once, however long the
disk takes: a worker that hears no acknowledgement for a few seconds would take the coordinator for
dead.  On one connection nothing overtakes a message that waits.

A store that is slower than what happens must not fall ever further behind: a job that waits to be
written is written once, as it is by then.

Pure; `dtd.coordinator.effects` and the simulation perform what comes out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from dtd.core.membership.events import Disconnect, Effect, SaveJob, Send
from dtd.wire import messages as m

Note = TypeVar("Note")
About = TypeVar("About")


@dataclass(frozen=True, slots=True)
class Item(Generic[Note, About]):
    """An effect, or a note of the shell's own that keeps its place among them.

    Attributes:
        about: what the shell needs to perform it; of a message, the connection that it goes to.
    """

    effect: Effect | Note
    about: About


class Outbox(Generic[Note, About]):
    """The effects that wait, the write that they wait for first."""

    def __init__(self) -> None:
        self._waiting: deque[Item[Note, About]] = deque()

    def put(self, item: Item[Note, About]) -> list[Item[Note, About]]:
        """Take the next effect; returns what is to be done now.

        A SaveJob that comes out is to be written; `written` says that it was.
        """
        if not self._waiting:
            if isinstance(item.effect, SaveJob):
                self._waiting.append(item)
            return [item]
        if needs_no_store(item.effect) and not self._waits_behind(item):
            return [item]
        if not self._renewed(item):
            self._waiting.append(item)
        return []

    def written(self) -> list[Item[Note, About]]:
        """The job that came out last is written; returns what followed it, to be done now."""
        self._waiting.popleft()
        ready: list[Item[Note, About]] = []
        while self._waiting:
            ready.append(self._waiting[0])
            if isinstance(self._waiting[0].effect, SaveJob):
                break
            self._waiting.popleft()
        return ready

    def _renewed(self, item: Item[Note, About]) -> bool:
        """A write of the same job waits, and may as well write what is newer now.

        It stays before what waits for it, which is as true with more on disk.  One that announces
        a generation is not touched, for it is that generation's, nor the one that is out already.
        """
        if not isinstance(item.effect, SaveJob) or item.effect.announces:
            return False
        for index in range(len(self._waiting) - 1, 0, -1):
            waiting = self._waiting[index].effect
            if isinstance(waiting, SaveJob):
                if waiting.announces or waiting.job.id != item.effect.job.id:
                    return False  # what is older must not be written after what is newer
                self._waiting[index] = item
                return True
        return False

    def _waits_behind(self, item: Item[Note, About]) -> bool:
        """A message on the same connection waits already."""
        if isinstance(item.effect, Send) and isinstance(item.effect.message, m.HeartbeatAck):
            return False  # it means the same at any time
        return any(
            one.about is item.about and isinstance(one.effect, Send) for one in self._waiting
        )


def needs_no_store(effect: object) -> bool:
    """It stays true, or does no harm, if the coordinator forgets why it said so."""
    if isinstance(effect, Disconnect):
        return True
    if not isinstance(effect, Send):
        return False
    message = effect.message
    if isinstance(message, m.Freeze):
        return not message.stop
    if isinstance(message, m.Release):
        return message.state == "evicted"
    return not isinstance(message, m.Assign | m.Prepare)
