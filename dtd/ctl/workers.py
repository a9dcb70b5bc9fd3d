"""The commands about workers: kill-worker and drain."""

from __future__ import annotations

from dtd.ctl import output
from dtd.ctl.settings import Settings
from dtd.wire import messages as m


def kill(settings: Settings, name: str, signal: str) -> int:
    """The fault drill: send a signal to a worker's process."""
    with settings.connect() as client:
        answer = client.request(m.KillWorker(name=name, signal=signal))
    if settings.as_json:
        output.print_json(answer)
    else:
        output.say(f"SIG{answer['signal']} is sent to {answer['name']} (pid {answer['pid']})")
    return 0


def drain(settings: Settings, name: str) -> int:
    """Let a worker leave at the next step boundary, losing nothing."""
    with settings.connect() as client:
        answer = client.request(m.DrainWorker(name=name))
    if settings.as_json:
        output.print_json(answer)
    else:
        output.say(f"{answer['name']} leaves at the next step boundary")
    return 0
