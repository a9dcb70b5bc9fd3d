"""Workers whose updates end in other bits train together: each part is copied from its owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dtd.wire import messages as m
from tests.integration.conftest import Daemons

pytestmark = pytest.mark.integration

UNLIKE = ("job.task='unlike_task:Unlike'", "job.epochs=8", "train.digest_every=1")


def test_without_an_owner_they_diverge(start_daemons: Callable[[int], Daemons]) -> None:
    daemons = start_daemons(2)
    job = daemons.submit(*UNLIKE)
    daemons.wait(job)
    assert daemons.events("replicas_diverged", job)


@pytest.mark.parametrize("strategy", ["replicated", "diloco"])
def test_one_is_killed_and_comes_back_and_no_step_is_lost(
    start_daemons: Callable[[int], Daemons], strategy: str
) -> None:
    daemons = start_daemons(3)
    gates = daemons.hold(6, 38)
    rounds = ["strategy.inner_steps=4"] if strategy == "diloco" else []
    job = daemons.submit(
        *UNLIKE, "strategy.update='owner'", f"strategy.name='{strategy}'", *rounds, gates=gates
    )
    daemons.await_event("generation_running", job=job)
    daemons.ask(m.KillWorker(name="worker-2", signal="KILL"))
    daemons.await_event("worker_lost", job=job)
    gates.open(0)
    daemons.await_event("generation_running", job=job)
    daemons.child("worker-2").wait(100.0)
    daemons.start_again()
    daemons.await_event("generation_ending", job=job)
    gates.open(1)

    answer = daemons.wait(job)

    result: dict[str, Any] = answer["result"]
    assert (answer["state"], result["steps"], result["steps_lost"]) == ("done", 64, 0), answer
    assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    assert result["world_size"] == 3
    assert len(set(result["replica_digests"].values())) == 1
    assert not daemons.events("replicas_diverged", job)
