"""The task's observers: objects that are told of training in threads of their own.

An observer cannot hold up a step, end the job or fail it.  Each has a queue of bounded length and a
thread; what does not fit is dropped and counted, an exception is reported and the next moment
follows, a call that does not return is reported and only costs its observer what comes after it.
What must take part in training (end the job, keep a state) is a callback instead: see
`dtd.train.callbacks`, which hands every moment on to here.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Final

from dtd.errors import TaskError
from dtd.rules import did_you_mean
from dtd.train.record import GotOn, Moment, Warn, WarningThrottle

HOOKS: Final = ("on_start", "on_step", "on_evaluation", "on_checkpoint", "on_finish")
MAX_OBSERVERS: Final = 16
MAX_WAITING_STEPS: Final = 1000
"""Moments that may wait for one observer before further calls of `on_step` are dropped."""

MAX_WAITING: Final = MAX_WAITING_STEPS + 200
"""The same for the other calls, which are few."""

HANGS_AFTER_S: Final = 30.0
FINISH_WITHIN_S: Final = 5.0
"""Time that the end of a job waits for its observers, all together."""

_LOOK_EVERY_S: Final = 0.25
_MAX_TRACEBACK_CHARACTERS: Final = 12_000


def observers_of(task: Any) -> list[Any]:
    """The observers of a task, from its `observers()`; none if it does not have the method.

    Raises:
        TaskError: it returns something else, or an observer has a hook that does not exist.
    """
    method = getattr(task, "observers", None)
    if method is None:
        return []
    returned = method()
    if isinstance(returned, str) or not isinstance(returned, Iterable):
        raise TaskError(
            f"observers() of the task returned a {type(returned).__name__}",
            remedy="return a list of objects that have one of " + ", ".join(HOOKS),
        )
    found = list(returned)
    if len(found) > MAX_OBSERVERS:
        raise TaskError(f"the task has {len(found)} observers, at most {MAX_OBSERVERS} can be told")
    for one in found:
        _check(one)
    return found


def _check(observer: Any) -> None:
    name = type(observer).__name__
    hooks = [hook for hook in dir(observer) if hook.startswith("on_")]
    unknown = [hook for hook in hooks if hook not in HOOKS]
    if unknown:
        raise TaskError(
            f"observer {name} has {unknown[0]}, which is never called"
            f"{did_you_mean(unknown[0], HOOKS)}",
            remedy="observers have " + ", ".join(HOOKS),
        )
    if not hooks:
        raise TaskError(
            f"observer {name} has nothing that could be called",
            remedy="give it one of " + ", ".join(HOOKS),
        )


class Observers:
    """The observers of one task; all methods are called by the training thread.

    Args:
        observers: objects with some of `HOOKS`; one with a true attribute `every_rank` is told on
            every worker, any other one on rank 0.
        warn: reports (event, message); safe from any thread.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        observers: Sequence[Any] = (),
        warn: Warn = lambda _event, _message: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._told = [_Told(one, warn, clock) for one in observers]

    def wants(self, hook: str, *, rank: int) -> bool:
        """Whether some observer is to be told of this on this rank."""
        return any(one.wants(hook, rank=rank) for one in self._told)

    def tell(self, hook: str, moment: Moment) -> None:
        """Have the observers called; returns at once."""
        for one in self._told:
            if one.wants(hook, rank=moment.rank):
                one.tell(hook, moment)

    def finish(self, got_on: GotOn, *, within_s: float | None = None) -> None:
        """The job is over: deliver waiting moments to the observers, for a limited time.

        Args:
            got_on: called while this waits.
            within_s: for all of them together; None: `FINISH_WITHIN_S`.
        """
        for one in self._told:
            one.close()
        until = time.monotonic() + (FINISH_WITHIN_S if within_s is None else within_s)
        for one in self._told:
            one.wait(until, got_on)

    def close(self) -> None:
        """Tell nothing more; what waits is still told while the process lives."""
        for one in self._told:
            one.close()


class _Told:
    """One observer, its queue and its thread, which is started with the first moment."""

    def __init__(self, observer: Any, warn: Warn, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._name = type(observer).__name__
        self._every_rank = bool(getattr(observer, "every_rank", False))
        self._hooks = {hook: call for hook in HOOKS if (call := getattr(observer, hook, None))}
        self._clock = clock
        self._report = warn
        self._warn = WarningThrottle(self._said, clock=clock)
        self._queue: SimpleQueue[tuple[str, Moment] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._calling: tuple[str, float] | None = None
        self._hung: tuple[str, float] | None = None
        self._trace = ""
        self.dropped = 0

    def wants(self, hook: str, *, rank: int) -> bool:
        return hook in self._hooks and (rank == 0 or self._every_rank)

    def tell(self, hook: str, moment: Moment) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"observer {self._name}", daemon=True
            )
            self._thread.start()
        self._look_after()
        limit = MAX_WAITING_STEPS if hook == "on_step" else MAX_WAITING
        if self._queue.qsize() >= limit:
            self.dropped += 1
            self._warn(
                "observer_dropped",
                f"observer {self._name} is slower than training: {limit} moments wait for it, and"
                f" {self.dropped} were dropped so far",
            )
            return
        self._queue.put((hook, moment))

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)

    def wait(self, until: float, got_on: GotOn) -> None:
        if self._thread is None:
            return
        while self._thread.is_alive() and (left_s := until - time.monotonic()) > 0:
            self._thread.join(min(left_s, _LOOK_EVERY_S))
            got_on()
        if not self._thread.is_alive():
            self._thread = None
        else:
            call = self._calling
            where = f"{call[0]}() has not returned" if call is not None else "it is too slow"
            self._warn(
                "observer_left_behind",
                f"observer {self._name} was not told of the last {self._queue.qsize()} moments of"
                f" the job: {where}",
            )

    def _look_after(self) -> None:
        """Report a call that does not return, once."""
        call = self._calling
        if call is None or call is self._hung or self._clock() - call[1] < HANGS_AFTER_S:
            return
        self._hung = call
        self._warn(
            "observer_hangs",
            f"{call[0]}() of observer {self._name} has not returned for {HANGS_AFTER_S:g} s;"
            " training continues without it",
        )

    # --- in the observer's thread --------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            hook, moment = item
            self._calling = hook, self._clock()
            try:
                self._hooks[hook](moment)
            except BaseException as error:  # noqa: BLE001 - whatever it is, training goes on
                self._trace = "".join(traceback.format_exception(error))
                reason = f"{type(error).__name__}: {error}"
                self._warn(
                    "observer_failed",
                    f"{hook}() of observer {self._name} raised {reason}; training continues",
                )
            self._calling = None

    def _said(self, event: str, message: str) -> None:
        if event == "observer_failed":
            sys.stderr.write(self._trace[-_MAX_TRACEBACK_CHARACTERS:])  # for `dtdctl logs`
        self._report(event, message)
