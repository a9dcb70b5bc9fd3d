"""A child process of the coordinator that passes figures on to a tracking library.

Such libraries are large, start threads and processes, print, and wait for servers: the coordinator
shall neither import them nor wait for them.  Entries come as lines on stdin, remarks go as lines to
stdout, and what the library prints goes nowhere: it may contain addresses and passwords.  End of
input ends the process.

    coordinator --lines--> main thread --bounded queue--> delivery thread --> sink --> server
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from dtd.observe.sinks.entries import Began, Ended, Entry, Figures, from_line

MODULES: Final[Mapping[str, str]] = {
    "mlflow": "dtd.observe.sinks.mlflow",
    "wandb": "dtd.observe.sinks.wandb",
}
MAX_WAITING: Final = 5000
MAX_BATCH: Final = 200
BATCH_EVERY_S: Final = 1.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
_CODE: Final = re.compile(r"[A-Z][A-Z_]{1,63}")
_MOST_CAUSES: Final = 8
LAST_WORDS_S: Final = 3.0
"""Seconds that the end of the process waits for entries that are not delivered yet."""


class Sink(Protocol):
    """One tracking library.  Methods may raise anything; each is called from one thread."""

    def begin(self, entry: Began) -> None:
        """Begin a run of a job, or continue the one that there is."""
        ...

    def figures(self, job: str, entries: Sequence[Figures]) -> None:
        """Add figures to a job's run."""
        ...

    def end(self, entry: Ended) -> None:
        """Close a job's run; one that this process did not begin may be unknown."""
        ...

    def may_pass(self, error: Exception) -> bool:
        """Whether a retry may succeed, as when a server is unreachable."""
        ...

    def close(self) -> None:
        """Finish; no entry follows."""
        ...


class Delivery:
    """The queue of entries and the thread that delivers them, in order.

    Args:
        sink: the library.
        say: takes remarks: a `state` (failing, works, refused), `why`, and how many were `dropped`.
    """

    def __init__(self, sink: Sink, say: Callable[[dict[str, Any]], None]) -> None:
        self._sink = sink
        self._say = say
        self._waiting: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._begun: set[str] = set()
        self._failing = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Queue an entry; if the queue is full, the oldest figures are dropped."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                places = (i for i, one in enumerate(self._waiting) if _is_figures(one))
                del self._waiting[next(places, 0)]
                self.dropped += 1
            self._waiting.append(entry)
            self._changed.notify()

    def close(self, within_s: float = LAST_WORDS_S) -> None:
        """Deliver queued entries, within a time limit."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(within_s)

    # --- in the delivery thread ----------------------------------------------------------------

    def _run(self) -> None:
        served: set[str] = set()
        while (job := self._next_job()) is not None:
            if job in served:  # what comes in meanwhile goes along
                self._closing.wait(BATCH_EVERY_S)
                served.clear()
            batch = self._take()
            self._deliver(batch)
            if isinstance(batch[0], Figures):
                served.add(job)
        self._attempt(self._sink.close)

    def _next_job(self) -> str | None:
        """Return the job of the oldest entry; None if the queue is empty and closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
            return self._waiting[0].job if self._waiting else None

    def _take(self) -> list[Entry]:
        """Remove the oldest entry, merged with the job's figures that follow it.

        Other jobs' entries may lie between: those run beside it, and their order does not matter.
        """
        with self._changed:
            batch = [self._waiting.popleft()]
            job, stays = batch[0].job, deque[Entry]()
            takes = _is_figures(batch[0])
            while takes and self._waiting and len(batch) < MAX_BATCH:
                entry = self._waiting.popleft()
                if entry.job == job and _is_figures(entry):
                    batch.append(entry)
                    continue
                stays.append(entry)
                takes = entry.job != job
            self._waiting.extendleft(reversed(stays))
        return batch

    def _deliver(self, batch: Sequence[Entry]) -> None:
        pause_s = FIRST_PAUSE_S
        while (error := self._attempt(lambda: self._pass_on(batch))) is not None:
            passes = self._sink.may_pass(error)
            if passes and not self._closing.is_set():
                self._tell("failing", error)
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            self.dropped += len(batch)
            self._tell("failing" if passes else "refused", error)
            return
        if self._failing:
            self._failing = False
            self._say({"state": "works", "dropped": self.dropped})

    def _pass_on(self, batch: Sequence[Entry]) -> None:
        first = batch[0]
        if isinstance(first, Began):
            self._sink.begin(first)
            self._begun.add(first.job)
        elif isinstance(first, Ended):
            self._begun.discard(first.job)
            self._sink.end(first)
        elif first.job in self._begun:
            self._sink.figures(first.job, [one for one in batch if isinstance(one, Figures)])
        else:
            self.dropped += len(batch)

    @staticmethod
    def _attempt(action: Callable[[], None]) -> Exception | None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a library may raise anything
            return error
        return None

    def _tell(self, state: str, error: Exception) -> None:
        if state == "refused" or not self._failing:
            self._say({"state": state, "why": reason(error), "dropped": self.dropped})
        self._failing = self._failing or state == "failing"


def _is_figures(entry: Entry) -> bool:
    return isinstance(entry, Figures)


def reason(error: BaseException) -> str:
    """Kinds of an error and of its causes; never its text, which may name addresses and secrets."""
    words, seen = [], 0
    cause: BaseException | None = error
    while cause is not None and seen < _MOST_CAUSES:
        code = str(getattr(cause, "error_code", ""))
        more = os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno else ""
        more = more or (code if _CODE.fullmatch(code) else "")
        words.append(type(cause).__name__ + (f" ({more})" if more else ""))
        cause, seen = cause.__cause__ or cause.__context__, seen + 1
    return ", from ".join(words)


def main() -> int:
    """Serve until stdin ends; returns 0."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the coordinator says when it is over
        signal.signal(number, signal.SIG_IGN)
    remarks = os.fdopen(os.dup(1), "wb", buffering=0)
    lines = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "r+b") as nowhere:  # noqa: PTH123 - a descriptor is what is needed
        for descriptor in (0, 1, 2):
            os.dup2(nowhere.fileno(), descriptor)
    lock = threading.Lock()

    def say(remark: dict[str, Any]) -> None:
        with lock:
            remarks.write(json.dumps(remark).encode() + b"\n")

    settings = json.loads(lines.readline())
    try:
        sink: Sink = importlib.import_module(MODULES[settings["sink"]]).make(settings)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is said
        say({"state": "broken", "why": reason(error), "dropped": 0})
        return 1
    say({"state": "ready", "dropped": 0})
    delivery = Delivery(sink, say)
    for line in lines:
        delivery.put(from_line(line))
    delivery.close()
    sys.stdout.flush()
    os._exit(0)  # a library's threads and atexit handlers may wait for a server


if __name__ == "__main__":
    sys.exit(main())
