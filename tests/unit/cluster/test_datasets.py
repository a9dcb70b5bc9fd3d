"""Data of a job: the first worker that has them determines them, and sources are named."""

from __future__ import annotations

import pytest

from dtd.cluster.events import Submitted
from dtd.cluster.generation import datasets
from dtd.cluster.records import Job
from dtd.wire import messages as m
from tests.unit.cluster.conftest import Driver

SPEC = {
    "job": {"name": "j", "task": ""},
    "elastic": {"settle_s": 0.0, "min_workers": 2},
    "data": {"x": "/x"},
}
BYTES = 3 << 30


@pytest.fixture
def job(driver: Driver) -> Job:
    """A job with data, and three workers that warm up for it."""
    made = Job(id="j-1", spec=SPEC)
    driver.handle(Submitted(job=made))
    for name in "abc":
        driver.register(name)
    return made


def say(driver: Driver, worker: str, digest: str = "", have: int = 0, *, name: str = "x") -> None:
    size = BYTES if digest else 0
    told = m.GetData(job="j-1", name=name, digest=digest, have_bytes=have, size_bytes=size)
    driver.say(worker, told)


def named(driver: Driver, asks: str) -> tuple[str, int, int, list[str]]:
    digest, share, shares, workers = datasets.sources(driver.cluster, asks, "x")
    return digest, share, shares, [worker.name for worker in workers]


def test_the_first_worker_with_all_determines_the_data_and_the_job_keeps_them(
    driver: Driver, job: Job
) -> None:
    say(driver, "b")
    assert named(driver, "b") == ("", 0, 1, [])
    say(driver, "c", "d1", 5)
    assert job.data == {}
    say(driver, "a", "d1", BYTES)
    assert job.data == {"x": "d1"}
    assert driver.saved[-1] is job
    say(driver, "b", "d2", BYTES)
    assert job.data == {"x": "d1"}


def test_those_that_have_all_come_first_and_those_that_fetch_share(
    driver: Driver, job: Job
) -> None:
    say(driver, "c", "d1", BYTES)
    say(driver, "a", "d1", 5)
    say(driver, "b")
    assert named(driver, "a") == ("d1", 0, 2, ["c"])
    assert named(driver, "b") == ("d1", 1, 2, ["c", "a"])
    assert named(driver, "c") == ("d1", 0, 2, ["a"])
    driver.lost("c")
    assert named(driver, "b") == ("d1", 1, 2, ["a"])
    driver.register("c", incarnation=2)
    assert named(driver, "b") == ("d1", 1, 2, ["a"])


def test_other_data_are_no_source_and_names_that_the_job_lacks_are_passed_over(
    driver: Driver, job: Job
) -> None:
    say(driver, "a", "d1", BYTES)
    say(driver, "b", "d2", BYTES)
    say(driver, "c")
    say(driver, "c", "d1", BYTES, name="y")
    assert named(driver, "c") == ("d1", 0, 1, ["a"])
    assert job.data == {"x": "d1"}


def test_the_wait_is_explained(driver: Driver, job: Job) -> None:
    say(driver, "b")
    say(driver, "c")
    assert driver.core.explain().endswith("data x: no worker has reported anything at /x yet")
    say(driver, "a", "d1", BYTES)
    say(driver, "b", "d1", 1 << 30)
    assert driver.core.explain() == (
        "warming up: a, b, c; data x: b has 1.0 GiB of 3.0 GiB, c begins"
    )
    say(driver, "b", "d1", BYTES)
    say(driver, "c", "d1", BYTES)
    assert driver.core.explain() == "warming up: a, b, c"
