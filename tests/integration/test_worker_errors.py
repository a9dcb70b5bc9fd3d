"""An exception in a worker's own code ends its process, and the job's reason names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.conftest import GATED_JOB, PATIENCE_S, Daemons

pytestmark = pytest.mark.integration


@pytest.fixture
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and one worker."""
    return start_daemons(1)


def job_of(task: str) -> str:
    return GATED_JOB.replace("gated_task:Gated", f"wordy_task:{task}")


def test_a_reason_of_any_length_ends_a_job(daemons: Daemons) -> None:
    job = daemons.submit(text=job_of("Wordy"))
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer
    assert answer["result"]["ended_early"].startswith("y\\udcffy")


def test_an_error_in_a_callback_ends_the_worker_and_is_told(daemons: Daemons) -> None:
    job = daemons.submit(text=job_of("Breaking"))
    after = daemons.submit()
    answer = daemons.wait(job)
    assert answer["state"] == "failed", answer
    assert "internal error of dtd-worker: LookupError: planted" in answer["reason"]
    assert "def broken" not in answer["reason"]
    assert "in broken" in answer["result"]["traceback"]
    worker = daemons.child("worker-0")
    assert worker.wait(PATIENCE_S) == 1
    log = (daemons.cluster.directory / "worker-0.log").read_text()
    assert "worker_failed" in log
    daemons.start_worker("worker-0")
    assert daemons.wait(after)["state"] == "done"
