"""The status line of `systemctl status dtd-worker@cpu`."""

from __future__ import annotations

from dtd.wire import messages as m
from dtd.worker.evidence import status_line


def assign(*names, rank=0):
    roster = tuple(
        m.Member(name=name, incarnation=1, host="h", port=1, holds=True) for name in names
    )
    return m.Assign(
        job="digits-1",
        generation=2,
        roster_id=3,
        rank=rank,
        roster=roster,
        held_generation=0,
        held_step=0,
    )


def test_an_idle_worker():
    beat = m.Heartbeat(state="idle", waiting="waits for a job")
    assert status_line(beat, None, coordinator="") == "waits for a job"
    assert (
        status_line(beat, None, coordinator="10.0.0.1:7117")
        == "waits for a job, connecting to the coordinator at 10.0.0.1:7117"
    )


def test_a_worker_that_trains():
    beat = m.Heartbeat(state="running", job="digits-1", step=120, loss=0.123456)
    line = status_line(beat, assign("a", "b", "c", rank=2), coordinator="")
    assert line == "job digits-1: step 120, loss 0.1235, rank 2 of 3 between b and a"
    line = status_line(beat, assign("a", "b", "c"), coordinator="")
    assert line.endswith("rank 0 of 3 between c and b")
    assert status_line(beat, assign("a"), coordinator="").endswith("loss 0.1235, alone")


def test_a_worker_that_waits_for_the_others():
    beat = m.Heartbeat(
        state="frozen", job="digits-1", step=3, waiting="waits for the next generation"
    )
    line = status_line(beat, assign("a", "b"), coordinator="")
    assert line == "job digits-1: waits for the next generation"
