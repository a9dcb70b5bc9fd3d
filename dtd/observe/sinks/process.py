"""A child process of the coordinator that passes figures on to a tracking library.

Such libraries are large, start threads and processes, print, and wait for servers: the coordinator
shall neither import them nor wait for them.  Entries come as lines on stdin, remarks go as lines to
stdout, and what the library prints goes nowhere: it may contain addresses and passwords.  End of
input ends the process.  While a server does not answer, nothing is read: entries wait in the pipe,
and beyond that in the coordinator, which bounds them (`dtd.observe.sinks.trackers`) and ends a
process that does not end in time.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedReader
from typing import Any, Final, Protocol

from dtd.observe.sinks.entries import Began, Ended, Entry, Figures, from_line

MODULES: Final[Mapping[str, str]] = {
    "mlflow": "dtd.observe.sinks.mlflow",
    "wandb": "dtd.observe.sinks.wandb",
}
READ_BYTES: Final = 64 * 1024
BATCH_EVERY_S: Final = 1.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
_CODE: Final = re.compile(r"[A-Z][A-Z_]{1,63}")
_MOST_CAUSES: Final = 8


class Sink(Protocol):
    """One tracking library.  Methods may raise anything."""

    def begin(self, entry: Began) -> None:
        """Begin a run of a job, or continue the one that there is."""

    def figures(self, job: str, entries: Sequence[Figures]) -> None:
        """Add figures to a job's run."""

    def end(self, entry: Ended) -> None:
        """Close a job's run; one that this process did not begin may be unknown."""

    def may_pass(self, error: Exception) -> bool:
        """Whether a retry may succeed, as when a server is unreachable."""

    def close(self) -> None:
        """Finish; no entry follows."""


class Delivery:
    """Passes entries on to a library; figures of a job that its process did not begin are dropped.

    `say` takes remarks: a `state` (failing, works, refused), `why`, and how many were `dropped`.
    """

    def __init__(self, sink: Sink, say: Callable[[dict[str, Any]], None]) -> None:
        self._sink = sink
        self._say = say
        self._begun: set[str] = set()
        self._failing = False
        self.dropped = 0

    def deliver(self, batch: Sequence[Entry]) -> None:
        """Pass on one of the `batches`, again and again while a retry may succeed."""
        pause_s = FIRST_PAUSE_S
        while (error := self._failure(batch)) is not None:
            if not self._sink.may_pass(error):
                self.dropped += len(batch)
                self._say({"state": "refused", "why": reason(error), "dropped": self.dropped})
                return
            if not self._failing:
                self._say({"state": "failing", "why": reason(error), "dropped": self.dropped})
            self._failing = True
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if self._failing:
            self._failing = False
            self._say({"state": "works", "dropped": self.dropped})

    def _failure(self, batch: Sequence[Entry]) -> Exception | None:
        try:
            self._pass_on(batch)
        except Exception as error:  # noqa: BLE001 - a library may raise anything
            return error
        return None

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


def batches(stream: BufferedReader) -> Iterator[list[Entry]]:
    """Yield all that has come in, job by job: begins and ends alone, figures between them together.

    The order of two jobs' entries does not matter; that of one job's stays.
    """
    rest = b""
    while more := stream.read1(READ_BYTES):
        *lines, rest = (rest + more).split(b"\n")
        entries = sorted(map(from_line, lines), key=lambda entry: entry.job)
        for _, batch in itertools.groupby(entries, _together):
            yield list(batch)
        time.sleep(BATCH_EVERY_S)  # what comes in meanwhile goes along


def _together(entry: Entry) -> tuple[str, int]:
    return entry.job, 0 if isinstance(entry, Figures) else id(entry)


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

    def say(remark: dict[str, Any]) -> None:
        remarks.write(json.dumps(remark).encode() + b"\n")

    settings = json.loads(lines.readline())
    try:
        sink: Sink = importlib.import_module(MODULES[settings["sink"]]).make(settings)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is said
        say({"state": "broken", "why": reason(error), "dropped": 0})
        return 1
    say({"state": "ready", "dropped": 0})
    delivery = Delivery(sink, say)
    for batch in batches(lines):
        delivery.deliver(batch)
    with contextlib.suppress(Exception):
        sink.close()
    os._exit(0)  # a library's threads and atexit handlers may wait for a server


if __name__ == "__main__":
    sys.exit(main())
