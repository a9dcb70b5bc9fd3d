"""A model that is larger than a worker: parameters and Adam's state are 1.6 times its limit.

The limit is that of the state; what any worker takes comes on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.memory_groups import MemoryGroups, may_limit

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not may_limit(), reason="needs a control group that it may divide"),
]

WORKERS = 4
PARAMETERS = 40_000_000
PROCESS_BYTES = 256 << 20
"""A training worker's memory without a state, in pages of its own."""
LIMIT_BYTES = PROCESS_BYTES + 12 * PARAMETERS * 10 // 16
JOB = f"""
[job]
name = "large"
task = "synthetic"
steps = 3
global_batch_size = 8
[task]
parameters = {PARAMETERS}
layers = 40
rows = 64
[optimizer]
name = "adamw"
[elastic]
settle_s = 0.0
"""
DIVIDED = ("strategy.name='sharded'", "strategy.stage=3", "strategy.mirrors=0")


@contextmanager
def limited(daemons) -> Iterator[MemoryGroups]:
    """Every worker is in a control group; what it had before does not count there."""
    pids = daemons.pids()
    groups = MemoryGroups(dict.fromkeys(pids, LIMIT_BYTES))
    try:
        for name, pid in pids.items():
            groups.join(name, pid)
        yield groups
    finally:
        daemons.stop()
        groups.close()


def test_it_trains_where_the_state_is_divided(start_daemons):
    daemons = start_daemons(WORKERS)
    with limited(daemons) as groups:
        minimum = f"elastic.min_workers={WORKERS}"
        answer = daemons.wait(daemons.submit(*DIVIDED, minimum, text=JOB))
        names = [f"worker-{index}" for index in range(WORKERS)]
        peaks = [groups.peak_bytes(name) for name in names]
        killed = [groups.killed(name) for name in names]
    assert (answer["state"], answer["result"]["steps"]) == ("done", 3), answer
    assert len(set(answer["result"]["replica_digests"].values())) == 1
    assert killed == [0] * WORKERS
    assert min(peaks) > 4 * PARAMETERS, "the whole model was there once"


def test_it_is_refused_before_its_first_step_where_it_is_not(start_daemons):
    daemons = start_daemons(1)
    with limited(daemons) as groups:
        answer = daemons.wait(daemons.submit(text=JOB))
        killed = groups.killed("worker-0")
    assert (answer["state"], killed) == ("failed", 0), answer
    reason = str(answer)
    assert "the state needs 62" in reason, "16 bytes a parameter, and gradients on their way"
    assert "of the process (memory limit of the control group /" in reason
    assert 'it fits with [strategy] name = "sharded", stage = ' in reason
