"""Jobs that are called alike, in stores that know nothing of each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m
from scripts.cluster.processes import Child
from tests.integration.test_restored_coordinator import LOOK_AGAIN_S, PATIENCE_S, Cluster

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "digits"
task = "digits"
steps = 12
global_batch_size = 128
[checkpoint]
every_steps = 6
keep = 1
[elastic]
min_workers = 2
settle_s = 0.0
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def train(cluster: Cluster, name: str, *overrides: str) -> tuple[str, list[int]]:
    """Id of a job that is done, and the steps from which its generations started."""
    spec = to_mapping(parse_job(JOB, source="test", overrides=overrides))
    job = cluster.ask(name, m.SubmitJob(spec=spec))["job"]
    ended = cluster.ask(name, m.WaitJob(job=job))
    assert ended["state"] == "done"
    events = cluster.ask(name, m.ReadEvents())["events"]
    return job, [one["step"] for one in events if one["kind"] == "generation_forming"]


def test_a_coordinator_with_a_new_store_does_not_go_on_with_anothers_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    directory = f"checkpoint.directory={shared}"
    cluster.coordinator("A")
    cluster.workers()
    assert train(cluster, "A", directory) == ("digits-1", [0])
    (first,) = shared.iterdir()
    manifest = next(first.glob("*/manifest.json"))
    before = manifest.read_bytes()
    cluster.kill("A")
    cluster.coordinator("B")
    assert train(cluster, "B", directory, "job.seed=5") == ("digits-1", [0])
    assert manifest.read_bytes() == before
    assert len(list(shared.iterdir())) == 2


def test_the_later_of_two_workers_of_one_name_is_refused(cluster: Cluster) -> None:
    cluster.coordinator("A")
    address = str(cluster.addresses["A"])

    def worker(log: str, directory: str) -> Child:
        place = str(cluster.directory / directory)
        arguments = ("--coordinator", address, "--name", "twin", "--state-dir", place)
        return cluster.daemon(log, "dtd.worker", *arguments)

    def pid() -> int:
        (known,) = cluster.ask("A", m.GetStatus())["workers"]
        return int(known["pid"])

    first = worker("first", "here")
    cluster.await_logged("first", "coordinator_connected")
    while not cluster.ask("A", m.GetStatus())["workers"]:
        assert first.wait(LOOK_AGAIN_S) is None
    living = pid()
    worker("second", "elsewhere")
    cluster.await_logged("second", "two workers use the name twin")
    third = worker("third", "here")
    assert third.wait(PATIENCE_S) == 78
    assert "another worker uses the state directory" in " ".join(third.log_tail())
    assert pid() == living
    (diagnostic,) = cluster.ask("A", m.GetStatus())["troubles"]
    assert diagnostic["kind"] == "name-taken"
    assert f"(pid {living})" in diagnostic["message"].split(", one on")[0]

    cluster.kill("second")
    cluster.kill("first")
    worker("again", "here")
    while pid() == living:
        assert cluster.children["again"].wait(LOOK_AGAIN_S) is None
