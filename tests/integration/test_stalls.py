"""Pauses of real daemons that are no hang: for a while nothing moves in any, or all compute.

Of a thread that does hang while others wait for it tells test_faults; of a disk of the
coordinator's that is slow, the simulation and the unit tests of `dtd.coordinator.core`.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.integration

WORKERS = 2
PAUSE_S = 6.0
JOB = f"""
[job]
name = "stalling"
task = "stalling_task:Stalling"
epochs = 3
global_batch_size = 16
seed = 7
[task]
hangs_at = 20
computes_at = 30
pause_s = {PAUSE_S}
[checkpoint]
every_steps = 1000
[elastic]
settle_s = 0.0
min_workers = {WORKERS}
stall_timeout_s = 3.0
"""


def test_nobody_is_lost_by_a_pause_that_befalls_all_or_computes(start_daemons, record_property):
    """The limit for a thread in which nothing moves is half of the first pause.

    The second one is within what has been learned from the first.
    """
    daemons = start_daemons(WORKERS)
    job = daemons.submit(text=JOB)
    ended = daemons.wait(job)
    assert (ended["state"], ended["result"]["steps_lost"]) == ("done", 0)
    assert daemons.events("worker_lost", job) == []
    assert len(daemons.events("generation_running", job)) == 1
    stalled = daemons.events("training_stalled", job)
    paused = [event for event in stalled if "holds step 19" in event["message"]]
    assert {event["worker"] for event in paused} == {"worker-0", "worker-1"}
    for event in paused:
        assert "in stalling_task.py:" in event["message"]
        assert "elastic.stall_timeout_s allows" in event["message"]
        assert "no other worker that makes progress holds step 19" in event["message"]
    assert len(daemons.events("training_goes_on", job)) == len(stalled)
    record_property("seen", f"{len(stalled)} workers stood still for {PAUSE_S:g} s, none was lost")
