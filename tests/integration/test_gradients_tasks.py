"""Hooks on gradients, short batches and what an optimizer keeps, in real daemons."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtd.wire import messages as m
from tests.integration.conftest import GATED_JOB, Daemons, Gates

pytestmark = pytest.mark.integration

JOB = GATED_JOB.replace("gated_task:Gated", "gradients_task:Hooked") + "[train]\ndigest_every = 1\n"
PATIENCE_S = 100.0


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(2)


def submit(daemons: Daemons, kind: str, *settings: str, gates: Gates | None = None) -> str:
    return daemons.submit(
        f"task.kind='{kind}'", "elastic.min_workers=2", *settings, gates=gates, text=JOB
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("clamp", "on the gradient of 0.weight is not linear"),
        ("clears", "the gradient of 0.weight is cleared during backward"),
    ],
)
def test_hooks_that_cannot_be_exact_are_refused(daemons: Daemons, kind: str, reason: str) -> None:
    answer = daemons.wait(submit(daemons, kind))
    assert answer["state"] == "failed"
    assert reason in answer["reason"]
    assert "gradients_task.py:" in answer["reason"]


def test_a_hook_with_a_mask_is_allowed(daemons: Daemons) -> None:
    job = submit(daemons, "mask")
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer
    assert len(set(answer["result"]["replica_digests"].values())) == 1
    assert not daemons.events("task_doubtful", job)


def test_a_job_without_an_update_is_told(daemons: Daemons) -> None:
    job = submit(daemons, "nan", "train.max_skipped_steps=0")
    assert daemons.wait(job)["state"] == "done"
    (told,) = daemons.events("nothing_trained", job)
    assert "each of 32 steps was skipped" in told["message"]


def test_a_joiner_takes_over_what_an_odd_optimizer_keeps(daemons: Daemons) -> None:
    daemons.await_idle()
    gates = daemons.hold(5, 20)
    job = submit(daemons, "nested", "elastic.min_workers=1", gates=gates)
    daemons.await_event("generation_running", job=job)
    daemons.ask(m.KillWorker(name="worker-1", signal="KILL"))
    daemons.await_event("worker_lost", "worker-1")
    gates.open(0)
    daemons.await_event("generation_running", job=job)
    daemons.child("worker-1").wait(PATIENCE_S)
    daemons.start_again()
    daemons.await_event("generation_ending", "worker-1 joins")
    gates.open(1)
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer
    digests = answer["result"]["replica_digests"]
    assert digests.keys() == {"worker-0", "worker-1"}
    assert len(set(digests.values())) == 1
    assert not daemons.events("replicas_diverged", job)
