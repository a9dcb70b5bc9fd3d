"""A job that would go on from beyond its own end: it fails with the worker's sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtd.errors import RequestRefused
from tests.integration.conftest import GATED_JOB, Daemons

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(2)


def by_steps(steps: int) -> str:
    return GATED_JOB.replace("epochs = 4", f"steps = {steps}")


def test_where_only_workers_know_the_end_they_say_it(daemons: Daemons) -> None:
    parent = daemons.submit(text=by_steps(20))
    assert daemons.wait(parent)["state"] == "done"
    pids = daemons.pids()
    job = daemons.submit("job.epochs=2", from_job=parent, from_mode="resume")
    after = daemons.submit(text=by_steps(3))
    answer = daemons.wait(job)
    assert answer["state"] == "failed"
    assert "the state to start from has 20 steps, and this job ends after 16" in answer["reason"]
    assert daemons.wait(after)["state"] == "done"
    assert pids.keys() == daemons.pids().keys()


def test_where_the_end_is_known_the_job_is_refused(daemons: Daemons) -> None:
    parent = daemons.submit()
    assert daemons.wait(parent)["state"] == "done"
    with pytest.raises(RequestRefused, match="has 32 steps, and this job ends after 24") as caught:
        daemons.submit("job.epochs=3", from_job=parent, from_mode="resume")
    assert caught.value.remedy.startswith("raise job.epochs")
