"""Two processors of different kinds train together, with the instructions that both have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtd.wire import messages as m
from dtd.worker.process.host_checks import best_instructions
from tests.integration.conftest import Daemons

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        best_instructions("cpu", {}) in ("", "default"),
        reason="this processor has one set of instructions only",
    ),
]

JOB = """
[job]
name = "mixed"
task = "digits"
epochs = 1
global_batch_size = 64
[optimizer]
name = "adamw"
[train]
digest_every = 1
[elastic]
settle_s = 0.0
min_workers = 2
max_workers = 2
"""


SERVED = f"""{JOB}
[strategy]
name = "sharded"
owners = "servers"
"""


def test_with_a_parameter_server_each_worker_uses_the_instructions_that_it_has(
    start_daemons: Callable[[int], Daemons],
) -> None:
    daemons = start_daemons(0)
    daemons.cluster.start_worker("newer")
    daemons.cluster.start_worker("older", environment={"ATEN_CPU_CAPABILITY": "default"})
    daemons.cluster.start_worker("owner", "--role", "server")
    job = daemons.submit(text=SERVED)

    answer = daemons.wait(job)

    assert answer["state"] == "done", answer
    assert answer["result"]["replica_digests"].keys() == {"newer", "older", "owner"}
    assert len(set(answer["result"]["replica_digests"].values())) == 1
    for kind in ("instructions_lowered", "replicas_diverged", "worker_refused"):
        assert not daemons.events(kind, job)


def test_an_older_processor_joins_before_the_first_step(
    unprepared: None,  # torch chooses its kernels once in a process
    start_daemons: Callable[[int], Daemons],
) -> None:
    daemons = start_daemons(0)
    daemons.cluster.start_worker("newer")
    job = daemons.submit(text=JOB)

    def is_ready() -> bool:
        return [one["state"] for one in daemons.ask(m.GetStatus())["workers"]] == ["ready"]

    daemons.until(job, is_ready)
    daemons.cluster.start_worker("older", environment={"ATEN_CPU_CAPABILITY": "default"})

    answer = daemons.wait(job)

    assert answer["state"] == "done", answer
    assert len(set(answer["result"]["replica_digests"].values())) == 1
    assert answer["result"]["world_size"] == 2
    assert daemons.events("instructions_lowered", job)
    assert not daemons.events("replicas_diverged", job)
    assert not daemons.events("worker_refused", job)
