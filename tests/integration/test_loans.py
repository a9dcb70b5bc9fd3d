"""Two real workers on one host: gradients are read where they lie and come out the same."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dtd.engine.control_word import Flags
from dtd.engine.step_protocol import FRESH
from dtd.exchange.in_process import InProcessRing
from dtd.job import parse_job
from dtd.train.run import JobSessionRunner
from tests.integration.conftest import GATED_JOB

pytestmark = pytest.mark.integration

STEPS = 32
STOP_AT = 30
CHUNK_KIB = 16
OVERRIDES = ("job.task=wide_task:Wide", f"sync.chunk_kib={CHUNK_KIB}", "train.threads=1")
STEPS_SENT = 4
"""In the first step nothing is agreed yet; more than a few would be odd."""


class Silent:
    """Hears of progress and asks for nothing."""

    def flags(self):
        return Flags()

    def __getattr__(self, name):
        return lambda *_arguments: None


@pytest.fixture(scope="module")
def daemons(start_daemons):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTD_METRICS", "127.0.0.1:0")
        return start_daemons(2)


def sent_bytes_at(daemons, step):
    """Bytes that each worker has sent to the next rank, once all figures are of this step."""
    lines = daemons.child("coordinator").log_path.read_text().splitlines()
    said = [line for line in map(json.loads, lines) if line["event"] == "metrics_listening"]
    with urllib.request.urlopen(f"http://{said[-1]['host']}:{said[-1]['port']}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    seen = {
        (sample.name, sample.labels["worker"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name in ("dtd_worker_step", "dtd_worker_sent_bytes_total")
    }
    workers = ("worker-0", "worker-1")
    if [seen.get(("dtd_worker_step", worker)) for worker in workers] != [step] * 2:
        return []
    return [seen["dtd_worker_sent_bytes_total", worker] for worker in workers]


def digest_without_loans(directory):
    """The same job in one process, whose ranks hand each other copies."""
    spec = parse_job(GATED_JOB, source="test", overrides=OVERRIDES)
    runs = []
    for rank in range(2):
        silent = Silent()
        run = JobSessionRunner(
            spec=spec,
            job_id="job",
            init_from=None,
            device="cpu",
            state_dir=directory / str(rank),
            reporter=silent,
        )
        run.prepare()
        run.adopt_local(*FRESH)
        runs.append(run)
    ring = InProcessRing(2, chunk_bytes=CHUNK_KIB * 1024)
    digests = [""] * 2

    def train(rank):
        digests[rank] = runs[rank].run(ring.collective(rank), 1).digest

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        run.close()
    assert len(set(digests)) == 1
    return digests[0]


def test_gradients_do_not_go_through_the_sockets(daemons, tmp_path, monkeypatch):
    gates = daemons.hold(STOP_AT + 1)
    job = daemons.submit("elastic.min_workers=2", *OVERRIDES, gates=gates)
    daemons.until(job, lambda: bool(sent_bytes_at(daemons, STOP_AT)))
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from wide_task import PARAMETERS

    for sent in sent_bytes_at(daemons, STOP_AT):
        assert 0 < sent < STEPS_SENT * 4 * PARAMETERS < STOP_AT * 4 * PARAMETERS
    gates.open(0)
    answer = daemons.wait(job)
    assert (answer["state"], answer["result"]["steps"]) == ("done", STEPS)
    assert len(daemons.events("generation_running", job)) == 1, "a loan was recalled"
    digests = set(answer["result"]["replica_digests"].values())
    assert digests == {digest_without_loans(tmp_path)}
