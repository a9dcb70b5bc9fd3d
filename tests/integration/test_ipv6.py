"""A cluster whose coordinator has an IPv6 address: workers reach each other at theirs."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m
from tests.integration.beyond import Beyond

pytestmark = pytest.mark.integration

LOOPBACK = "::1"
WORKERS = ("w-0", "w-1")
JOB = """
[job]
name = "far"
task = "digits"
steps = 4
global_batch_size = 64
[elastic]
settle_s = 0.0
min_workers = 2
"""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beyond]:
    try:
        socket.create_server((LOOPBACK, 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    made = Beyond(tmp_path_factory.mktemp("ipv6"), listen=("--listen", f"[{LOOPBACK}]:0"))
    for name in WORKERS:
        made.join(name)
        made.start_worker(name)
    made.await_registered(WORKERS)
    yield made
    made.stop()


def test_workers_take_callers_of_both_kinds(coordinator: Beyond) -> None:
    """A worker with the default address of one with a credential."""
    log = coordinator.log_path("w-0").read_text()
    port = int(log.split('"data_port": ')[-1].split(",")[0])
    for host in (LOOPBACK, "127.0.0.1"):
        socket.create_connection((host, port), 60.0).close()


def test_workers_reach_each_other_where_they_are_said_to_listen(coordinator: Beyond) -> None:
    spec = to_mapping(parse_job(JOB, source="test"))
    job = coordinator.ask(m.SubmitJob(spec=spec))["job"]
    answer = coordinator.ask(m.WaitJob(job=job))
    assert answer["state"] == "done", answer
    assert len(answer["result"]["replica_digests"]) == len(WORKERS)
    assert len(set(answer["result"]["replica_digests"].values())) == 1
