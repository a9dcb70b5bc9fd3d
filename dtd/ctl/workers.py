"""The commands about workers: kill-worker and drain."""

from __future__ import annotations

from dtd.ctl import output
from dtd.ctl.answers import Answer, ask_and_show
from dtd.ctl.settings import Settings
from dtd.wire import messages as m


def kill(settings: Settings, name: str, signal: str) -> int:
    """The fault drill: send a signal to a worker's process."""
    ask_and_show(settings, m.KillWorker(name=name, signal=signal), _say_killed)
    return 0


def _say_killed(answer: Answer) -> None:
    output.say(f"SIG{answer['signal']} is sent to {answer['name']} (pid {answer['pid']})")


def drain(settings: Settings, name: str) -> int:
    """Let a worker leave at the next step boundary, losing nothing."""
    ask_and_show(settings, m.DrainWorker(name=name), _say_drained)
    return 0


def _say_drained(answer: Answer) -> None:
    output.say(f"{answer['name']} leaves at the next step boundary")
