"""A job that cannot begin on this host is a failure that the coordinator is told of."""

from __future__ import annotations

import re

import pytest

from dtd.address import Address
from dtd.config import WorkerConfig
from dtd.wire import messages as m
from dtd.worker import daemon
from dtd.worker.daemon import Worker

DOCUMENT = {"job": {"name": "j", "task": "digits", "epochs": 1, "global_batch_size": 4}}


@pytest.fixture
async def worker(tmp_path):
    """A worker that is registered, and the messages that it has sent."""
    config = WorkerConfig(name="worker-0", state_dir=tmp_path, listen=Address("127.0.0.1", 0))
    made = Worker(config, tuple)
    await made.start()
    sent = []
    made._control.send = lambda message, payload=b"": sent.append(message)
    made._on_message(
        m.Registered(heartbeat_interval_s=0.25, heartbeat_timeout_s=1.5), memoryview(b"")
    )
    yield made, sent
    made._parts.data.close()


async def test_an_error_of_the_system_at_its_beginning(worker, monkeypatch):
    def no_pipe():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(daemon, "OutputPipe", no_pipe)
    made, sent = worker
    made._on_message(m.Prepare(job="job-1", spec=DOCUMENT), memoryview(b""))
    (failed,) = [one for one in sent if isinstance(one, m.Failed)]
    assert (failed.job, failed.reason) == ("job-1", "[Errno 24] Too many open files")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"elastic": {"newer": 1}}, r"\[elastic\] newer: unknown key"),  # of a newer release
        ({"sync": {"encryption": "tls"}}, "(?s)no credential for that.*dtd-worker join TOKEN"),
        (
            {"job": {**DOCUMENT["job"], "sandbox": "strict"}},
            'sandbox = "strict", and this worker has no such sandbox',
        ),
    ],
)
async def test_a_job_that_this_worker_cannot_or_may_not_run(worker, monkeypatch, more, why):
    monkeypatch.setattr(daemon, "OutputPipe", lambda: None)
    made, sent = worker
    made._on_message(m.Prepare(job="job-1", spec=DOCUMENT | more), memoryview(b""))
    (failed,) = [one for one in sent if isinstance(one, m.Failed)]
    assert (failed.job, failed.step) == ("job-1", 0)
    assert re.search(why, failed.reason)
