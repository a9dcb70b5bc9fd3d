"""Requests to the coordinator and their answers: page by page, printed as JSON or as text.

Most commands are one request and its answer.  JSON is the answer as it came, one line of stdout;
which words stand for it, on stdout or stderr, each command knows itself.

Training does not notice a restart of the coordinator, so commands that wait for a job or follow
events do not, either (`persist`); only a coordinator that never answered is reported at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from dtd.ctl import output
from dtd.ctl.settings import Settings
from dtd.errors import CoordinatorUnreachable, UsageError
from dtd.net.clients.control_client import ControlClient
from dtd.wire import messages as m

Answer = dict[str, Any]
T = TypeVar("T")

RECONNECT_FOR_S: Final = 60.0
RECONNECT_EVERY_S: Final = 0.5


def pages(
    request: Callable[[m.Message], Answer], make: Callable[[int], m.Message], key: str
) -> Iterator[Answer]:
    """Answers in order, until one brings nothing new under `key`."""
    after = 0
    while (answer := request(make(after)))[key]:
        yield answer
        after = answer["next"]


def items(
    request: Callable[[m.Message], Answer], make: Callable[[int], m.Message], key: str
) -> Iterator[Answer]:
    """Yield the items of all answers of `pages`."""
    for answer in pages(request, make, key):
        yield from answer[key]


def ask(settings: Settings, request: m.Message, *, within_s: float | None = None) -> Answer:
    """The answer to one request, over a connection of its own; `within_s` bounds a long one."""
    with settings.connect() as client:
        return client.request(request, within_s=within_s)


def show(settings: Settings, answer: Answer, in_words: Callable[[Answer], object] | str) -> None:
    """Print an answer as JSON if that is wanted, else by a function, or say it in a sentence."""
    if settings.as_json:
        output.print_json(answer)
    elif isinstance(in_words, str):
        output.say(in_words.format_map(answer))
    else:
        in_words(answer)


def ask_and_show(
    settings: Settings, request: m.Message, in_words: Callable[[Answer], object] | str
) -> Answer:
    """Ask, print, and return the answer; raises as `ask`."""
    answer = ask(settings, request)
    show(settings, answer, in_words)
    return answer


def persist(
    settings: Settings, look: Callable[[ControlClient], T], *, until_s: float = math.inf
) -> T:
    """Connect and look, again and again if the coordinator is lost after it has answered once.

    Raises `CoordinatorUnreachable` if that lasts too long, or until a time of the monotonic clock.
    """
    give_up_at_s: float | None = time.monotonic()
    while True:
        try:
            with settings.connect() as client:
                give_up_at_s = None
                return look(client)
        except CoordinatorUnreachable as error:
            now_s = time.monotonic()
            if give_up_at_s is None:
                output.say(f"{error.message}; waiting for it to come back")
                give_up_at_s = min(now_s + RECONNECT_FOR_S, until_s)
            if now_s >= give_up_at_s:
                raise
        time.sleep(RECONNECT_EVERY_S)


def parse_job_at_step(text: str, *, source: str) -> tuple[str, int]:
    """Read JOB or JOB@STEP; step 0 means the newest."""
    job, at, step = text.partition("@")
    if not job or (at and not (step.isascii() and step.isdigit() and int(step) > 0)):
        raise UsageError(
            f"{source}: {text!r} does not name a job's state",
            remedy="write JOB for its newest checkpoint or JOB@STEP, for example digits-1@200",
        )
    return job, int(step) if at else 0
