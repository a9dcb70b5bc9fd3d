"""Requests of an operator that tests of the coordinator have in common."""

from __future__ import annotations

from typing import Any

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


def events(daemon: Any, kind: str) -> list[dict[str, Any]]:
    """All events of a kind; asked after everything that was said before was acted on."""
    return [one for one in daemon.ask(m.ReadEvents())["events"] if one["kind"] == kind]


def await_event(daemon: Any, kind: str) -> dict[str, Any]:
    """The first event of a kind, as soon as it is written down."""
    seen = 0
    while True:
        page = daemon.ask(m.ReadEvents(after=seen, follow=True))
        seen = page["next"]
        for one in page["events"]:
            if one["kind"] == kind:
                return dict(one)


def progress(assign: m.Assign, step: int, loss: float = 0.5) -> m.Progress:
    return m.Progress(
        job=assign.job,
        generation=assign.generation,
        step=step,
        epoch=0,
        loss=loss,
        learning_rate=0.1,
        grad_norm=1.0,
        rows=64,
        step_s=0.1,
        compute_s=0.1,
        comm_s=0.0,
        exposed_s=0.0,
        skipped=False,
        skipped_steps=0,
    )
