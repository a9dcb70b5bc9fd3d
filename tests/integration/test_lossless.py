"""Jobs whose payloads are coded, and the same ones without, each with a kill: digests are equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.wire import messages as m
from dtd.worker.process.state_directory import FD_DIRECTORY
from tests.integration.conftest import PATIENCE_S, Daemons

pytestmark = pytest.mark.integration

STOP_AT = 8
KILLED = "worker-2"
STRATEGIES = {
    "float32": (),
    "bfloat16": ("strategy.codec=bfloat16",),
    "local steps": ("strategy.name=diloco", "strategy.inner_steps=4"),
}


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    """Three workers that cannot share memory, so that all payloads are sent."""
    directory = tmp_path_factory.mktemp("cluster")
    made = Daemons(directory, 3)
    for number in range(3):
        state = directory / f"worker-{number}"
        state.mkdir(mode=0o700)
        (state / FD_DIRECTORY).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        try:
            made.cluster.start_all()
            yield made
        finally:
            made.stop()


def traffic_at(daemons, step):
    """Each worker's bytes, sent and before coding, once all figures are of this step."""
    workers = daemons.ask(m.GetStatus())["workers"]
    if {worker["step"] for worker in workers} != {step}:
        return []
    return [(worker["sent_bytes"], worker["plain_bytes"]) for worker in workers]


def trained(daemons, lossless, strategy):
    """(traffic before a worker was killed, the digest at the end)."""
    daemons.await_idle()
    gates = daemons.hold(STOP_AT + 1)
    job = daemons.submit(
        *("job.task=wide_task:Wide", "job.epochs=2", "elastic.min_workers=3"),
        *(f"sync.lossless={lossless}", *strategy),
        gates=gates,
    )
    found = []
    daemons.until(job, lambda: bool(found) or found.extend(traffic_at(daemons, STOP_AT)))
    daemons.ask(m.KillWorker(name=KILLED, signal="KILL"))
    daemons.child(KILLED).wait(PATIENCE_S)
    gates.open_all()
    daemons.start_worker(KILLED)
    answer = daemons.wait(job)
    assert (answer["state"], answer["result"]["steps_lost"]) == ("done", 0)
    (digest,) = set(answer["result"]["replica_digests"].values())
    return found, digest


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_coding_changes_bytes_and_no_bit_of_the_result(daemons, strategy):
    coded, digest = trained(daemons, "on", strategy)
    plain, same = trained(daemons, "off", strategy)
    assert digest == same
    assert all(sent < 0.95 * before for sent, before in coded)
    assert all(sent == before for sent, before in plain)
