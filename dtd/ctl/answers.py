"""One request to the coordinator and its answer: printed as JSON, or told in words.

Most commands are no more than this.  JSON is the answer as it came, one line of stdout; which words
stand for it, on stdout or stderr, each command knows itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtd.ctl import output
from dtd.ctl.settings import Settings
from dtd.wire import messages as m

Answer = dict[str, Any]


def ask(settings: Settings, request: m.Message) -> Answer:
    """The answer to one request, over a connection of its own.

    Raises:
        CoordinatorUnreachable: nobody answers.
        RequestRefused: the coordinator said no.
        UsageError: the coordinator is on another host, and there is no credential.
    """
    with settings.connect() as client:
        return client.request(request)


def show(settings: Settings, answer: Answer, in_words: Callable[[Answer], object]) -> None:
    """Print an answer as JSON if that is wanted, else let `in_words` tell it."""
    if settings.as_json:
        output.print_json(answer)
    else:
        in_words(answer)


def ask_and_show(
    settings: Settings, request: m.Message, in_words: Callable[[Answer], object]
) -> Answer:
    """Ask, print, and return what was answered; raises as `ask`."""
    answer = ask(settings, request)
    show(settings, answer, in_words)
    return answer
