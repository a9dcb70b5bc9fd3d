"""Requests of an operator that tests of the coordinator have in common."""

from __future__ import annotations

import pytest

from dtd.errors import RequestRefused
from dtd.wire import messages as m


def refused(daemon, message):
    """(words, remedy) of a refusal."""
    with pytest.raises(RequestRefused) as caught:
        daemon.ask(message)
    return caught.value.message, caught.value.remedy


def submit(daemon, spec, **request):
    return daemon.ask(m.SubmitJob(spec=spec, **request))["job"]


def await_state(daemon, job, state):
    """Wait until a job has this state; each change is an event."""
    seen = 0
    while True:
        status = daemon.ask(m.GetStatus())["job"]
        if status is not None and (status["id"], status["state"]) == (job, state):
            return status
        seen = daemon.ask(m.ReadEvents(after=seen, follow=True))["next"]
