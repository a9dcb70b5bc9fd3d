"""A job finds its process as the service began it, whatever earlier jobs have done to theirs.

The workers are started as users start them: interpreters that are forked begin anew by themselves.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m
from scripts.cluster.cluster import LOOK_EVERY_S, REPOSITORY, Cluster
from scripts.cluster.processes import Child
from tests.integration.process_task import PLANTED

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("unprepared")]

NAME = "worker-0"
START_AGAIN = 75
JOB = """
[job]
name = "process"
task = "process_task:State"
epochs = 1
global_batch_size = 16
[elastic]
settle_s = 0.0
"""


class Homes(Cluster):
    """A worker in a directory of its own, started again when it asks for it."""

    def __init__(self, directory: Path, wrapper: Sequence[str]) -> None:
        path = os.pathsep.join((str(REPOSITORY), str(Path(__file__).parent)))
        super().__init__(directory, environment={"PYTHONPATH": path})
        self._wrapper = wrapper

    def add(self, name: str, command: Sequence[str], *_environment: object) -> Child:
        home = self.directory / f"home-{name}"
        home.mkdir()
        wrapper = self._wrapper if name == NAME else ()
        return super().add(name, ["/usr/bin/env", f"--chdir={home}", *wrapper, *command])

    def restart_after_s(self, child: Child, exit_code: int, lived_s: float) -> float:
        return 0.0 if exit_code == START_AGAIN else super().restart_after_s(child, 0, lived_s)

    def submit(self, task: str = "State", *overrides: str, **arguments: str) -> str:
        given = f"job.task=process_task:{task}"
        job = parse_job(JOB, source="test", overrides=[given, *overrides])
        spec = to_mapping(job)
        spec["task"] |= arguments
        return str(self.ask(m.SubmitJob(spec=spec))["job"])

    def run(self, task: str = "State", *overrides: str, **arguments: str) -> str:
        """A job that trains to its end; its id."""
        job = self.submit(task, *overrides, **arguments)
        answer = self.ask(m.WaitJob(job=job))
        assert answer["state"] == "done", answer
        return job

    def states(self, job: str) -> dict[str, Any]:
        """The states that a job's workers have printed, by worker."""
        lines = self.ask(m.ReadLogs(job=job))["lines"]
        return {line["worker"]: json.loads(line["text"]) for line in lines}

    def pids(self) -> dict[str, int]:
        return {worker["name"]: worker["pid"] for worker in self.ask(m.GetStatus())["workers"]}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Homes]]:
    """Starts a worker; a wrapper runs its command."""
    made = []

    def begin(*wrapper: str) -> Homes:
        cluster = Homes(tmp_path_factory.mktemp("homes"), wrapper)
        made.append(cluster)
        cluster.start_coordinator()
        cluster.start_worker(NAME, "--log-format", "json")
        cluster.await_registered([NAME])
        return cluster

    yield begin
    for one in made:
        one.stop()


@pytest.fixture(scope="module")
def homes(start: Callable[..., Homes]) -> Homes:
    """One worker, whose log cannot be written."""
    return start("/bin/sh", "-c", '"$0" "$@" >/dev/full 2>&1')


def test_the_next_job_finds_what_the_service_began_with(homes: Homes) -> None:
    """Its processes import nothing from where it runs, and end without the worker."""
    pids = homes.pids()
    first = homes.states(homes.run(change="restorable"))
    assert first[NAME]["directory"] == str(homes.directory / f"home-{NAME}")
    homes.run("Planting", "train.loader_workers=1")
    assert (homes.directory / f"home-{NAME}" / PLANTED).exists()
    assert homes.states(homes.run()) == first
    assert homes.pids() == pids


def test_a_process_that_cannot_be_restored_is_replaced_by_its_supervisor(
    start: Callable[..., Homes],
) -> None:
    drop = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
    if os.geteuid() == 0 and shutil.which(drop[0]) is None:
        pytest.skip("root may raise any limit, and there is no setpriv to take that right away")
    homes = start(*(drop if os.geteuid() == 0 else ()))
    pids = homes.pids()
    first = homes.states(homes.run(change="lasting"))
    job = homes.submit()
    while homes.ask(m.ShowJob(job=job))["state"] != "done":
        homes.tend()
        homes.children[NAME].wait(LOOK_EVERY_S)
    assert homes.states(job) == first
    assert homes.restarts == {NAME: 1}
    assert pids.keys() == homes.pids().keys()
    assert set(pids.values()).isdisjoint(homes.pids().values())
    log = homes.log_path(NAME).read_text()
    assert '"process_not_restored"' in log
    assert "RLIMIT_NOFILE" in log
