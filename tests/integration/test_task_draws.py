"""A task that draws from every generator ends with the same weights whenever it is trained."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.conftest import Daemons

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "drawing"
task = "drawing_task:Drawing"
epochs = 2
global_batch_size = 16
seed = 5
[train]
digest_every = 1
[elastic]
settle_s = 0.0
min_workers = 2
"""


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(2)


def test_the_same_job_ends_with_the_same_weights(daemons: Daemons) -> None:
    digests = set()
    for job in (daemons.submit(text=JOB), daemons.submit(text=JOB)):
        answer = daemons.wait(job)
        assert answer["state"] == "done", answer
        assert not daemons.events("replicas_diverged", job)
        digests |= set(answer["result"]["replica_digests"].values())
    assert len(digests) == 1
