"""A worker that slows down gives rows away, and gets them back when it has recovered."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from dtd.wire import messages as m
from tests.integration.conftest import Daemons

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "paced"
task = "paced_task:Paced"
steps = 1000000
global_batch_size = 48
[train]
digest_every = 4
[checkpoint]
every_steps = 1000000
[elastic]
shares = "measured"
min_workers = 2
settle_s = 0.0
"""


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and three workers."""
    return start_daemons(3)


def rows(daemons: Daemons) -> dict[int, int]:
    """The rows of each rank, as the status has them."""
    workers = daemons.ask(m.GetStatus())["workers"]
    return {worker["rank"]: worker["rows"] for worker in workers if worker["rank"] is not None}


def test_rows_leave_a_slow_worker_and_return(daemons: Daemons) -> None:
    slow = daemons.directory / "slow"
    job = daemons.submit(f"task.slow='{slow}'", text=JOB)
    daemons.until(job, lambda: len(rows(daemons)) == 3 and min(rows(daemons).values()) > 8)
    slow.write_text("1")
    daemons.until(job, lambda: 0 < rows(daemons).get(1, 0) < 8)
    daemons.until(job, lambda: daemons.events("shares_changed", job) != [])
    told = daemons.events("shares_changed", job)[0]["message"]
    assert " of 48 rows, not 16, 16, 16: rank " in told
    slow.unlink()
    daemons.until(job, lambda: rows(daemons).get(1, 0) > 12)

    slow.write_text("0")
    daemons.until(job, lambda: 0 < rows(daemons).get(0, 0) < 8)
    daemons.child("worker-2").signal_group(signal.SIGKILL)
    daemons.await_event("worker_lost", job=job)
    daemons.until(job, lambda: len(rows(daemons)) == 2 and 0 < rows(daemons)[0] < 16)
    daemons.ask(m.CancelJob(job=job))
    answer = daemons.wait(job)
    assert answer["state"] == "cancelled", answer
    result = answer["result"]
    assert (result["rows_missing"], result["rows_repeated"], result["steps_lost"]) == (0, 0, 0)


def test_weights_by_name_are_taken_from_the_first_step(daemons: Daemons) -> None:
    daemons.start_again()
    daemons.await_idle()
    text = JOB.replace('"measured"', "{ worker-0 = 2, nas = 5 }")
    job = daemons.submit("task.slow='/nowhere'", text=text)
    told = daemons.await_event("shares_unused", "names nas", job=job)
    assert "the workers are worker-0, worker-1, worker-2" in told["message"]
    daemons.until(job, lambda: sorted(rows(daemons).values()) == [12, 12, 24])
    daemons.ask(m.CancelJob(job=job))
    daemons.wait(job)
